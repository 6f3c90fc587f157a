"""PostgreSQL, or Citus through its coordinator: shared by any number of machines.

Statements name the table that the store found first, with its schema, and return where they ran: the table's oid and
the server's process. So a plant is acknowledged only if it is in that table, and only if the connection's own settings
were in force. A thread of the pool opens connections; a caller waits only for an idle one.
"""

import logging
import math
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from importlib.resources import files
from typing import Any, Self, TypeVar

import psycopg
from psycopg import capabilities, errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo, timeout_from_conninfo
from psycopg.pq import Conninfo, TransactionStatus

from plants.stores import (
    COLUMNS,
    TABLE_GONE,
    Plant,
    PlantIdInUse,
    PlantRefused,
    StoreMissing,
    StoreUnavailable,
    StoreUnusable,
)
from plants.stores.group_commit import BatchStore, Outcomes, PlantRejected

_DEFAULTS = (
    "application_name=plants connect_timeout=2 target_session_attrs=read-write "
    "keepalives_idle=10 keepalives_interval=2 keepalives_count=3"
)

_TYPES = {int: "bigint", str: "text"}
_NAMES = ", ".join(Plant._fields)
_CREATE = f"CREATE TABLE plants ({', '.join(column.define(_TYPES) for column in COLUMNS)})"
_DISTRIBUTE = "SELECT create_distributed_table('plants', 'id', shard_count => 64)"
# A statement inserts one of these numbers of rows, so that there are few different statements for psycopg to prepare.
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
#: Makes a connection report a commit only once it was flushed, whatever the role's own setting is.
FLUSH_COMMITS = b"""set_config('synchronous_commit',
    CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)"""
_SET_UP = b"""
    SELECT pg_backend_pid(), EXISTS (SELECT FROM pg_extension WHERE extname = 'citus'),
        set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false),
        set_config('client_min_messages', 'warning', false),
"""
# One row: why the table could lose a plant, or NULL, and what the store needs to know of the table.
_INSPECT = files(__package__).joinpath("postgres.sql").read_bytes()
_EXPECTED = [
    f"{{{','.join(values)}}}"
    for values in zip(*((column.name, _TYPES[column.type], str(column.nullable)) for column in COLUMNS), strict=True)
]
_INSPECT_CITUS = b"""
    SELECT CASE
    WHEN (SELECT groupid FROM pg_dist_local_group) <> 0 THEN 'is on a worker of Citus; name the coordinator in the URL'
    WHEN NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = $1::oid) THEN
        'is local to one node; on the coordinator, its operator must send: ' || $2
    WHEN NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = $1::oid AND partmethod = 'h')
        THEN 'is not distributed by a hash of id'
    WHEN EXISTS (SELECT FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) WHERE logicalrelid = $1::oid
        GROUP BY shardid HAVING count(*) > 1) THEN 'has a replication factor above 1'
    -- A node's own settings count for its commits, so ask each by its effect. A node that is down does not respond.
    ELSE (SELECT 'is on a node without synchronous_commit; its operator must send: ALTER ROLE '
        || quote_ident(current_user) || ' SET synchronous_commit = on, on node ' || string_agg(nodeid::text, ', ')
        FROM run_command_on_all_nodes('SHOW synchronous_commit') WHERE success AND result IN ('off', 'local')
        HAVING count(*) > 0) END
"""

# A transaction that inserts nothing waits for no standby. The message makes its commit wait.
_WRITE = "pg_logical_emit_message(true, 'plants', '')"

_POOLER = "a pooler changes the server's process between transactions; PgBouncer needs pool_mode = session"
_HELD = "another transaction holds the id"
_URL_SYNTAX = "the URL of a PostgreSQL store is postgresql://user:password@host:port/database, with libpq's options"

