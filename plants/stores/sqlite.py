"""One SQLite file: needs no further package, and is shared by all processes of one machine."""

import mmap
import os
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, unquote_to_bytes

from plants.stores import Plant, PlantIdInUse, StoreUnavailable
from plants.stores.batch import BatchStore
from plants.stores.engine import MEND, Engine, Fates, StoreUnusable

_LOCK_POLL = 0.001  # SQLite's own waits grow to 100 ms, and starve a process beside a busy one
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

_SET_UP = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA fullfsync = ON;  -- macOS keeps nothing through a power cut without it
    -- A long reader makes the log grow; what is more than this is given back to the disk once the reader is gone.
    PRAGMA journal_size_limit = 16777216;
"""
_TABLE = "CREATE TABLE IF NOT EXISTS plants (id INTEGER PRIMARY KEY, name TEXT NOT NULL, tag TEXT)"
_CONDENSED_TABLE = "createtableplants(idintegerprimarykey,nametextnotnull,tagtext)"
_INSERT = "INSERT INTO plants (id, name, tag) VALUES (?, ?, ?)"
_SELECT = "SELECT name, tag FROM plants WHERE id = ?"
_SCHEMA = "SELECT type, sql FROM sqlite_master WHERE lower(tbl_name) = 'plants'"

# What the byte is that all processes share, once SQLite's log has been lost while connections are open.
_LOG_IS_LOST = 2

_T = TypeVar("_T")
_Job = tuple[Callable[[sqlite3.Connection], Any], Future[Any]]


class SQLiteStore(BatchStore):
    """Plants in one SQLite file on a local disk. An acknowledged plant survives ``kill -9`` and a power cut.

    All that waits at one moment is one transaction, so that the price of making it durable is paid once (group
    commit). Nobody is answered before the commit, and nothing is tried again after a commit that failed: what became
    of it is not known, and StoreUnavailable says so.

    The directory is never made. Fork before the first use: SQLite does not carry a connection across a fork.
    """

    worker_threads = 2  # One parses and responds while the other commits.

    def __init__(self, path: str, patience: float = 2.5) -> None:
        super().__init__(partial(_File, str(Path(path).absolute())), patience)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Give the store for ``sqlite:///relative/file`` or ``sqlite:////absolute/file``, percent-encoded.

        :raises ValueError: the URL names no file, or has more than a file.
        """
        path = url.removeprefix("sqlite:///")
        if path in {url, "", ":memory:"} or re.search("[?#]|%00", path):
            raise ValueError("the URL of a SQLite store is sqlite:///relative/file or sqlite:////absolute/file")
        return cls(os.fsdecode(unquote_to_bytes(path)))


