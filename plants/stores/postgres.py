"""PostgreSQL, or an engine that speaks its protocol: shared by any number of machines."""

import logging
import math
import os
import re
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo, timeout_from_conninfo
from psycopg.pq import TransactionStatus

from plants.stores import INT64_MAX, INT64_MIN, Plant, PlantIdInUse, StoreMissing, StoreUnavailable, StoreUnusable
from plants.stores.group_commit import BatchStore, Outcomes, PlantRejected

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
# A transaction that inserts nothing waits for no standby. Yet the one that inserted these rows may not have waited for
# its standby either, because the server crashed. The message makes the commit wait, on each node that has a row.
_SELECT_IN_USE = b"SELECT id, pg_logical_emit_message(true, 'plants', '') FROM plants WHERE id = ANY ($1::bigint[])"
_SET_UP = b"""
    SELECT set_config('statement_timeout', $1, false), set_config('client_min_messages', 'warning', false),
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
        THEN set_config('synchronous_commit', 'on', false) END
"""
_SET_LOCK_TIMEOUT = b"SELECT set_config('lock_timeout', $1, false)"
# Each row is a reason why the table could lose a plant.
_FAULTS = files(__package__).joinpath("postgres.sql").read_bytes()

_GONE = (
    "the table plants is gone; it is not recreated, because ids already in use would become available; "
    "restore it, and do not restart before that"
)

_NO_SYNCHRONOUS_COMMIT = b"""
    SELECT current_user FROM pg_extension WHERE extname = 'citus' AND NOT EXISTS (
        SELECT FROM pg_db_role_setting, pg_roles, unnest(setconfig) AS setting WHERE setrole = pg_roles.oid
        AND rolname = current_user AND setting IN ('synchronous_commit=on', 'synchronous_commit=remote_apply'))
"""
_NO_SERVICE = (
    "a PostgreSQL store takes no service= and no PGSERVICE, because libpq would look up the service's host "
    "while the whole process waits; name the host in the URL"
)

_LOCK_TIMEOUT_MS = 200  # A batch waits this long for another transaction that has inserted one of the batch's ids.
_SHORT_LOCK_TIMEOUT_MS = 10  # If such a wait times out, the batch tries once more, and waits only this long.
_CONTENTION_SECONDS = 1.0  # If the second try also times out, all batches use the short timeout for this long.
RECHECK_SECONDS = 5.0  # The table is checked again at least this often, because an operator may alter it.

