"""PostgreSQL, or an engine that speaks its protocol: shared by any number of machines."""

import math
import mmap
import queue
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from plants.stores import Plant, PlantIdInUse, StoreUnavailable
from plants.stores.batch import BatchStore, Engine, Fates
from plants.stores.outage import MEND, PlantRefused, StoreUnusable, one_line

_DEFAULTS = conninfo_to_dict(
    "application_name=plants connect_timeout=2 target_session_attrs=read-write "
    "keepalives_idle=10 keepalives_interval=2 keepalives_count=3"
)

_TABLE = "CREATE TABLE IF NOT EXISTS plants (id bigint PRIMARY KEY, name text NOT NULL, tag text)"
_INSERT = (
    "INSERT INTO plants (id, name, tag) SELECT * FROM unnest(%b::bigint[], %b::text[], %b::text[]) "
    "ON CONFLICT (id) DO NOTHING RETURNING id"
)
_INSERT_NOTHING = "INSERT INTO plants (id, name) SELECT 0, '' WHERE false ON CONFLICT (id) DO NOTHING"
_SELECT = "SELECT name, tag FROM plants WHERE id = %s"
_SET_UP = """
    SELECT set_config('statement_timeout', %s, false),
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
        THEN set_config('synchronous_commit', 'on', false) END
"""
# What there is to say against the table: it could refuse a plant, or lose one.
_FAULTS = files(__package__).joinpath("postgres.sql").read_bytes()

_GONE = f"the table plants is gone; {MEND}"

_MOST_TEXT = 2_000_000  # characters a statement, so that one with the largest plants ends in time

_T = TypeVar("_T")
_Row = tuple[Any, ...]

# The server itself says that it kept nothing, and that the next attempt may go well.
_KEPT_NOTHING = (errors.SerializationFailure, errors.DeadlockDetected, errors.ReadOnlySqlTransaction)
# The server, or the driver, refuses a statement for the sake of one plant in it.
_CANNOT_HOLD = (psycopg.DataError, UnicodeEncodeError)
_FOR_ONE_PLANT = (*_CANNOT_HOLD, psycopg.IntegrityError, errors.ProgramLimitExceeded, errors.RaiseException)


