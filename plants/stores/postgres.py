"""PostgreSQL, or an engine that speaks its protocol: shared by any number of machines."""

import math
import mmap
import queue
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from plants.stores import Plant, PlantIdInUse, StoreUnavailable
from plants.stores.batch import BatchStore
from plants.stores.breaker import StoreUnusable
from plants.stores.connections import HOW_TO_RECOVER, Connections, Outcomes, PlantRejected

_DEFAULTS = (
    "application_name=plants connect_timeout=2 target_session_attrs=read-write "
    "keepalives_idle=10 keepalives_interval=2 keepalives_count=3"
)

_TABLE = "CREATE TABLE IF NOT EXISTS plants (id bigint PRIMARY KEY, name text NOT NULL, tag text)"
_INSERT = (
    "INSERT INTO plants (id, name, tag) SELECT * FROM unnest(%b::bigint[], %b::text[], %b::text[]) "
    "ON CONFLICT (id) DO NOTHING RETURNING id"
)
_SELECT = "SELECT name, tag FROM plants WHERE id = %s"
_SET_UP = """
    SELECT set_config('statement_timeout', %s, false),
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
        THEN set_config('synchronous_commit', 'on', false) END
"""
# What there is to say against the table: it could refuse a plant, or lose one.
_FAULTS = files(__package__).joinpath("postgres.sql").read_bytes()

_GONE = f"the table plants is gone; {HOW_TO_RECOVER}"

_T = TypeVar("_T")
_Row = tuple[Any, ...]

# The server itself says that it kept nothing, and that the next attempt may go well.
_KEPT_NOTHING = (errors.SerializationFailure, errors.DeadlockDetected, errors.ReadOnlySqlTransaction)
# A constraint that is not the store's own refuses one plant of a statement, and may take others.
_CONSTRAINTS = (psycopg.IntegrityError, errors.ProgramLimitExceeded, errors.RaiseException)


class PostgresStore(BatchStore):
    """Plants in a table of a database server. An acknowledged plant survives what the server promises.

    All plants of a batch are one statement and so one transaction. It is tried again only while the server says that it
    kept nothing. When a connection is lost or silent after the statement was sent, nobody knows what was kept, and the
    answer is StoreUnavailable. Looking for the rows would not settle it: a fail-over may take them back.
    """

    worker_threads = 4  # Several batches commit at a time.

    def __init__(self, conninfo: str, patience: float = 2.0, max_connections: int = 16) -> None:
        conninfo = make_conninfo(_DEFAULTS, **conninfo_to_dict(conninfo))
        super().__init__(partial(_Pool, conninfo, max_connections), patience)

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