class _File(Engine):
    """The connection of one process. Whoever has the lock does the work of all who wait for it."""

    def __init__(self, path: str, patience: float, was_made: mmap.mmap) -> None:
        super().__init__(patience, was_made)
        self._path = path
        self._turn = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._connection: sqlite3.Connection | None = None
        self._files: tuple[str, ...] = ()
        self._identities: list[tuple[int, ...] | None] = []

    def keep(self, plants: list[Plant], deadline: float) -> Fates:
        return self._run(partial(_insert, plants), deadline)

    def find(self, plant_id: int, deadline: float) -> Plant | None:
        row = self._run(lambda connection: connection.execute(_SELECT, (plant_id,)).fetchone(), deadline)
        return None if row is None else Plant(plant_id, *row)

    def check(self, deadline: float) -> None:
        self._run(_check, deadline)

    def close(self) -> None:
        deadline = time.monotonic() + self._patience
        has_lock = self._turn.acquire(timeout=self._patience)
        if has_lock and self._waiting:
            self._commit(deadline)
        self._is_closed = True
        if has_lock:
            with suppress(sqlite3.Error, StoreUnavailable):
                self._copy_the_log(deadline)
            self._disconnect()
            self._turn.release()

    def _copy_the_log(self, deadline: float) -> None:
        # SQLite lets the last connection copy the log into the file. Two that close at once leave it to each other.
        if self._connection:
            self._look()
            while self._connection.execute("PRAGMA wal_checkpoint").fetchone()[0] and time.monotonic() < deadline:
                time.sleep(_LOCK_POLL)

    def _disconnect(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    def _run(self, work: Callable[[sqlite3.Connection], _T], deadline: float) -> _T:
        """Give what the work gives, once it is committed."""
        outcome: Future[_T] = Future()
        self._waiting.append((work, outcome))
        if not self._turn.acquire(timeout=max(0, deadline - time.monotonic())):
            outcome.cancel()
            raise StoreUnavailable(f"{self._path}: no answer in time")
        try:
            if not outcome.done():
                self._commit(deadline)
        finally:
            self._turn.release()
        return outcome.result()

    def _commit(self, deadline: float) -> None:
        jobs: list[_Job] = []
        try:
            connection, polled = self._begin(deadline)
            began = time.monotonic()
            # Gathered only now: who came while another process had the lock goes with this commit.
            jobs = self._gather()
            results = [(outcome, work(connection)) for work, outcome in jobs]
            connection.execute("COMMIT")
            # A commit into a file that was removed or replaced keeps nothing.
            self._look()
            for outcome, result in results:
                outcome.set_result(result)
            if polled:
                # Others wait for the file, too: leave it long enough for one of them to notice.
                time.sleep(min(time.monotonic() - began, 2 * _LOCK_POLL))
        except BaseException as error:
            self._disconnect()
            kind = StoreUnusable if isinstance(error, StoreUnusable) else StoreUnavailable
            for _, outcome in jobs or self._gather():
                outcome.set_exception(kind(f"{self._path}: {error}"))
            if not isinstance(error, Exception):
                raise  # Ctrl-C; the others do not wait for ever

    def _gather(self) -> list[_Job]:
        """Give what waits, without what is waited for no longer."""
        jobs = [self._waiting.popleft() for _ in range(len(self._waiting))]
        return [job for job in jobs if job[1].set_running_or_notify_cancel()]

    def _begin(self, deadline: float) -> tuple[sqlite3.Connection, bool]:
        """Give the connection when it may write, and whether that was not at once."""
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        polled = False
        while True:
            try:
                connection = self._connection or self._connect()
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _LOCKED or time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_POLL)
                polled = True
            else:
                # Before anything is written, too: with a lock file of its own, this process would write over what
                # another one has in the log.
                self._look()
                return connection, polled

    def _connect(self) -> sqlite3.Connection:
        may_make = not self._was_made[0]
        # SQLite keeps its log beside the file itself, not beside a symbolic link to it.
        path = os.path.realpath(self._path)
        if not may_make and not Path(path).exists():
            raise StoreUnusable(f"the file is gone; {MEND}")
        uri = f"file:{quote(os.fsencode(path))}?mode={'rwc' if may_make else 'rw'}"
        connect = partial(sqlite3.connect, uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        if self._was_made[0] == _LOG_IS_LOST:
            with closing(connect()) as connection:
                # This fails while another connection is open, whose log is the one that was lost.
                connection.executescript("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; ROLLBACK")
        self._connection = connection = connect()
        try:
            connection.executescript(_SET_UP + _TABLE if may_make else _SET_UP)
            _check_table(connection)
        except Exception:
            self._disconnect()
            raise
        self._files = (self._path, f"{path}-wal", f"{path}-shm")
        self._identities = [_identity(file) for file in self._files]
        self._was_made[0] = 1
        return connection

    def _look(self) -> None:
        """Tell the database file, its write-ahead log and its lock file from any others of the same names."""
        found = [_identity(file) for file in self._files]
        if found == self._identities and all(found):
            return
        if found[0] == self._identities[0] and found[1] != self._identities[1]:
            # What is in the log is in the file once the last connection of all processes has been closed. A new one
            # would begin a new log before that, without it.
            self._was_made[0] = _LOG_IS_LOST
            raise StoreUnusable("SQLite's log was removed or replaced: wait until every process has closed the file")
        raise StoreUnusable(f"the file, or what SQLite keeps beside it, was removed or replaced; {MEND}")


def _identity(file: str) -> tuple[int, ...] | None:
    with suppress(OSError):
        return os.stat(file)[1:3]  # noqa: PTH116  # Path.stat takes twice as long, and this is six times a commit
    return None


def _insert(plants: list[Plant], connection: sqlite3.Connection) -> Fates:
    fates: Fates = {}
    cursor = connection.cursor()
    for plant in plants:
        try:
            cursor.execute(_INSERT, plant)
        except sqlite3.IntegrityError as error:
            is_in_use = error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
            fates[plant.id] = PlantIdInUse(plant.id) if is_in_use else StoreUnavailable(str(error))
        except (ValueError, OverflowError, sqlite3.DataError) as error:  # SQLite cannot hold this plant
            fates[plant.id] = error
    return fates


def _check(connection: sqlite3.Connection) -> None:
    """Look at the table, and write a page as it is: a full or read-only disk refuses it as it would a plant."""
    _check_table(connection)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")


def _check_table(connection: sqlite3.Connection) -> None:
    definitions = connection.execute(_SCHEMA).fetchall()
    if not definitions:
        raise StoreUnusable(f"the table plants is gone; {MEND}")
    for kind, sql in definitions:
        text = re.sub(r'[\s"`\[\]]', "", sql or "").lower()
        if text != _CONDENSED_TABLE and not text.startswith("createindex"):
            raise StoreUnusable(f"the {kind} on plants is not the store's own and might refuse plants")