class PostgresStore(BatchStore):
    """Plants in a table of a database server. An acknowledged plant survives what the server promises.

    All plants of a batch are one statement and so one transaction. It is tried again only while the server says that it
    kept nothing. When a connection is lost or silent after the statement was sent, nobody knows what was kept, and the
    answer is StoreUnavailable. Looking for the rows would not settle it: they may be another client's, or not yet on
    the synchronous standby, so that a fail-over would take them back. Who tries again may therefore be told that the id
    is in use, by the own earlier attempt.
    """

    def __init__(self, conninfo: str, patience: float = 2.0, max_connections: int = 16) -> None:
        super().__init__(patience)
        given = conninfo_to_dict(conninfo)
        self._conninfo = make_conninfo(
            conninfo, **{name: value for name, value in _DEFAULTS.items() if name not in given}
        )
        self._max_connections = max_connections

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Give the store for a connection URL of libpq, which may name several hosts.

        :raises ValueError: libpq cannot read the URL.
        """
        try:
            return cls(url)
        except psycopg.ProgrammingError:
            # Its message may quote the password.
            raise ValueError(
                "the URL of a PostgreSQL store is postgresql://user:password@host:port/database, with libpq's options"
            ) from None

    def _new_engine(self) -> Engine:
        return _Pool(self._conninfo, self._max_connections, self._patience, self._was_made)


class _Pool(Engine):
    """The connections of one process; each is one caller's at a time."""

    def __init__(self, conninfo: str, max_connections: int, patience: float, was_made: mmap.mmap) -> None:
        super().__init__(patience, was_made)
        self._conninfo = conninfo
        self._idle: list[_Connection] = []
        self._places = threading.Semaphore(max_connections)

    def keep(self, plants: list[Plant], deadline: float) -> Fates:
        # In the order of their ids: two batches of the same ids wait for each other, but never in a circle.
        plants = sorted(plants)
        if len(plants) > 1 and sum(len(plant.name) + len(plant.tag or "") for plant in plants) > _MOST_TEXT:
            return self._keep_halves(plants, deadline)
        try:
            rows = self._execute(_INSERT, [list(column) for column in zip(*plants, strict=True)], deadline)
        except _FOR_ONE_PLANT as error:
            if len(plants) == 1:
                return {plants[0].id: error if isinstance(error, _CANNOT_HOLD) else PlantRefused(_told(error))}
            return self._keep_halves(plants, deadline)
        kept = {plant_id for (plant_id,) in rows}
        return {plant.id: PlantIdInUse(plant.id) for plant in plants if plant.id not in kept}

    def _keep_halves(self, plants: list[Plant], deadline: float) -> Fates:
        fates: Fates = {}
        middle = len(plants) // 2
        for half in (plants[:middle], plants[middle:]):
            try:
                fates |= self.keep(half, deadline)
            except StoreUnavailable as error:  # The other half may be kept.
                fates |= {plant.id: StoreUnavailable(str(error)) for plant in half}
        return fates

    def find(self, plant_id: int, deadline: float) -> Plant | None:
        rows = self._execute(_SELECT, [plant_id], deadline)
        return Plant(plant_id, *rows[0]) if rows else None

    def check(self, deadline: float) -> None:
        self._check_table(lambda query: self._execute(query, [], deadline))
        self._execute(_INSERT_NOTHING, [], deadline)

    def disconnect(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _execute(self, query: LiteralString | bytes, parameters: list[Any], deadline: float) -> list[_Row]:
        if not self._places.acquire(timeout=max(0, deadline - time.monotonic())):
            raise StoreUnavailable("all connections are busy")
        pause = 0.005
        try:
            while True:
                connection = self._take(deadline)
                try:
                    return connection.run(query, parameters, deadline)
                except _KEPT_NOTHING:
                    if time.monotonic() + pause > deadline:
                        raise
                finally:
                    if connection.pgconn.transaction_status == TransactionStatus.IDLE and not self.closed:
                        self._idle.append(connection)
                    else:
                        connection.close()
                time.sleep(pause)
                pause *= 2
        except _FOR_ONE_PLANT:
            raise
        except errors.UndefinedTable:
            raise StoreUnusable(_GONE) from None
        except psycopg.Error as error:
            raise StoreUnavailable(_told(error)) from error
        finally:
            self._places.release()

    def _take(self, deadline: float) -> "_Connection":
        while not self.closed:
            try:
                connection = self._idle.pop()
            except IndexError:
                self._connect_within(deadline)
                continue
            # What an idle connection has to read is almost always its end: better seen now than after the statement
            # was sent, when it would leave the outcome unknown.
            if not select.select([connection], [], [], 0)[0]:
                return connection
            connection.close()
        raise StoreUnavailable("the store is closed")

    def _connect_within(self, deadline: float) -> None:
        # In a thread: to look up a host's name, and to try one host after the other, takes as long as it takes. A
        # connection that comes late serves those who come later.
        outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        threading.Thread(target=self._connect, args=(outcome,), name="plants-postgresql", daemon=True).start()
        try:
            error = outcome.get(timeout=max(0, deadline - time.monotonic()))
        except queue.Empty:
            raise StoreUnavailable("no connection could be made in time") from None
        if error:
            raise error

    def _connect(self, outcome: "queue.SimpleQueue[Exception | None]") -> None:
        try:
            connection = _Connection.connect(self._conninfo, autocommit=True)
            try:
                self._set_up(connection)
            except Exception:
                connection.close()
                raise
            self._idle.append(connection)
            outcome.put(None)
        except Exception as error:
            outcome.put(error)

    def _set_up(self, connection: "_Connection") -> None:
        connection.deadline = time.monotonic() + self.patience
        connection.add_notice_handler(connection.note)
        # In milliseconds, and sooner than the caller leaves: a statement that the server gave up keeps nothing.
        connection.execute(_SET_UP, [f"{self.patience * 750:.0f}"])
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise StoreUnusable("the database's encoding is not UTF8")
        self._check_table(lambda query: connection.run(query, [], connection.deadline))

    def _check_table(self, run: Callable[[LiteralString | bytes], list[_Row]]) -> None:
        faults = run(_FAULTS)
        if faults[:1] == [("is gone",)] and not self.was_made[0]:
            # Processes that make the table at once may meet in the catalogue in spite of IF NOT EXISTS.
            with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
                run(_TABLE)
        # Looked at again: the first look may have been older than a table that another process has just made.
        faults = faults and run(_FAULTS)
        if faults:
            raise StoreUnusable(_GONE if faults[0] == ("is gone",) else f"the table plants {faults[0][0]}")
        self.was_made[0] = 1


class _Connection(psycopg.Connection[_Row]):
    """A connection on which nothing waits beyond a deadline, even if the server's machine is gone."""

    deadline = math.inf
    replication_cancelled = False

    def run(self, query: LiteralString | bytes, parameters: list[Any], deadline: float) -> list[_Row]:
        self.deadline = deadline
        try:
            cursor = self.execute(query, parameters)
        except errors.ReadOnlySqlTransaction:
            self.close()
            raise
        if self.replication_cancelled:
            self.close()
            raise psycopg.OperationalError("the wait for the synchronous standby was cancelled")
        # Not cursor.description, which would describe the columns in words first.
        return cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        return super().wait(gen, interval, max(0.0, min(timeout or math.inf, self.deadline - time.monotonic())))

    def note(self, notice: errors.Diagnostic) -> None:
        # PostgreSQL reports success, with a mere warning, when the wait for a synchronous standby was cancelled.
        self.replication_cancelled |= notice.source_function == "SyncRepWaitForLSN"


def _told(error: Exception) -> str:
    """Say what happened without what the server says of a statement, which may quote a plant."""
    state = getattr(error, "sqlstate", None)
    return f"{type(error).__name__}, SQLSTATE {state}" if state else one_line(error)
