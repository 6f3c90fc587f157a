"""PostgreSQL, or an engine that speaks its protocol: shared by any number of machines."""

import contextlib
import math
import os
import select
import time
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolTimeout

from plants.stores import Plant, PlantIdInUse, PlantStore, StoreUnavailable

_REST = 0.5  # seconds between two attempts while no connection can be made
_DEFAULTS = {
    "application_name": "plants",
    "connect_timeout": "2",
    "keepalives_idle": "10",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "target_session_attrs": "read-write",
}

_TABLE = "CREATE TABLE IF NOT EXISTS plants (id bigint PRIMARY KEY, name text NOT NULL, tag text)"
_INSERT = "INSERT INTO plants (id, name, tag) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING RETURNING id"
_INSERT_NOTHING = "INSERT INTO plants (id, name) SELECT 0, '' WHERE false"
_SELECT = "SELECT name, tag FROM plants WHERE id = %s"

_T = TypeVar("_T")
_Row = tuple[Any, ...]

# In each of these cases the server itself says that it kept nothing.
_KEPT_NOTHING = (errors.SerializationFailure, errors.DeadlockDetected, errors.ReadOnlySqlTransaction)


class PostgresStore(PlantStore):
    """Plants in a table of a database server. An acknowledged plant survives what the server promises.

    An add is one statement and so one transaction. It is tried again only while it is certain that nothing was kept:
    no connection was to be had, or the server refused the statement in a way that may pass (a serialization failure, a
    server that has become a standby). When a connection is lost or silent after the statement was sent, nobody knows
    whether the plant was kept, and the answer is StoreUnavailable. Looking for the row would not settle it: the same
    plant may be another client's, and a row of our own that a primary shows after the loss may not have reached its
    synchronous standby, so that a fail-over would take it back. Who tries again after StoreUnavailable may therefore
    be told that the id is in use, by the own earlier attempt.

    The table is made when it is missed. No call takes longer than ``patience``, in seconds, whatever the network and
    the server do. While no connection can be made, one caller each half second tries; the others are told at once.
    """

    def __init__(self, conninfo: str, patience: float = 2.0, max_connections: int = 16) -> None:
        given = conninfo_to_dict(conninfo)
        self._conninfo = make_conninfo(
            conninfo, **{name: value for name, value in _DEFAULTS.items() if name not in given}
        )
        self._patience = patience
        self._max_connections = max_connections
        self._pools: dict[int, ConnectionPool[_Connection]] = {}
        self._next_attempt = 0.0

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

    def add(self, plant: Plant) -> None:
        if self._execute(_INSERT, (plant.id, plant.name, plant.tag)) is None:
            raise PlantIdInUse(plant.id)

    def get(self, plant_id: int) -> Plant | None:
        row = self._execute(_SELECT, (plant_id,))
        return None if row is None else Plant(plant_id, *row)

    def check(self) -> None:
        self._execute(_INSERT_NOTHING)

    def close(self) -> None:
        self._pool().close()

    def _execute(self, query: LiteralString, parameters: tuple[Any, ...] = ()) -> _Row | None:
        now = time.monotonic()
        if self._next_attempt:
            if now < self._next_attempt:
                raise StoreUnavailable("no connection could be made just now")
            self._next_attempt = now + _REST
        deadline = now + self._patience
        pause = 0.005
        while True:
            try:
                row = self._execute_once(query, parameters, deadline)
            except _KEPT_NOTHING as error:
                if time.monotonic() + pause > deadline:
                    raise StoreUnavailable(str(error)) from error
                time.sleep(pause)
                pause *= 2
            except psycopg.DataError:
                raise
            except psycopg.Error as error:
                if isinstance(error, PoolTimeout) or time.monotonic() >= deadline:
                    self._next_attempt = time.monotonic() + _REST
                raise StoreUnavailable(str(error)) from error
            else:
                self._next_attempt = 0.0
                return row

    def _configure(self, connection: "_Connection") -> None:
        connection.deadline = time.monotonic() + self._patience
        connection.add_notice_handler(connection.note)
        # In milliseconds, and sooner than the caller leaves: a statement that the server gave up keeps nothing.
        connection.execute(f"SET statement_timeout = {self._patience * 750:.0f}")
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise psycopg.NotSupportedError("the database's encoding is not UTF8")

    def _execute_once(self, query: LiteralString, parameters: tuple[Any, ...], deadline: float) -> _Row | None:
        pool = self._pool()
        pool.open()
        connection = _take(pool, deadline)
        try:
            return connection.run(query, parameters, deadline)
        finally:
            pool.putconn(connection)

    def _pool(self) -> "ConnectionPool[_Connection]":
        # A parent's pool stays in the dictionary of its child, unused: its connections are the parent's.
        pid = os.getpid()
        pool = self._pools.get(pid)
        if pool is None:
            new = ConnectionPool(
                self._conninfo,
                connection_class=_Connection,
                kwargs={"autocommit": True},
                configure=self._configure,
                min_size=0,
                max_size=self._max_connections,
                # The pool's own attempts grow apart to minutes; here each caller that may try starts a new one.
                reconnect_timeout=0,
                open=False,
            )
            pool = self._pools.setdefault(pid, new)
        return pool


class _Connection(psycopg.Connection[_Row]):
    """A connection on which nothing waits beyond a deadline, even if the server's machine is gone."""

    deadline = math.inf
    replication_cancelled = False

    def run(self, query: LiteralString, parameters: tuple[Any, ...], deadline: float) -> _Row | None:
        self.deadline = deadline
        try:
            cursor = self.execute(query, parameters)
        except errors.UndefinedTable:
            # Processes that make the table at once may meet in the catalogue in spite of IF NOT EXISTS.
            with contextlib.suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
                self.execute(_TABLE)
            cursor = self.execute(query, parameters)
        except errors.ReadOnlySqlTransaction:
            self.close()
            raise
        if self.replication_cancelled:
            self.close()
            raise psycopg.OperationalError("the wait for the synchronous standby was cancelled")
        # Not cursor.description, which would describe the columns in words first.
        return cursor.fetchone() if cursor.pgresult and cursor.pgresult.nfields else None

    def wait(self, gen: PQGen[_T], interval: float = 0.1, timeout: float | None = None) -> _T:
        return super().wait(gen, interval, max(0.0, min(timeout or math.inf, self.deadline - time.monotonic())))

    def note(self, notice: errors.Diagnostic) -> None:
        # PostgreSQL reports success, with a mere warning, when the wait for a synchronous standby was cancelled.
        self.replication_cancelled |= notice.source_function == "SyncRepWaitForLSN"


def _take(pool: ConnectionPool[_Connection], deadline: float) -> _Connection:
    """Take a connection that the server has not closed."""
    while True:
        try:
            connection = pool.getconn(timeout=0.1)
        except PoolTimeout:
            if time.monotonic() >= deadline or not pool.get_stats()["pool_size"]:
                raise
            continue
        # What an idle connection has to read is almost always its end: better seen now than after the statement
        # was sent, when it would leave the outcome unknown.
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if not poll.poll(0):
            return connection
        connection.close()
        pool.putconn(connection)
