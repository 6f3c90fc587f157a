"""PostgreSQL, or an engine that speaks its protocol: shared by any number of machines."""

import math
import mmap
import re
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo, timeout_from_conninfo
from psycopg.pq import TransactionStatus

from plants.stores import INT64_MAX, INT64_MIN, Plant, PlantIdInUse, StoreUnavailable
from plants.stores.batch import BatchStore
from plants.stores.breaker import StoreUnusable
from plants.stores.connections import CREATED, HOW_TO_RECOVER, Connections, Outcomes, PlantRejected
from plants.stores.pool import ConnectionPool

_DEFAULTS = (
    "application_name=plants connect_timeout=2 target_session_attrs=read-write "
    "keepalives_idle=10 keepalives_interval=2 keepalives_count=3"
)

_TABLE = b"CREATE TABLE IF NOT EXISTS plants (id bigint PRIMARY KEY, name text NOT NULL, tag text)"
_INSERT = "INSERT INTO plants (id, name, tag) {} ON CONFLICT (id) DO NOTHING RETURNING id"
# Use VALUES: a distributed engine sends each row of VALUES directly to its node, but all rows of a SELECT through one
# node. Use only these sizes, so that there are few different statements for psycopg to prepare.
_INSERTS = {
    rows: _INSERT.format("VALUES " + ", ".join(f"(${n}, ${n + 1}, ${n + 2})" for n in range(1, 3 * rows, 3))).encode()
    for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
}
_INSERT_NOTHING = _INSERT.format("SELECT 0, '', '' WHERE false").encode()
_SELECT = b"SELECT name, tag FROM plants WHERE id = $1"
_SET_UP = b"""
    SELECT set_config('statement_timeout', $1, false), set_config('client_min_messages', 'warning', false),
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
        THEN set_config('synchronous_commit', 'on', false) END
"""
_SET_LOCK_TIMEOUT = b"SELECT set_config('lock_timeout', $1, false)"
# Each row is a reason why the table could reject or lose a plant.
_FAULTS = files(__package__).joinpath("postgres.sql").read_bytes()

_GONE = f"the table plants is gone; {HOW_TO_RECOVER}"

_LOCK_TIMEOUT_MS = 200  # A batch waits this long for another transaction that has inserted one of the batch's ids.
_SHORT_LOCK_TIMEOUT_MS = 10  # If such a wait times out, the batch tries once more, and waits only this long.
_CONTENTION_SECONDS = 1.0  # If the second try also times out, all batches use the short timeout for this long.
# If a row is not inserted, its id is in use, or the table has changed; the table is checked at most this often.
_CHECK_SECONDS = 0.1

_T = TypeVar("_T")
_Row = tuple[Any, ...]

# The server reports that nothing was stored and that a retry may succeed.
_RETRYABLE_ERRORS = (errors.SerializationFailure, errors.DeadlockDetected, errors.ReadOnlySqlTransaction)
# The server rejects a statement because of one row, and might accept the others.
_REJECTIONS = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded, errors.RaiseException)