LOCK_TIMEOUT_MS = 100  # A batch waits this long for another transaction that has inserted one of the batch's ids.
HELD_SECONDS = 2.0  # Such an id is then left out of batches for this long, because each would wait for it again.
MAX_PAUSE_SECONDS = 0.1  # A statement that the server reports as not done is sent again, after growing pauses.
_RETRY_SECONDS = 1.0  # If the server refuses a further connection, the pool tries again after this long.
_PROBE_SECONDS = 0.5  # A second connection through a pooler may wait this long for a process of the server.
_CANCEL_SECONDS = 0.3  # A caller whose statement timed out may wait this long until it is canceled.
_POLL_SECONDS = 0.002  # A caller that waits for a connection looks this often whether one is idle.
RECHECK_SECONDS = 5.0  # An insert checks the table again after this long, because an operator may alter it.

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Row = tuple[Any, ...]

# The server reports that nothing was stored and that a retry may succeed.
_RETRYABLE_ERRORS = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.ReadOnlySqlTransaction,
    errors.LockNotAvailable,
)
# The table does not accept this plant, whenever it is sent.
_REFUSALS = (
    psycopg.DataError,
    psycopg.IntegrityError,
    errors.InsufficientPrivilege,  # of a policy for rows
    errors.ProgramLimitExceeded,
    errors.RaiseException,
)


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
        self._conninfo = make_conninfo(_DEFAULTS, **parameters | {"client_encoding": "UTF8"})
        # A canceled statement stores nothing, so let the server cancel a slow statement before its caller times out.
        self._statement_timeout_ms = int(timeout * 750)
        self._max_connections = max_connections
        self._pool = _Pool(self._connect, max_connections)
        self._table = _NO_TABLE  # until the first one is found
        self._checked_at = 0.0  # when the table was last checked
        self._held: dict[int, float] = {}  # by id that another transaction holds: until when it is left out

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store for a libpq connection URL, which may name several hosts.

        :raises ValueError: libpq cannot parse the URL.
        """
        try:
            return cls(url)
        except (psycopg.ProgrammingError, ValueError):
            name = _unknown_parameter(url)  # libpq's message may quote the password.
            raise ValueError(f"libpq has no parameter {name}" if name else _URL_SYNTAX) from None

    def _insert(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        try:
            stored, held = self._run(partial(self._insert_batch, collect), deadline)
        except StoreUnavailable as error:
            if isinstance(error.__context__, errors.SerializationFailure | errors.DeadlockDetected):
                raise PlantRejected(error) from None  # It is not an outage.
            raise
        plants = collect()
        in_use: set[int] = set()
        if not_stored := {plant.id for plant in plants} - stored:
            ids = f"{{{','.join(map(str, not_stored))}}}"
            in_use = self._run(partial(self._run_durably, self._table.select_in_use, [ids]), deadline)
            if not_stored - in_use - held:
                # A new trigger may have suppressed the insert; then this raises StoreUnusable.
                self._check(deadline)
        outcomes: Outcomes = []
        for plant in plants:
            if plant.id in stored:
                outcomes.append(None)
                stored.remove(plant.id)
                in_use.add(plant.id)  # A second plant of the batch with this id is not stored.
            elif plant.id in in_use:
                outcomes.append(PlantIdInUse(plant.id))
            else:
                unknown = "a plant was not stored, but its id is not in use either"
                outcomes.append(StoreUnavailable(_HELD if plant.id in held else unknown))
        return outcomes

    def _find(self, plant_id: int, deadline: float) -> Plant | None:
        row = self._run(lambda connection: connection.execute(self._table.select, [str(plant_id)]).fetchone(), deadline)
        return Plant(*row) if row else None

    def _check(self, deadline: float) -> None:
        self._run(self._check_table, deadline)
        if self._failure:  # A standby may be gone.
            self._run(lambda connection: connection.query(f"SELECT {_WRITE}".encode()), deadline)

    def _try_insert(self, plant: Plant, deadline: float) -> None:
        def insert_and_roll_back(connection: _Connection) -> None:
            self._check_table(connection)
            with connection.transaction(force_rollback=True):
                self._insert_plants(connection, [plant])

        self._run(insert_and_roll_back, deadline)

    def _disconnect(self, deadline: float) -> None:
        pool, self._pool = self._pool, _Pool(self._connect, self._max_connections)
        pool.close(deadline)

    def _run(self, work: Callable[["_Connection"], _T], deadline: float) -> _T:
        """Return what the work returns; retry for some 0.2 s while the server reports that nothing was stored."""
        pause = 0.005
        while True:
            self._check_open()
            pool = self._pool
            connection = pool.acquire(deadline)
            try:
                connection.deadline = deadline
                return work(connection)
            except psycopg.Error as error:
                if isinstance(error, errors.ReadOnlySqlTransaction):
                    connection.close()
                may_retry = isinstance(error, _RETRYABLE_ERRORS) and pause <= MAX_PAUSE_SECONDS
                if not may_retry or time.monotonic() + pause > deadline:
                    raise StoreUnavailable(_reason(error)) from None
            finally:
                pool.release(connection)
            time.sleep(pause)
            pause *= 2  # exponential backoff

    def _insert_batch(self, collect: Callable[[], list[Plant]], connection: "_Connection") -> tuple[set[int], set[int]]:
        """Return the ids of the plants that were stored, and the ids that were left out."""
        if time.monotonic() - self._checked_at > RECHECK_SECONDS:
            self._find_faults(connection)
        first_by_id = {plant.id: plant for plant in reversed(collect())}
        held = set(filter(self._is_held, first_by_id))
        # Sort them, so that two batches with common ids cannot deadlock.
        plants = sorted(plant for plant in first_by_id.values() if plant.id not in held)
        try:
            return self._insert_plants(connection, plants) if plants else set(), held
        except UnicodeEncodeError as error:
            raise PlantRejected(error) from None
        except psycopg.Error as error:
            self._reject(error, plants, connection)
            raise

    def _insert_plants(self, connection: "_Connection", plants: list[Plant]) -> set[int]:
        rows = next(size for size in _SIZES if size >= len(plants))
        # A repeated plant is not inserted twice, because its id is then in use. Repeat the shortest one.
        shortest = min(plants, key=lambda plant: sum(len(value) for value in plant if isinstance(value, str)))
        padded = plants + [shortest] * (rows - len(plants))
        # Send an int as text, because psycopg chooses its type by its value, and each type needs another statement.
        values = [str(value) if isinstance(value, int) else value for plant in padded for value in plant]
        return self._run_durably(self._table.inserts[rows], values, connection)

    def _run_durably(self, query: bytes, parameters: Sequence[str | None], connection: "_Connection") -> set[int]:
        """Return the ids that a statement returns, once it is known that it ran where it should, and is durable."""
        connection.warning = None
        try:
            rows = connection.execute(query, parameters).fetchall()
        except psycopg.ProgrammingError:
            if connection.is_idle():
                self._check_table(connection)  # If the table is the cause, this raises, too.
            raise
        if connection.warning:
            connection.close()
            raise psycopg.OperationalError(connection.warning)
        for table, process in {row[1:3] for row in rows}:
            if process != connection.process:
                connection.close()
                raise StoreUnusable(_POOLER)
            if table not in self._table.leaves:
                self._find_faults(connection)  # It may be a new partition; else this raises StoreUnusable.
        return {row[0] for row in rows}

    def _is_held(self, plant_id: int) -> bool:
        """Return whether another transaction has recently held the id; at intervals, let one batch try it."""
        now = time.monotonic()
        held_until = self._held.get(plant_id, math.inf)
        if held_until <= now:
            self._held[plant_id] = now + HELD_SECONDS
        return now < held_until < math.inf

    def _reject(self, error: psycopg.Error, plants: list[Plant], connection: "_Connection") -> None:
        """Raise PlantRejected if one of the plants may be the cause of the error."""
        if isinstance(error, errors.ReadOnlySqlTransaction) or not connection.is_idle():
            return
        is_held = isinstance(error, errors.LockNotAvailable) and error.diag.context  # else the table is locked
        if isinstance(error, _RETRYABLE_ERRORS) and not is_held and (len(plants) == 1 or error.sqlstate == "55P03"):
            return
        if is_held and len(plants) == 1:
            self._hold(plants[0].id)
        # With 08, a cluster has lost its connection to another node, which may have committed its part.
        may_be_stored = (error.sqlstate or "").startswith("08")
        kind = PlantRefused if isinstance(error, _REFUSALS) else StoreUnavailable
        raise PlantRejected(kind(_HELD if is_held else _reason(error)), may_be_stored=may_be_stored) from None

    def _hold(self, plant_id: int) -> None:
        now = time.monotonic()
        held = {each: held_until for each, held_until in list(self._held.items()) if held_until > now}
        self._held = held | {plant_id: now + HELD_SECONDS}

    def _check_table(self, connection: "_Connection") -> None:
        self._find_faults(connection)
        connection.query(self._table.insert_nothing)

    def _find_faults(self, connection: "_Connection") -> None:
        """Raise StoreUnusable if the table could lose a plant; create what is missing; remember the table."""
        self._checked_at = time.monotonic()
        known = self._table
        [(fault, alter, oid, name, leaves)] = connection.query(_INSPECT, [str(known.oid), known.name, *_EXPECTED])
        completion = alter if oid else _CREATE
        if connection.is_citus and not completion:
            [(citus_fault,)] = connection.query(_INSPECT_CITUS, [str(oid), _DISTRIBUTE])
            fault = fault or citus_fault
        if fault:
            raise StoreUnusable(f"the table plants {fault}")
        if completion:
            self._complete(connection, completion)
            return self._find_faults(connection)
        self._may_create = False
        self._table = known if known.oid else _Table(oid, name, is_citus=connection.is_citus)
        self._table.leaves.update(leaves)
        return None

    def _complete(self, connection: "_Connection", statement: str) -> None:
        """Create the table, or add its columns."""
        if statement == _CREATE and (self._table.oid or not (self._may_create or connection.is_citus)):
            raise StoreMissing(TABLE_GONE)
        if connection.is_citus:
            role = connection.info.user
            grant = f"GRANT SELECT, INSERT ON plants TO {role}; ALTER ROLE {role} SET synchronous_commit = on"
            new = f"{statement}; {_DISTRIBUTE}; {grant}" if statement == _CREATE else statement
            raise StoreUnusable(f"the table plants is incomplete; on the coordinator, its operator must send: {new}")
        if not self._may_create:
            raise StoreMissing(f"the table plants lacks a column; its owner must send: {statement}")
        # Processes that create the table at the same time may collide in the catalog.
        with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
            try:
                connection.execute(statement.encode())
            except errors.InsufficientPrivilege as error:
                raise StoreUnavailable(f"{_reason(error, with_text=True)}; its owner must send: {statement}") from None
            self.is_new = statement == _CREATE
            _log.warning("the table plants lacked something; the service sent: %s", statement)

    def _connect(self) -> "_Connection":
        with ExitStack() as on_failure:
            connection = on_failure.enter_context(closing(_Connection.open(self._conninfo, self._timeout)))
            settings = [str(self._statement_timeout_ms), str(LOCK_TIMEOUT_MS)]
            [(connection.process, connection.is_citus, *_)] = connection.query(_SET_UP + FLUSH_COMMITS, settings)
            if connection.process != connection.info.backend_pid:
                self._check_pooler(connection)
            if connection.is_citus:
                connection.process = 0  # as the statements return
            self._find_faults(connection)
            on_failure.pop_all()
        return connection

    def _check_pooler(self, connection: "_Connection") -> None:
        """Raise StoreUnusable if a second connection gets the server's process of the first one."""
        # In session mode, a pool may have no process for a second connection.
        with suppress(psycopg.OperationalError), closing(_Connection.open(self._conninfo, _PROBE_SECONDS)) as second:
            if second.query(b"SELECT pg_backend_pid()") == [(connection.process,)]:
                raise StoreUnusable(_POOLER)