class _Pool(Connections):
    """The connections of one process; each is one caller's at a time."""

    def __init__(self, conninfo: str, max_connections: int, patience: float, created: mmap.mmap) -> None:
        self._patience = patience
        self._created = created
        self._is_closed = False
        self._conninfo = conninfo
        self._turn = threading.Lock()
        # The connections that nobody uses, and None for each that may still be made.
        self._idle: queue.LifoQueue[_Connection | None] = queue.LifoQueue()
        for _ in range(max_connections):
            self._idle.put(None)

    def insert(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        rows = self._run(lambda connection: connection.run(_INSERT, _columns(collect())), deadline)
        stored = {plant_id for (plant_id,) in rows}
        outcomes: Outcomes = []
        for plant in collect():
            outcomes.append(None if plant.id in stored else PlantIdInUse(plant.id))
            stored.discard(plant.id)  # A second plant of the batch with this id is not stored.
        return outcomes

    def find(self, plant_id: int, deadline: float) -> Plant | None:
        rows = self._run(lambda connection: connection.run(_SELECT, [plant_id]), deadline)
        return Plant(plant_id, *rows[0]) if rows else None

    def check(self, deadline: float) -> None:
        self._run(self._check, deadline)

    def close(self) -> None:
        self._is_closed = True
        with suppress(queue.Empty):
            while True:
                if connection := self._idle.get_nowait():
                    connection.close()

    def _run(self, work: Callable[["_Connection"], _T], deadline: float) -> _T:
        """Give what the work gives; try it again while the server says that it kept nothing."""
        pause = 0.005
        try:
            while True:
                connection = self._take(deadline)
                try:
                    return work(connection)
                except _KEPT_NOTHING:
                    if time.monotonic() + pause > deadline:
                        raise
                finally:
                    self._give_back(connection)
                time.sleep(pause)
                pause *= 2  # It also leaves the last attempt as much time as the others took together.
        except (psycopg.DataError, UnicodeEncodeError) as error:
            raise PlantRejected(error) from None
        except _CONSTRAINTS as error:
            raise PlantRejected(StoreUnavailable(_told(error))) from None
        except errors.UndefinedTable:
            raise StoreUnusable(_GONE) from None
        except psycopg.Error as error:
            raise StoreUnavailable(_told(error)) from error

    def _take(self, deadline: float) -> "_Connection":
        while not self._is_closed:
            # In turn: from the queue alone, a thread that has just given a connection back would get it again.
            if not self._turn.acquire(timeout=max(0, deadline - time.monotonic())):
                raise StoreUnavailable("all connections are busy")
            try:
                connection = self._idle.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise StoreUnavailable("all connections are busy") from None
            finally:
                self._turn.release()
            if connection and not connection.has_news():
                connection.deadline = deadline
                return connection
            if connection:
                connection.close()
            self._connect_within(deadline)
        raise StoreUnavailable("the store is closed")

    def _give_back(self, connection: "_Connection") -> None:
        is_usable = connection.pgconn.transaction_status == TransactionStatus.IDLE and not self._is_closed
        if not is_usable:
            connection.close()
        self._idle.put(connection if is_usable else None)

    def _connect_within(self, deadline: float) -> None:
        # In a thread: to look up a host's name, and to try one host after the other, takes as long as it takes. A
        # connection that comes late serves those who come later.
        outcome: Future[None] = Future()
        threading.Thread(target=self._connect, args=(outcome,), name="plants-postgresql", daemon=True).start()
        try:
            outcome.result(timeout=max(0, deadline - time.monotonic()))
        except TimeoutError:
            raise StoreUnavailable("no connection could be made in time") from None

    def _connect(self, outcome: Future[None]) -> None:
        connection = None
        try:
            connection = _Connection.connect(self._conninfo, autocommit=True)
            connection.deadline = time.monotonic() + self._patience
            connection.add_notice_handler(connection.note)
            # In milliseconds, and sooner than the caller leaves: a statement that the server gave up keeps nothing.
            connection.run(_SET_UP, [f"{self._patience * 750:.0f}"])
            self._check(connection)
            self._give_back(connection)
            outcome.set_result(None)
        except Exception as error:
            if connection:
                connection.close()
            self._idle.put(None)
            outcome.set_exception(error)

    def _check(self, connection: "_Connection") -> None:
        faults = connection.run(_FAULTS)
        if faults[:1] == [("is gone",)] and not self._created[0]:
            # Processes that make the table at once may meet in the catalogue in spite of IF NOT EXISTS.
            with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
                connection.execute(_TABLE)
        # Looked at again: the first look may have been older than a table that another process has just made.
        faults = faults and connection.run(_FAULTS)
        if faults:
            raise StoreUnusable(_GONE if faults[0] == ("is gone",) else f"the table plants {faults[0][0]}")
        self._created[0] = 1
        connection.run(_INSERT, [[], [], []])


class _Connection(psycopg.Connection[_Row]):
    """A connection on which nothing waits beyond a deadline, even if the server's machine is gone."""

    deadline = math.inf
    replication_cancelled = False

    def has_news(self) -> bool:
        # What an idle connection has to read is almost always its end: better seen now than after the statement was
        # sent, when it would leave the outcome unknown. Not select(), which takes no descriptor above 1023.
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return bool(poll.poll(0))

    def run(self, query: LiteralString | bytes, parameters: Sequence[object] = ()) -> list[_Row]:
        try:
            cursor = self.execute(query, parameters)
        except errors.ReadOnlySqlTransaction:
            self.close()
            raise
        if self.replication_cancelled:
            self.close()
            raise psycopg.OperationalError("the wait for the synchronous standby was cancelled")
        return cursor.fetchall()

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        return super().wait(gen, interval, max(0.0, min(timeout or math.inf, self.deadline - time.monotonic())))

    def note(self, notice: errors.Diagnostic) -> None:
        # PostgreSQL reports success, with a mere warning, when the wait for a synchronous standby was cancelled.
        self.replication_cancelled |= notice.source_function == "SyncRepWaitForLSN"


def _columns(plants: list[Plant]) -> list[list[object]]:
    # Sorted by id: two batches of the same ids wait for each other, but never in a circle.
    first = {plant.id: plant for plant in reversed(plants)}
    return [list(column) for column in zip(*(first[plant_id] for plant_id in sorted(first)), strict=True)]


def _told(error: psycopg.Error) -> str:
    """Say what happened without what the server says of a statement, which may quote a plant."""
    return f"{type(error).__name__}, SQLSTATE {error.sqlstate}" if error.sqlstate else str(error)