class PostgresStore(BatchStore):
    """Plants in a table of a database server. An acknowledged plant is as durable as the server's commits.

    A batch is one statement and so one transaction. It is retried only if the server reports that nothing was stored.
    If the connection is lost or silent after the statement was sent, the outcome is unknown, and ``add`` raises
    StoreUnavailable. Reading the rows back would not settle it, because a failover may undo them.
    """

    worker_threads = 4  # Several batches commit at a time.

    def __init__(self, conninfo: str, timeout: float = 2.0, max_connections: int = 16) -> None:
        parameters = conninfo_to_dict(conninfo)
        # Check the numbers here, because libpq would report a bad number only when it connects.
        timeout_from_conninfo(parameters)
        _ = [int(port or 0) for port in str(parameters.get("port", "")).split(",")]
        # If an @ in the password is not encoded, libpq's errors would show the rest of the password as the host's name.
        if re.search("[^,]@", str(parameters.get("host", ""))):
            raise ValueError("the host has an @")
        conninfo = make_conninfo(_DEFAULTS, **parameters | {"client_encoding": "UTF8"})
        super().__init__(partial(PostgresConnections, _split_hosts(conninfo), max_connections), timeout)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store for a libpq connection URL, which may name several hosts.

        :raises ValueError: libpq cannot parse the URL.
        """
        try:
            return cls(url)
        except (psycopg.ProgrammingError, ValueError):
            # libpq's message may quote the password.
            raise ValueError(
                "the URL of a PostgreSQL store is postgresql://user:password@host:port/database, with libpq's options"
            ) from None


class PostgresConnections(Connections):
    """The pooled connections of one process."""

    def __init__(self, conninfos: list[str], max_connections: int, timeout: float, shared_state: mmap.mmap) -> None:
        self._conninfos = conninfos.copy()  # one per host; the host that last accepted writes comes first
        self._timeout = timeout
        # A canceled statement stores nothing, so let the server cancel a slow statement before its caller times out.
        self._statement_timeout_ms = int(timeout * 750)
        self._shared_state = shared_state
        self._pool = ConnectionPool(self._connect, max_connections)
        self._contended_until = 0.0
        self._checked_at = 0.0  # when the table was last checked because a row had not been inserted

    def insert(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        stored = self._run(partial(self._insert, collect), deadline)
        # A trigger created after the last check may have suppressed an insert, so check the table.
        if len(stored) < len(collect()) and time.monotonic() - self._checked_at > _CHECK_SECONDS:
            self.check(deadline)
            self._checked_at = time.monotonic()
        outcomes: Outcomes = []
        for plant in collect():
            outcomes.append(None if plant.id in stored else PlantIdInUse(plant.id))
            stored.discard(plant.id)  # A second plant of the batch with this id is not stored.
        return outcomes

    def find(self, plant_id: int, deadline: float) -> Plant | None:
        rows = self._run(lambda connection: connection.run(_SELECT, [str(plant_id)]), deadline)
        return Plant(plant_id, *rows[0]) if rows else None

    def check(self, deadline: float) -> None:
        self._run(self._check, deadline)

    def close(self) -> None:
        self._pool.close()

    def _run(self, work: Callable[["_Connection"], _T], deadline: float) -> _T:
        """Return what the work returns; retry while the server reports that nothing was stored."""
        pause = 0.005
        while True:
            try:
                with self._pool.connection(deadline) as connection:
                    connection.deadline = deadline
                    return work(connection)
            except psycopg.Error as error:
                if not isinstance(error, _RETRYABLE_ERRORS) or time.monotonic() + pause > deadline:
                    raise _unavailable(error) from None
            time.sleep(pause)
            pause *= 2  # exponential backoff

    def _insert(self, collect: Callable[[], list[Plant]], connection: "_Connection") -> set[int]:
        first_by_id = {plant.id: plant for plant in reversed(collect())}
        plants = sorted(first_by_id.values())  # Sort them, so that two batches with common ids cannot deadlock.
        contended = time.monotonic() < self._contended_until
        try:
            for lock_timeout in [_SHORT_LOCK_TIMEOUT_MS] if contended else [_LOCK_TIMEOUT_MS, _SHORT_LOCK_TIMEOUT_MS]:
                with suppress(errors.LockNotAvailable):
                    return connection.insert(plants, lock_timeout)
                # The whole table may be locked. Wait for its lock; if this wait also times out, the whole batch fails.
                self._insert_nothing(connection)
        except _REJECTIONS as error:
            raise PlantRejected(_unavailable(error) if error.sqlstate else error) from None
        except UnicodeEncodeError as error:
            raise PlantRejected(error) from None
        self._contended_until = time.monotonic() + _CONTENTION_SECONDS
        raise PlantRejected(StoreUnavailable("another transaction holds the id"))

    def _check(self, connection: "_Connection") -> None:
        created = str(self._shared_state[0] == CREATED)
        faults = connection.run(_FAULTS, [created])
        if faults[:1] == [("is gone",)] and self._shared_state[0] != CREATED:
            # Processes that create the table at the same time may collide in the catalog despite IF NOT EXISTS.
            with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
                connection.execute(_TABLE)
        # Check again, because this or another process may have created the table since the first query.
        faults = faults and connection.run(_FAULTS, [created])
        if faults:
            raise StoreUnusable(_GONE if faults[0] == ("is gone",) else f"the table plants {faults[0][0]}")
        self._shared_state[0] = CREATED
        self._insert_nothing(connection)

    def _insert_nothing(self, connection: "_Connection") -> None:
        """Raise a psycopg.Error if the role may not insert plants or the table is locked."""
        connection.set_lock_timeout(max(_SHORT_LOCK_TIMEOUT_MS, self._statement_timeout_ms - _LOCK_TIMEOUT_MS))
        connection.run(_INSERT_NOTHING)

    def _connect(self) -> "_Connection":
        """Connect to the first host that accepts writes, beginning with the one that did so last."""
        failures = []
        for conninfo in self._conninfos.copy():
            try:
                connection = _Connection.connect(conninfo, autocommit=True, cursor_factory=psycopg.RawCursor)
            except psycopg.OperationalError as error:
                failures.append(str(error))
                continue
            self._conninfos.remove(conninfo)
            self._conninfos.insert(0, conninfo)
            try:
                connection.deadline = time.monotonic() + self._timeout
                connection.add_notice_handler(connection.note_warning)
                connection.run(_SET_UP, [str(self._statement_timeout_ms)])
                self._check(connection)
            except BaseException as error:
                connection.close()
                raise (_unavailable(error) if isinstance(error, psycopg.Error) else error) from None
            return connection
        raise StoreUnavailable("; ".join(failures))


class _Connection(psycopg.Connection[_Row]):
    """A connection whose waits end at a deadline, even if the server's machine is gone."""

    deadline = math.inf
    _lock_timeout: int | None = None
    _warning: str | None = None

    def insert(self, plants: list[Plant], lock_timeout: int) -> set[int]:
        """Insert plants and return the ids that were not in use."""
        self.set_lock_timeout(lock_timeout)
        rows = next(rows for rows in _INSERTS if rows >= len(plants))
        # A repeated plant is not inserted twice, because its id is then in use.
        padded = plants + plants[-1:] * (rows - len(plants))
        self._warning = None
        inserted = self.run(_INSERTS[rows], [value for plant in padded for value in _parameters(plant)])
        if self._warning:
            self.close()
            raise psycopg.OperationalError(self._warning)
        return {plant_id for (plant_id,) in inserted}

    def run(self, query: bytes, parameters: Sequence[str | None] = ()) -> list[_Row]:
        try:
            return self.execute(query, parameters).fetchall()
        except errors.ReadOnlySqlTransaction:
            self.close()
            raise

    def set_lock_timeout(self, milliseconds: int) -> None:
        if milliseconds != self._lock_timeout:
            self.run(_SET_LOCK_TIMEOUT, [str(milliseconds)])
            self._lock_timeout = milliseconds

    def is_idle(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    def has_unread_input(self) -> bool:
        # Check before each use, because the outcome of a statement is unknown if the server has closed the connection.
        poll = select.poll()  # select() accepts no descriptor above 1023.
        poll.register(self, select.POLLIN)
        return bool(poll.poll(0))

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        return super().wait(gen, interval, max(0.0, min(timeout or math.inf, self.deadline - time.monotonic())))

    def note_warning(self, notice: errors.Diagnostic) -> None:
        # If a wait for a synchronous standby is canceled, PostgreSQL reports success and a warning. Citus relays a
        # node's warning under another function name, so any warning may be this one.
        if notice.severity_nonlocalized == "WARNING":
            self._warning = f"a warning from {notice.source_function} leaves the outcome unknown"


def _split_hosts(conninfo: str) -> list[str]:
    """Return a connection string for each host, unless libpq is to choose one at random."""
    parameters = conninfo_to_dict(conninfo)
    if parameters.get("load_balance_hosts") == "random":
        return [conninfo]
    lists = {
        name: str(parameters[name]).split(",")
        for name in ("host", "hostaddr", "port")
        if "," in str(parameters.get(name))
    }
    hosts = [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    return [make_conninfo(conninfo, **host) for host in hosts] or [conninfo]


def _parameters(plant: Plant) -> tuple[str, str, str | None]:
    if not INT64_MIN <= plant.id <= INT64_MAX:
        raise psycopg.DataError("an id is a 64-bit integer")
    # Send the id as text, because psycopg chooses an int's type by its value, and each type needs another statement.
    return str(plant.id), plant.name, plant.tag


def _unavailable(error: psycopg.Error) -> StoreUnavailable:
    if isinstance(error, errors.UndefinedTable):
        return StoreUnusable(_GONE)
    # Omit the server's message about a statement, because it may quote a plant.
    return StoreUnavailable(f"{type(error).__name__}, SQLSTATE {error.sqlstate}" if error.sqlstate else str(error))