class _Table:
    """The table that the store found first, and the statements that name it."""

    def __init__(self, oid: int, name: str, *, is_citus: bool) -> None:
        self.oid = oid
        self.name = name
        self.leaves = {0}  #: the tables that have its rows
        # On Citus, a statement runs on other nodes, each with tables and processes of its own.
        place = "0, 0" if is_citus else "tableoid, pg_backend_pid()"
        insert = f"INSERT INTO {name} ({_NAMES}) {{}} ON CONFLICT (id) DO NOTHING RETURNING id, {place}"
        # Use VALUES: Citus sends each row of VALUES directly to its node, but all rows of a SELECT through one node.
        numbers = iter(range(1, len(COLUMNS) * _SIZES[-1] + 1))
        values = [f"({', '.join(f'${next(numbers)}' for _ in COLUMNS)})" for _ in range(_SIZES[-1])]
        self.inserts = {rows: insert.format(f"VALUES {', '.join(values[:rows])}").encode() for rows in _SIZES}
        nothing = ", ".join(f"NULL::{_TYPES[column.type]}" for column in COLUMNS)
        self.insert_nothing = insert.format(f"SELECT {nothing} WHERE false").encode()
        from_table = f"FROM {name} WHERE id"
        self.select = f"SELECT {_NAMES} {from_table} = $1".encode()
        # The transaction that inserted these rows may not have waited for its standby, because the server crashed. So
        # wait on each node that has a row.
        self.select_in_use = f"SELECT id, {place}, {_WRITE} {from_table} = ANY ($1::bigint[])".encode()


