"""PostgreSQL, or an engine that speaks its protocol: shared by any number of machines."""

import math
import mmap
import queue
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from plants.stores import Plant, PlantIdInUse, StoreUnavailable
from plants.stores.batch import BatchStore, Engine, Fates
from plants.stores.outage import MEND, StoreUnusable, one_line

_DEFAULTS = {
    "application_name": "plants",
    "connect_timeout": "2",
    "keepalives_idle": "10",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "target_session_attrs": "read-write",
}

_TABLE = "CREATE TABLE IF NOT EXISTS plants (id bigint PRIMARY KEY, name text NOT NULL, tag text)"
_INSERT = (
    "INSERT INTO plants (id, name, tag) SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[]) "
    "ON CONFLICT (id) DO NOTHING RETURNING id"
)
_INSERT_NOTHING = "INSERT INTO plants (id, name) SELECT 0, '' WHERE false ON CONFLICT (id) DO NOTHING"
_SELECT = "SELECT name, tag FROM plants WHERE id = %s"
_SET_UP = """
    SELECT set_config('statement_timeout', %s, false),
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
        THEN set_config('synchronous_commit', 'on', false) END
"""
_FAULTS = """
    WITH t AS (SELECT to_regclass('plants')::oid AS t), of AS (SELECT a.* FROM pg_attribute a, t
        WHERE attrelid = t AND attnum > 0 AND NOT attisdropped)
    SELECT 'is a view, or of another kind' FROM pg_class, t WHERE oid = t AND relkind NOT IN ('r', 'p')
    UNION ALL SELECT 'is UNLOGGED: a crash of the server empties it' FROM pg_class, t WHERE relpersistence <> 'p'
        AND (oid = t OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = t))
    UNION ALL SELECT 'has row security' FROM pg_class, t WHERE oid = t AND relrowsecurity
    UNION ALL SELECT 'lacks one of id bigint, name text, tag text' WHERE (SELECT count(*) FROM of WHERE
        (attname, format_type(atttypid, atttypmod)) IN (('id', 'bigint'), ('name', 'text'), ('tag', 'text'))) < 3
    UNION ALL SELECT 'wants a value in ' || attname FROM of WHERE attnotnull AND attname NOT IN ('id', 'name')
        AND (attname = 'tag' OR NOT atthasdef AND attidentity = '')
    UNION ALL SELECT 'makes a value of its own for ' || attname FROM of WHERE attname IN ('id', 'name', 'tag')
        AND (attidentity = 'a' OR attgenerated <> '')
    UNION ALL SELECT 'has no unique key on id alone' FROM t WHERE NOT EXISTS (SELECT FROM pg_index, of
        WHERE indrelid = t AND attname = 'id' AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL
        AND indnkeyatts = 1 AND indkey[0] = attnum)
    UNION ALL SELECT 'has another unique key' FROM pg_index, of, t WHERE indrelid = t AND attname = 'id' AND indisunique
        AND NOT attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
    UNION ALL SELECT 'has the constraint ' || conname FROM pg_constraint, t WHERE conrelid = t
        AND contype IN ('c', 'f', 'x')
    UNION ALL SELECT 'has the trigger ' || tgname FROM pg_trigger, t WHERE tgrelid = t AND NOT tgisinternal
        AND tgenabled <> 'D' AND tgtype & 4 > 0
    UNION ALL SELECT 'has the rule ' || rulename FROM pg_rewrite, t WHERE ev_class = t AND ev_type = '3'
    UNION ALL SELECT 'is on a server with fsync = off' WHERE current_setting('fsync', true) = 'off'
"""

_T = TypeVar("_T")
_Row = tuple[Any, ...]

# In each of these cases the server itself says that it kept nothing.
_KEPT_NOTHING = (errors.SerializationFailure, errors.DeadlockDetected, errors.ReadOnlySqlTransaction)
# A statement is refused for the sake of one plant in it.
_FOR_ONE_PLANT = (
    psycopg.DataError,
    psycopg.IntegrityError,
    errors.ProgramLimitExceeded,
    errors.RaiseException,
    UnicodeEncodeError,
)


