"""PostgreSQL, or Citus through its coordinator: shared by any number of machines.

A batch is one transaction, in most cases of one statement. The transaction itself makes its commit wait until it is
flushed, so no setting of a server, the role, the session or a pooler changes what an acknowledged plant survives.
Statements name the table that the store found first, with its schema.
"""

import logging
import math
import re
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files
from typing import Any, Self, TypeVar

import psycopg
from psycopg import capabilities, errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo, timeout_from_conninfo
from psycopg.pq import TransactionStatus

from plants.stores import COLUMNS, TABLE_GONE, Plant, PlantIdInUse, PlantRefused, StoreUnavailable
from plants.stores.group_commit import GroupCommitStore
from plants.stores.health import Outcomes

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
# The settings are local to the transaction. They are in force when it commits, because a commit that does not wait for
# its flush is not durable, and the warning of a canceled wait for a standby must arrive. The subquery runs once.
_DURABLY = """(SELECT set_config('client_min_messages', 'warning', true) || set_config('synchronous_commit',
    CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true))"""
# A transaction that writes nothing neither waits for a standby nor notices a full disk.
_WRITE = "pg_logical_emit_message(true, 'plants', '')"
# These are a convenience: a pooler may run the next statement in another session.
_SET_UP = b"""
    SELECT pg_backend_pid(), set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false),
        set_config('default_transaction_isolation', 'read committed', false)
"""
_INSPECT = files(__package__).joinpath("postgres.sql").read_bytes()
_NODES = b"""SELECT id, groupid FROM unnest($2::bigint[]) AS id
    JOIN pg_dist_placement ON shardid = get_shard_id_for_distribution_column($1, id)"""
_INSPECT_CITUS = files(__package__).joinpath("citus.sql").read_bytes()
_EXPECTED = [
    f"{{{','.join(values)}}}"
    for values in zip(*((column.name, _TYPES[column.type], str(column.nullable)) for column in COLUMNS), strict=True)
]

_UNKNOWN = "the insert was suppressed (a trigger or a rule?)"
_PERHAPS_OURS = "the id is in use, perhaps by this very plant, because a commit has failed"
_URL_SYNTAX = (
    "the URL of a PostgreSQL store is postgresql://user:password@host:port/database, percent-encoded, "
    "with no other parameters (?name=value) than libpq's"
)

_FLUSH_VERSION = 170000  # From this on, pg_logical_emit_message has a fourth parameter.
LOCK_TIMEOUT_MS = 100  # A batch waits this long for another transaction that has inserted one of the batch's ids.
RECHECK_SECONDS = 5.0  # A batch looks at the table again after this long, because an operator may alter it.
_CANCEL_SECONDS = 0.3  # how long closing a connection may wait until its statement is canceled

# In Citus, a transaction begins with these. Because of the first one, each of its nodes gets the others, too.
_ON_EACH_NODE = (
    b"citus.propagate_set_commands = 'local'",
    b"synchronous_commit = on",
    b"client_min_messages = warning",
)

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Row = tuple[Any, ...]

# The table does not accept this plant, whenever it is sent: wrong data, constraint, policy for rows, limit of the
# program, exception of a function. psycopg itself, which refuses U+0000, has no SQLSTATE.
_REFUSALS = ("None", "22", "23", "42501", "54000", "P0001")
# No plant is the cause of an error of these classes: connection, read-only server, lost prepared statement, resources,
# locked table, intervention, system; in Citus, unless another node is the cause.
_CLASSES_OF_THE_SERVER = {"08", "25", "26", "53", "55", "57", "58"}
# The server's own messages of these classes, such as that of a missing table, have no value of a row.
_CLASSES_WITH_TEXT = {"08", "3D", "3F", "42", "53", "57"}