_NO_TABLE = _Table(0, "plants", is_citus=False)


class _Pool:
    """Connections that threads share.

    If none is idle, a thread opens one more, because that may take longer than a caller may wait. Meanwhile, and if the
    server refuses it, callers share those that are open.
    """

    def __init__(self, connect: Callable[[], "_Connection"], max_connections: int) -> None:
        self._connect = connect
        self._max_connections = max_connections
        # A deque never blocks, so a caller that is interrupted, for example by gevent's Timeout, always puts its
        # connection back.
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._lock = threading.Lock()  # guards the opener
        self._opener: threading.Thread | None = None
        self._failure: StoreUnavailable | None = None  # of the opener, unless it has succeeded since
        self._failed_at = 0.0
        self._closed = False

    def acquire(self, deadline: float) -> "_Connection":
        """Return an idle connection.

        :raises StoreUnavailable: none is idle in time, or none could be opened.
        """
        began = time.monotonic()
        while time.monotonic() <= deadline and (self._open or self._failed_at < began):
            with suppress(IndexError):
                connection = self._idle.popleft()
                # The outcome of a statement is unknown if the server has closed the connection before.
                if not connection.has_unread_input():
                    return connection
                self._discard(connection)
            self._open_another()
            time.sleep(_POLL_SECONDS)
        failure = self._failure or StoreUnavailable("no connection in time")
        raise type(failure)(*failure.args)

    def release(self, connection: "_Connection") -> None:
        if connection.is_idle():
            self._idle.append(connection)
        else:
            self._discard(connection)
        if self._closed or not connection.is_idle():
            self._discard_idle()  # What silenced this connection may have silenced the others, too.

    def close(self, deadline: float) -> None:
        self._closed = True
        if self._opener:
            self._opener.join(max(0, deadline - time.monotonic()))
        self._discard_idle()

    def _open_another(self) -> None:
        with self._lock:
            is_refused = self._open and time.monotonic() < self._failed_at + _RETRY_SECONDS
            is_opening = self._opener and self._opener.is_alive()
            if not is_refused and not is_opening and len(self._open) < self._max_connections:
                opener = threading.Thread(target=self._open_one, name="plants-connect", daemon=True)
                try:
                    opener.start()
                except RuntimeError as error:  # The process may not have another thread.
                    self._fail(StoreUnavailable(str(error)))
                else:
                    self._opener = opener

    def _open_one(self) -> None:
        try:
            connection = self._connect()
        # A host's name may have no encoding, and the process no descriptor left.
        except (psycopg.Error, OSError, UnicodeError, StoreUnavailable) as error:
            self._fail(error if isinstance(error, StoreUnavailable) else StoreUnavailable(_reason(error)))
        else:
            self._failure = None
            self._open.add(connection)
            self.release(connection)

    def _fail(self, failure: StoreUnavailable) -> None:
        self._failure = failure
        self._failed_at = time.monotonic()

    def _discard(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        connection.close()

    def _discard_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._discard(self._idle.popleft())


class _Connection(psycopg.Connection[_Row]):
    """A connection whose waits end at a deadline, even if the server's machine is gone."""

    deadline = math.inf
    process = 0  #: of the server
    is_citus = False
    warning: str | None = None  #: that the outcome of the statement is unknown

    @classmethod
    def open(cls, conninfo: str, timeout: float) -> Self:
        connection = cls.connect(conninfo, autocommit=True, cursor_factory=psycopg.RawCursor)
        connection.deadline = time.monotonic() + timeout
        connection.add_notice_handler(connection.note_warning)
        return connection

    def query(self, query: bytes, parameters: Sequence[str] = ()) -> list[_Row]:
        """Run a statement without plants; the error has the server's own message."""
        try:
            return self.execute(query, parameters).fetchall()
        except psycopg.Error as error:
            if isinstance(error, _RETRYABLE_ERRORS) or not error.sqlstate:
                raise
            raise StoreUnavailable(_reason(error, with_text=True)) from None

    def close(self) -> None:
        # A server's process that waits for a standby would not notice, and all such processes could fill the server.
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE and capabilities.has_cancel_safe():
            with suppress(psycopg.Error, OSError):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
        super().close()

    def is_idle(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    def has_unread_input(self) -> bool:
        poll = select.poll()  # select() accepts no descriptor above 1023.
        poll.register(self, select.POLLIN)
        return bool(poll.poll(0))

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        return super().wait(gen, interval, max(0.0, min(timeout or math.inf, self.deadline - time.monotonic())))

    def note_warning(self, notice: errors.Diagnostic) -> None:
        # If a wait for a synchronous standby is canceled, PostgreSQL reports success and a warning. Citus relays a
        # node's warning under another function name, and only in English.
        if notice.source_function == "SyncRepWaitForLSN" or "synchronous replication" in str(notice.message_primary):
            self.warning = f"a warning from {notice.source_function} leaves the outcome unknown"


def _unknown_parameter(url: str) -> str | None:
    """Return the name of a parameter that libpq does not have; None if it could be a part of a password."""
    query = url.rpartition("@")[2].partition("?")[2]
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    names = [name for name in re.findall(r"(?:^|&)(\w+)=", query) if name not in known]
    return names[0] if names and "password" not in query else None


def _reason(error: Exception, *, with_text: bool = False) -> str:
    # Omit the server's message about a statement with plants, because it may quote them.
    sqlstate = getattr(error, "sqlstate", None)
    if not (isinstance(error, psycopg.Error) and sqlstate):
        return str(error)
    details = [f"{type(error).__name__}, SQLSTATE {sqlstate}"]
    if with_text:
        details.append(error.diag.message_primary or "")
    if error.diag.constraint_name:
        details.append(f"constraint {error.diag.constraint_name}")
    return ": ".join(details)