class PostgresStore(BatchStore):
    """Plants in a table of a database server. An acknowledged plant survives what the server promises.

    All plants of a batch are one statement and so one transaction. It is tried again only while it is certain that
    nothing was kept: the server refused it in a way that may pass (a serialization failure, a server that has become a
    standby). When a connection is lost or silent after the statement was sent, nobody knows what was kept, and the
    answer is StoreUnavailable. Looking for the rows would not settle it: the same plant may be another client's, and a
    row of our own that a primary shows after the loss may not have reached its synchronous standby, so that a fail-over
    would take it back. Who tries again after StoreUnavailable may therefore be told that the id is in use, by the own
    earlier attempt.

    The table is made only if the store never had one.
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
        return _Pool(self._conninfo, self._patience, self._max_connections, self._was_made)


class _Pool(Engine):
    """The connections of one process; each is one caller's at a time."""

    def __init__(self, conninfo: str, patience: float, max_connections: int, was_made: mmap.mmap) -> None:
        super().__init__()
        self._conninfo = conninfo
        self._patience = patience
        self._was_made = was_made
        self._idle: list[_Connection] = []
        self._places = threading.Semaphore(max_connections)
        self._closed = False

    def keep(self, plants: list[Plant], deadline: float) -> Fates:
        # Two processes that insert the same ids in the same order wait for each other, but never in a circle.
        plants = sorted(plants)
        try:
            rows = self._execute(_INSERT, [list(column) for column in zip(*plants, strict=True)], deadline)
        except _FOR_ONE_PLANT as error:
            return self._keep_halves(plants, deadline) if len(plants) > 1 else {plants[0].id: _fate(error)}
        kept = {plant_id for (plant_id,) in rows}
        return {plant.id: PlantIdInUse(plant.id) for plant in plants if plant.id not in kept}

    def _keep_halves(self, plants: list[Plant], deadline: float) -> Fates:
        fates: Fates = {}
        middle = len(plants) // 2
        for half in (plants[:middle], plants[middle:]):
            try:
                fates |= self.keep(half, deadline)
            except StoreUnavailable as error:
                fates |= {plant.id: error for plant in half}
        return fates

    def find(self, plant_id: int, deadline: float) -> Plant | None:
        rows = self._execute(_SELECT, [plant_id], deadline)
        return Plant(plant_id, *rows[0]) if rows else None

    def check(self, deadline: float) -> None:
        with self._connection(deadline) as connection:
            connection.deadline = deadline
            self._check_table(connection)
        self._execute(_INSERT_NOTHING, [], deadline)

    def disconnect(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def close(self, deadline: float) -> None:  # noqa: ARG002  # nothing waits here
        self._closed = True
        self.disconnect()

    def _execute(self, query: LiteralString, parameters: list[Any], deadline: float) -> list[_Row]:
        pause = 0.005
        while True:
            try:
                with self._connection(deadline) as connection:
                    return connection.run(query, parameters, deadline)
            except _KEPT_NOTHING as error:
                if time.monotonic() + pause > deadline:
                    raise _unavailable(error) from error
            time.sleep(pause)
            pause *= 2

    @contextmanager
    def _connection(self, deadline: float) -> Iterator["_Connection"]:
        """Give a connection that the server has not closed.

        :raises StoreUnavailable: there is none, or something happened to it that says nothing of the plants.
        """
        if not self._places.acquire(timeout=max(0, deadline - time.monotonic())):
            raise StoreUnavailable("all connections are busy")
        try:
            connection = self._take(deadline)
            try:
                yield connection
            finally:
                if connection.pgconn.transaction_status == TransactionStatus.IDLE and not self._closed:
                    self._idle.append(connection)
                else:
                    connection.close()
        except (*_KEPT_NOTHING, *_FOR_ONE_PLANT):
            raise
        except psycopg.Error as error:
            raise _unavailable(error) from error
        finally:
            self._places.release()

    def _take(self, deadline: float) -> "_Connection":
        while True:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            while self._idle:
                with suppress(IndexError):
                    connection = self._idle.pop()
                    # What an idle connection has to read is almost always its end: better seen now than after the
                    # statement was sent, when it would leave the outcome unknown.
                    if not select.select([connection], [], [], 0)[0]:
                        return connection
                    connection.close()
            # In a thread of its own: to look up a host's name, and to try one host after the other, takes as long as
            # it takes. A connection that comes late serves those who come later.
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
        connection.deadline = time.monotonic() + self._patience
        connection.add_notice_handler(connection.note)
        # In milliseconds, and sooner than the caller leaves: a statement that the server gave up keeps nothing.
        connection.execute(_SET_UP, [f"{self._patience * 750:.0f}"])
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise StoreUnusable("the database's encoding is not UTF8")
        self._check_table(connection)

    def _check_table(self, connection: "_Connection") -> None:
        if not connection.has_table():
            if self._was_made[0]:
                raise StoreUnusable(f"the table plants is gone; {MEND}")
            # Processes that make the table at once may meet in the catalogue in spite of IF NOT EXISTS.
            with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
                connection.execute(_TABLE)
        faults = connection.execute(_FAULTS).fetchall()
        if faults:
            raise StoreUnusable(f"the table plants {' and '.join(fault for (fault,) in faults)}")
        self._was_made[0] = 1


class _Connection(psycopg.Connection[_Row]):
    """A connection on which nothing waits beyond a deadline, even if the server's machine is gone."""

    deadline = math.inf
    replication_cancelled = False

    def run(self, query: LiteralString, parameters: list[Any], deadline: float) -> list[_Row]:
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

    def has_table(self) -> bool:
        return self.execute("SELECT to_regclass('plants')").fetchone() != (None,)

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        return super().wait(gen, interval, max(0.0, min(timeout or math.inf, self.deadline - time.monotonic())))

    def note(self, notice: errors.Diagnostic) -> None:
        # PostgreSQL reports success, with a mere warning, when the wait for a synchronous standby was cancelled.
        self.replication_cancelled |= notice.source_function == "SyncRepWaitForLSN"


def _unavailable(error: psycopg.Error) -> StoreUnavailable:
    """Say what happened without what the server says of a statement, which may quote a plant."""
    if isinstance(error, errors.UndefinedTable):
        return StoreUnusable(f"the table plants is gone; {MEND}")
    text = f"{type(error).__name__}, SQLSTATE {error.sqlstate}" if error.sqlstate else str(error)
    return StoreUnavailable(one_line(text))


def _fate(error: Exception) -> Exception:
    """Give what the one is told for whose plant a statement was refused."""
    if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.DataError):
        return _unavailable(error)
    return error