class PostgresStore(GroupCommitStore):
    """Plants in a table of a database server. An acknowledged plant is as durable as the server's commits.

    If the connection is lost or silent after a statement was sent, the outcome is unknown, and ``add`` raises
    StoreUnavailable. Reading the rows back would not settle it, because a failover may undo them.
    """

    def __init__(self, conninfo: str, timeout: float = 1.8) -> None:
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
        self._session_settings = [str(int(timeout * 750)), str(LOCK_TIMEOUT_MS)]
        self._table = ""  # the name, with its schema, once the table was found
        self._checked_at = 0.0  # when the table was last found to be right

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store for a libpq connection URL, which may name several hosts.

        :raises ValueError: libpq cannot parse the URL.
        """
        try:
            return cls(url)
        except (psycopg.ProgrammingError, ValueError):
            raise ValueError(_URL_SYNTAX) from None  # libpq's message may quote the password.

    def _connect(self) -> "_Connection":
        with _psycopg_errors_as_unavailable(), ExitStack() as on_failure:
            connection = _Connection.connect(self._conninfo, autocommit=True, cursor_factory=psycopg.RawCursor)
            on_failure.callback(connection.close)
            # How long that took is up to the connect_timeout of the URL.
            connection.deadline = time.monotonic() + self.timeout
            connection.add_notice_handler(connection.note_warning)
            [(process, *_)] = connection.run(_SET_UP, self._session_settings)
            # A pooler reports another process than that which runs the statement. Two of its clients may have prepared
            # different statements under the same name.
            if process != connection.info.backend_pid:
                connection.prepare_threshold = None
            self._check_table(connection)
            on_failure.pop_all()
        return connection

    def _commit(self, collect: Callable[[], list[Plant]]) -> Outcomes:
        # If the server has closed the connection while it was idle, the outcome of a statement would be unknown.
        if self._connection:
            poll = select.poll()  # select() accepts no descriptor above 1023.
            poll.register(self._connection, select.POLLIN)
            if poll.poll(0):
                self._drop_connection()
        return super()._commit(collect)

    def _find(self, connection: "_Connection", plant_id: int) -> Plant | None:
        connection.deadline = time.monotonic() + self.timeout
        with _psycopg_errors_as_unavailable():
            rows = connection.run(connection.statements.select, [str(plant_id)])
        return Plant(*rows[0]) if rows else None

    def _insert(self, connection: "_Connection", collect: Callable[[], list[Plant]]) -> Outcomes:
        connection.deadline = time.monotonic() + self.timeout
        connection.has_waited, connection.unknown_commits = False, 0
        with _psycopg_errors_as_unavailable():
            if time.monotonic() > self._checked_at + RECHECK_SECONDS:
                self._check_table(connection)
            if not (plants := collect()):
                connection.run(connection.statements.insert_nothing)
                if self._health.down_reason:  # A standby may be gone, or the disk full.
                    connection.run(connection.statements.write)
                return []
            first_by_id = {plant.id: plant for plant in reversed(plants)}
            # Sort them, so that two batches with common ids cannot deadlock.
            outcome_by_id = self._store(connection, sorted(first_by_id.values()))
        outcomes: Outcomes = []
        for plant in plants:
            outcome = outcome_by_id[plant.id]
            outcomes.append(outcome)
            is_in_use = outcome is None or isinstance(outcome, PlantIdInUse)
            # A second plant of the batch with this id is not stored.
            outcome_by_id[plant.id] = PlantIdInUse(plant.id) if is_in_use else StoreUnavailable(_UNKNOWN)
        return outcomes

    def _store(self, connection: "_Connection", plants: list[Plant]) -> dict[int, Exception | None]:
        """Return the outcome of each id. If an error may have been caused by some of the plants, split the batch."""
        outcomes: dict[int, Exception | None] = {}
        parts = [plants]
        while parts:
            part = parts.pop()
            try:
                rows = connection.run(*connection.statements.insert(part))
            except (psycopg.Error, UnicodeEncodeError) as error:
                outcome = self._blame_plant(connection, error)
                smaller = self._split(connection, part, error)
                if len(smaller) == 1:
                    outcomes |= dict.fromkeys((plant.id for plant in part), outcome)
                else:
                    parts += smaller
                if time.monotonic() + 2 * LOCK_TIMEOUT_MS / 1000 > connection.deadline:
                    late = StoreUnavailable(f"no response in time: {outcome}")
                    return outcomes | {plant.id: late for part in parts for plant in part}
            else:
                stored = {row[0] for row in rows}
                outcomes |= dict.fromkeys(stored)
                if not_stored := {plant.id for plant in part} - stored:
                    outcomes |= self._explain(connection, not_stored)
        return outcomes

    def _split(self, connection: "_Connection", part: list[Plant], error: Exception) -> list[list[Plant]]:
        """Return the parts of a part of a batch: those of each node if Citus has lost one, or else halves."""
        if isinstance(error, errors.ConnectionFailure):
            ids = ",".join(str(plant.id) for plant in part)
            node_of: dict[int, int] = dict(connection.run(_NODES, [self._table, f"{{{ids}}}"]))
            return [[plant for plant in part if node_of[plant.id] == node] for node in set(node_of.values())]
        middle = len(part) // 2
        return [part[:middle], part[middle:]] if middle else [part]

    def _blame_plant(self, connection: "_Connection", error: psycopg.Error | UnicodeEncodeError) -> Exception:
        """Return the outcome of a plant that alone caused this error.

        :raises Exception: no plant is the cause.
        """
        if isinstance(error, UnicodeEncodeError):
            return error
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            raise error
        context, sqlstate = str(error.diag.context or ""), str(error.sqlstate)
        # Without a context, the first statement that waits in vain has found the table locked or, in Citus, a shard.
        if isinstance(error, errors.LockNotAvailable) and (context or connection.is_citus or connection.has_waited):
            connection.has_waited = True
            return StoreUnavailable("another transaction holds the id")
        is_of_node = connection.is_citus and (sqlstate[:2] == "08" or "while executing command on" in context)
        if sqlstate[:2] in _CLASSES_OF_THE_SERVER and not is_of_node:
            raise error
        if isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError):
            self._check_table(connection)  # If the table is the cause, this raises an error.
        return (PlantRefused if sqlstate.startswith(_REFUSALS) else StoreUnavailable)(_reason(error))

    def _explain(self, connection: "_Connection", not_stored: set[int]) -> dict[int, Exception | None]:
        """Return the outcome of ids that an insert has not returned."""
        ids = f"{{{','.join(map(str, not_stored))}}}"
        try:
            rows = connection.run(connection.statements.select_in_use, [ids])
        except psycopg.Error as error:
            return dict.fromkeys(not_stored, self._blame_plant(connection, error))
        in_use = {row[0] for row in rows}
        if not_stored - in_use:
            self._check_table(connection)  # A new trigger may have suppressed the insert.
        if connection.unknown_commits:
            return dict.fromkeys(not_stored, StoreUnavailable(_PERHAPS_OURS))
        return {each: PlantIdInUse(each) if each in in_use else StoreUnavailable(_UNKNOWN) for each in not_stored}

    def _check_table(self, connection: "_Connection") -> None:
        """Create what is missing, if that is allowed.

        :raises StoreUnavailable: the table could lose a plant, or every insert would fail.
        """
        [found] = connection.run(_INSPECT, [self._table or "plants", *_EXPECTED])
        fault, alter, name, role, connection.is_citus = found
        completion = alter if name else _CREATE
        if connection.is_citus and not completion:
            [(citus_fault,)] = connection.run(_INSPECT_CITUS, [name, _DISTRIBUTE])
            fault = fault or citus_fault
        if fault:
            raise StoreUnavailable(f"the table plants {fault}")
        if completion:
            self._complete(connection, completion, role)
            self._check_table(connection)
            return
        self._had_table[0] = 1
        self._table = name
        connection.statements = _Statements(name, is_citus=connection.is_citus)
        self._check_rights(connection, role)
        self._checked_at = time.monotonic()

    def _check_rights(self, connection: "_Connection", role: str) -> None:
        """Execute the statements that a batch may need, without rows, so that none can fail for a client first."""
        rights = f"SELECT, INSERT ON {self._table}"
        try:
            connection.run(connection.statements.insert_nothing)
            connection.run(connection.statements.select, [None])
            flush = ", boolean" if connection.info.server_version >= _FLUSH_VERSION else ""
            rights = f"EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text{flush})"
            # Without this condition, it would fail if a node of Citus is down.
            connection.run(connection.statements.select_in_use + b" AND false", ["{}"])
        except errors.InsufficientPrivilege as error:
            raise StoreUnavailable(f"{_reason(error)}; its owner must send: GRANT {rights} TO {role}") from None

    def _complete(self, connection: "_Connection", statement: str, role: str) -> None:
        """Create the table, or add its columns, in one transaction."""
        is_new = statement == _CREATE
        if is_new and (self._table or not (self._may_create or connection.is_citus)):
            raise StoreUnavailable(TABLE_GONE)
        remedy = f"{statement}; GRANT SELECT, INSERT ON plants TO {role}" if is_new else statement
        if is_new and connection.is_citus:
            remedy += f"; {_DISTRIBUTE}"
        if connection.is_citus or not self._may_create:
            raise StoreUnavailable(f"the table plants is incomplete; its owner must send: {remedy}")
        # Processes that create the table at the same time may collide in the catalog.
        with suppress(errors.UniqueViolation, errors.DuplicateTable):
            try:
                connection.execute(statement.encode())
            except errors.InsufficientPrivilege as error:
                raise StoreUnavailable(f"{_reason(error)}; its owner must send: {remedy}") from None
            _log.info("created the table plants, which is empty" if is_new else f"added a column: {statement}")


class _Statements:
    """The statements that name the table."""

    def __init__(self, table: str, *, is_citus: bool) -> None:
        # Citus allows no such function here; its transactions have settings of their own.
        durably = "" if is_citus else f", {_DURABLY}"
        insert = f"INSERT INTO {table} ({_NAMES}) {{}} ON CONFLICT (id) DO NOTHING RETURNING id{durably}"
        # Use VALUES: Citus sends each row of VALUES directly to its node, but all rows of a SELECT through one node.
        numbers = iter(range(1, len(COLUMNS) * _SIZES[-1] + 1))
        values = [f"({', '.join(f'${next(numbers)}' for _ in COLUMNS)})" for _ in range(_SIZES[-1])]
        self._inserts = {rows: insert.format(f"VALUES {', '.join(values[:rows])}").encode() for rows in _SIZES}
        nothing = ", ".join(f"NULL::{_TYPES[column.type]}" for column in COLUMNS)
        self.insert_nothing = insert.format(f"SELECT {nothing} WHERE false").encode()
        self.write = f"SELECT {_WRITE}{durably}".encode()
        from_table = f"FROM {table} WHERE id"
        self.select = f"SELECT {_NAMES} {from_table} = $1".encode()
        # The transaction that inserted these rows may not have waited for its standby, because the server crashed. So
        # wait on each node that has a row.
        self.select_in_use = f"SELECT id, {_WRITE}{durably} {from_table} = ANY ($1::bigint[])".encode()

    def insert(self, plants: list[Plant]) -> tuple[bytes, list[str | None]]:
        """Return the statement that inserts these plants, and its parameters."""
        rows = next(size for size in _SIZES if size >= len(plants))
        # A repeated plant is not inserted twice, because its id is then in use. Repeat the shortest one.
        shortest = min(plants, key=lambda plant: sum(len(value) for value in plant if isinstance(value, str)))
        padded = plants + [shortest] * (rows - len(plants))
        # Send an int as text, because psycopg chooses its type by its value, and each type needs another statement.
        return self._inserts[rows], [str(value) if isinstance(value, int) else value for row in padded for value in row]


class _Connection(psycopg.Connection[_Row]):
    """A connection whose waits end at a deadline, even if the server's machine is gone."""

    deadline = math.inf
    is_citus = False
    has_waited = False  #: whether a statement of the batch has waited in vain for another transaction
    unknown_commits = 0  #: how many commits of the batch have failed, perhaps after some node has committed
    warning: str | None = None  #: that the outcome of the statement is unknown
    statements: _Statements

    def run(self, query: bytes, parameters: Sequence[str | None] = ()) -> list[_Row]:
        """Execute a statement, and return its rows.

        :raises psycopg.Error: it failed.
        :raises StoreUnavailable: the outcome is unknown.
        """
        self.warning = None
        execute = self._execute_with_settings if self.is_citus or self.has_waited else self.execute
        rows = execute(query, parameters).fetchall()
        if self.warning:
            raise StoreUnavailable(self.warning)
        return rows

    def _execute_with_settings(self, query: bytes, parameters: Sequence[str | None]) -> psycopg.Cursor[_Row]:
        """Execute a statement, in one transaction with the settings that it needs."""
        # What a transaction has held while a statement waited, it still holds.
        lock_timeout = 1 if self.has_waited else LOCK_TIMEOUT_MS
        try:
            with self.pipeline():
                self.execute(b"BEGIN")
                for setting in (*(_ON_EACH_NODE if self.is_citus else ()), b"lock_timeout = %d" % lock_timeout):
                    self.execute(b"SET LOCAL " + setting)
                cursor = self.execute(query, parameters)
            # In the pipeline, it would be unknown whether the statement has failed, or the commit.
            self.unknown_commits += 1
            self.commit()
            self.unknown_commits -= 1
            return cursor
        finally:
            with suppress(psycopg.Error):
                self.rollback()  # This does nothing after a commit, or without a BEGIN.

    def close(self) -> None:
        # A server's process that waits for a standby would not notice, and all such processes could fill the server.
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE and capabilities.has_cancel_safe():
            with suppress(psycopg.Error, OSError):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
        super().close()

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        try:
            return super().wait(gen, interval, max(0.0, min(timeout or math.inf, self.deadline - time.monotonic())))
        except psycopg.OperationalError:
            if time.monotonic() >= self.deadline:
                self.close()  # Otherwise, psycopg would wait again at the end of a pipeline, and hide this error.
            raise

    def note_warning(self, notice: errors.Diagnostic) -> None:
        # If a wait for a synchronous standby is canceled, PostgreSQL reports success and a warning. Citus relays a
        # node's warning under another function name, and only in English.
        if notice.source_function == "SyncRepWaitForLSN" or "synchronous replication" in str(notice.message_primary):
            self.warning = f"a warning from {notice.source_function} leaves the outcome unknown"


@contextmanager
def _psycopg_errors_as_unavailable() -> Iterator[None]:
    try:
        yield
    except (psycopg.Error, OSError) as error:  # The process may have no descriptor left.
        raise StoreUnavailable(_reason(error)) from None


def _reason(error: Exception) -> str:
    sqlstate = getattr(error, "sqlstate", None)
    if not (isinstance(error, psycopg.Error) and sqlstate):
        return str(error)
    details = [f"{type(error).__name__}, SQLSTATE {sqlstate}"]
    # A message may quote a plant: that of an error in a value, and any message of an operator's function, which has a
    # context.
    if sqlstate[:2] in _CLASSES_WITH_TEXT and not error.diag.context:
        details.append(str(error.diag.message_primary))
    for kind, name in (("constraint", error.diag.constraint_name), ("column", error.diag.column_name)):
        if name:
            details.append(f"{kind} {name}")
    return ": ".join(details)