_log = logging.getLogger(__name__)

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
        super().__init__(timeout)
        parameters = conninfo_to_dict(conninfo)
        # Check the numbers here, because libpq would report a bad number only when it connects.
        timeout_from_conninfo(parameters)
        _ = [int(port or 0) for port in str(parameters.get("port", "")).split(",")]
        # If an @ in the password is not encoded, libpq's errors would show the rest of the password as the host's name.
        if re.search("[^,]@", str(parameters.get("host", ""))):
            raise ValueError("the host has an @")
        # One per host; the host that last accepted writes comes first.
        self._conninfos = _split_hosts(make_conninfo(_DEFAULTS, **parameters | {"client_encoding": "UTF8"}))
        # A canceled statement stores nothing, so let the server cancel a slow statement before its caller times out.
        self._statement_timeout_ms = int(timeout * 750)
        # Whoever has a slot may use a connection. SimpleQueue.put never blocks, so a caller that is interrupted, for
        # example by gevent's Timeout, always puts its slot back.
        self._slots: SimpleQueue[None] = SimpleQueue()
        for _ in range(max_connections):
            self._slots.put(None)
        self._idle: list[_Connection] = []  # the one that was used last at the end
        self._failure_count = 0  # of connections; one that was opened before the last failure is not used again
        self._contended_until = 0.0
        self._checked_at = 0.0  # when the table was last checked
        self._role_checked = False

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store for a libpq connection URL, which may name several hosts.

        :raises ValueError: libpq cannot parse the URL, or would block the process to connect.
        """
        try:
            has_service = "service" in conninfo_to_dict(url) or os.environ.get("PGSERVICE")
            store = cls(url)
        except (psycopg.ProgrammingError, ValueError):
            # libpq's message may quote the password.
            raise ValueError(
                "the URL of a PostgreSQL store is postgresql://user:password@host:port/database, with libpq's options"
            ) from None
        if has_service:
            raise ValueError(_NO_SERVICE)
        return store

    def _insert(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        stored = self._run(partial(self._insert_batch, collect), deadline)
        plants = collect()
        in_use: set[int] = set()
        if not_stored := {plant.id for plant in plants} - stored:
            in_use = self._run(lambda connection: connection.find_in_use(not_stored), deadline)
            if in_use != not_stored:
                # A new trigger may have suppressed the insert; then this raises StoreUnusable.
                self._check(deadline)
        outcomes: Outcomes = []
        for plant in plants:
            if plant.id in stored:
                outcomes.append(None)
                stored.remove(plant.id)
                in_use.add(plant.id)  # A second plant of the batch with this id is not stored.
            else:
                unknown = StoreUnavailable("a plant was not stored, but its id is not in use either")
                outcomes.append(PlantIdInUse(plant.id) if plant.id in in_use else unknown)
        return outcomes

    def _find(self, plant_id: int, deadline: float) -> Plant | None:
        rows = self._run(lambda connection: connection.run(_SELECT, [str(plant_id)]), deadline)
        return Plant(plant_id, *rows[0]) if rows else None

    def _check(self, deadline: float) -> None:
        self._run(self._check_table, deadline)

    def _try_insert(self, deadline: float) -> None:
        self._check(deadline)

    def _disconnect(self, deadline: float) -> None:  # noqa: ARG002  # Closing a connection does not wait.
        while idle := self._take_idle():
            idle.close()

    def _run(self, work: Callable[["_Connection"], _T], deadline: float) -> _T:
        """Return what the work returns; retry while the server reports that nothing was stored."""
        pause = 0.005
        while True:
            try:
                with self._connection(deadline) as connection:
                    return work(connection)
            except psycopg.Error as error:
                if not isinstance(error, _RETRYABLE_ERRORS) or time.monotonic() + pause > deadline:
                    raise _unavailable(error) from None
            time.sleep(pause)
            pause *= 2  # exponential backoff

    @contextmanager
    def _connection(self, deadline: float) -> Iterator["_Connection"]:
        try:
            self._slots.get(timeout=max(0, deadline - time.monotonic()))
        except Empty:
            raise StoreUnavailable("no connection in time") from None
        connection = None
        try:
            self._check_open()
            connection = self._take_idle() or self._connect()
            connection.deadline = deadline
            yield connection
        finally:
            if connection:
                self._put_back(connection)
            self._slots.put(None)

    def _take_idle(self) -> "_Connection | None":
        with suppress(IndexError):  # Another thread may take the last one.
            while connection := self._idle.pop():
                if connection.failure_count == self._failure_count and not connection.has_unread_input():
                    return connection
                connection.close()
        return None

    def _put_back(self, connection: "_Connection") -> None:
        is_idle = connection.is_idle()
        self._failure_count += not is_idle  # What silenced this connection may have silenced the others, too.
        if is_idle and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    def _insert_batch(self, collect: Callable[[], list[Plant]], connection: "_Connection") -> set[int]:
        if time.monotonic() - self._checked_at > RECHECK_SECONDS:
            self._check_for_faults(connection)
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
        except psycopg.OperationalError as error:
            if not (error.sqlstate or "").startswith("08"):
                raise
            # The server has lost its connection to another node of a cluster, which may have committed its part.
            raise PlantRejected(_unavailable(error), may_be_stored=True) from None
        except UnicodeEncodeError as error:
            raise PlantRejected(error) from None
        self._contended_until = time.monotonic() + _CONTENTION_SECONDS
        raise PlantRejected(StoreUnavailable("another transaction holds the id"))

    def _check_table(self, connection: "_Connection") -> None:
        self._check_for_faults(connection)
        self._insert_nothing(connection)

    def _check_for_faults(self, connection: "_Connection") -> None:
        """Raise StoreUnusable if the table could lose a plant."""
        self._checked_at = time.monotonic()
        faults = connection.run(_FAULTS, [str(not self._may_create)])
        if not faults:
            self._may_create = False
            return
        [reason], *_ = faults
        if reason == "is gone":
            raise StoreMissing(_GONE)
        raise (StoreMissing if reason.startswith("is missing") else StoreUnusable)(f"the table plants {reason}")

    def _insert_nothing(self, connection: "_Connection") -> None:
        """Raise a psycopg.Error if the role may not insert plants or the table is locked."""
        connection.set_lock_timeout(max(_SHORT_LOCK_TIMEOUT_MS, self._statement_timeout_ms - _LOCK_TIMEOUT_MS))
        connection.run(_INSERT_NOTHING)

    def _connect(self) -> "_Connection":
        """Connect to the first host that accepts writes and has the table, beginning with the one that did so last."""
        failure_count, may_create = self._failure_count, self._may_create  # Another thread may change them meanwhile.
        try:
            connection = self._connect_to_first_host()
        except StoreMissing:
            if not may_create:
                raise
            connection = self._connect_to_first_host(create=True)
        connection.failure_count = failure_count
        return connection

    def _connect_to_first_host(self, *, create: bool = False) -> "_Connection":
        failures: list[str] = []
        missing: StoreMissing | None = None
        for conninfo in self._conninfos.copy():
            try:
                connection = _Connection.connect(conninfo, autocommit=True, cursor_factory=psycopg.RawCursor)
                try:
                    self._set_up(connection, create=create)
                except BaseException:
                    connection.close()
                    raise
            except (psycopg.OperationalError, UnicodeError) as error:  # A host's name may have no encoding.
                failures.append(_reason(error))
                continue
            except StoreMissing as error:
                missing = error
                continue
            self._conninfos.remove(conninfo)
            self._conninfos.insert(0, conninfo)
            return connection
        raise missing or StoreUnavailable("; ".join(failures))

    def _set_up(self, connection: "_Connection", *, create: bool) -> None:
        connection.deadline = time.monotonic() + self._timeout
        connection.add_notice_handler(connection.note_warning)
        connection.run(_SET_UP, [str(self._statement_timeout_ms)])
        try:
            self._check_table(connection)
        except StoreMissing as missing:
            if not create or missing.args != (_GONE,):
                raise
            # Processes that create the table at the same time may collide in the catalog despite IF NOT EXISTS.
            with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
                connection.execute(_TABLE)
                self.is_new = True
                _log.warning("the table plants did not exist; a new one was created, without plants")
            self._check_table(connection)
        if not self._role_checked:
            self._role_checked = True
            for (role,) in connection.run(_NO_SYNCHRONOUS_COMMIT):
                _log.warning("a node may lose plants in a crash; send: ALTER ROLE %s SET synchronous_commit = on", role)


class _Connection(psycopg.Connection[_Row]):
    """A connection whose waits end at a deadline, even if the server's machine is gone."""

    deadline = math.inf
    failure_count = 0  # how many connections of the store had failed when this one was opened
    _lock_timeout: int | None = None
    _warning: str | None = None

    def insert(self, plants: list[Plant], lock_timeout: int) -> set[int]:
        """Insert plants and return the ids that were not in use."""
        self.set_lock_timeout(lock_timeout)
        rows = next(rows for rows in _INSERTS if rows >= len(plants))
        # A repeated plant is not inserted twice, because its id is then in use. Repeat the shortest one.
        shortest = min(plants, key=lambda plant: len(plant.name) + len(plant.tag or ""))
        padded = plants + [shortest] * (rows - len(plants))
        inserted = self.run_durably(_INSERTS[rows], [value for plant in padded for value in _parameters(plant)])
        return {plant_id for (plant_id,) in inserted}

    def find_in_use(self, plant_ids: set[int]) -> set[int]:
        """Return those of the ids that are in use, once their rows are as durable as those of an insert."""
        rows = self.run_durably(_SELECT_IN_USE, [f"{{{','.join(map(str, plant_ids))}}}"])
        return {plant_id for plant_id, _ in rows}

    def run_durably(self, query: bytes, parameters: Sequence[str | None]) -> list[_Row]:
        """Run a statement that commits; raise an OperationalError if the server does not promise durability."""
        self._warning = None
        rows = self.run(query, parameters)
        if self._warning:
            self.close()
            raise psycopg.OperationalError(self._warning)
        return rows

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
    """Return a connection string for each host."""
    parameters = conninfo_to_dict(conninfo)
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


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreMissing(_GONE) if isinstance(error, errors.UndefinedTable) else StoreUnavailable(_reason(error))


def _reason(error: Exception) -> str:
    # Omit the server's message about a statement, because it may quote a plant.
    sqlstate = getattr(error, "sqlstate", None)
    return f"{type(error).__name__}, SQLSTATE {sqlstate}" if sqlstate else str(error)
