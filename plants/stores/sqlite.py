"""One SQLite file: needs no further package, and is shared by all processes of one machine."""

import logging
import mmap
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import quote, unquote_to_bytes

from plants.stores import Plant, PlantIdInUse, StoreUnavailable
from plants.stores.batch import BatchStore
from plants.stores.breaker import StoreUnusable
from plants.stores.connections import CREATED, HOW_TO_RECOVER, WAL_LOST, Connections, Outcomes, process_identity
from plants.stores.memory import fork_safe_lock

_LOCK_POLL_SECONDS = 0.001  # SQLite itself would pause for up to 100 ms, and a busy process would lock out others.
_LOCKED_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

_SET_UP = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA fullfsync = ON;  -- Without this, macOS may lose commits in a power cut.
    -- A long-running reader makes the log grow. After it ends, SQLite truncates the log to this size.
    PRAGMA journal_size_limit = 16777216;
"""
_TABLE = "CREATE TABLE IF NOT EXISTS plants (id INTEGER PRIMARY KEY, name TEXT NOT NULL, tag TEXT)"
_CONDENSED_TABLE = "createtableplants(idintegerprimarykey,nametextnotnull,tagtext)"
_INSERT = "INSERT INTO plants (id, name, tag) VALUES (?, ?, ?)"
_SELECT = "SELECT name, tag FROM plants WHERE id = ?"
_SCHEMA = "SELECT type, sql FROM sqlite_master WHERE lower(tbl_name) = 'plants'"

_WAL_WARNING_BYTES = 67_108_864  # Normally SQLite copies the log into the file at 4 MB, and then reuses the log.

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# The files that this process has open, and the paths of those that its parent had open when it forked.
_open_files: "weakref.WeakSet[_OpenFile]" = weakref.WeakSet()
_inherited_files: set[str] = set()
_known_process = [process_identity()]


def _check_fork() -> None:
    with fork_safe_lock:
        if _known_process != [process_identity()]:
            _known_process[:] = [process_identity()]
            _inherited_files.update(file.real_path for file in _open_files)
            _open_files.clear()


os.register_at_fork(after_in_child=_check_fork)


class SQLiteStore(BatchStore):
    """Plants in one SQLite file on a local disk. An acknowledged plant survives ``kill -9`` and a power cut.

    Each batch is one transaction, and no call returns before its commit. A commit that failed is not retried, because
    its outcome is unknown: every call in it raises StoreUnavailable.

    The directory must exist. Fork before the first use, because SQLite does not support a connection across a fork. In
    a child of a process that has a connection, the store raises StoreUnavailable.
    """

    worker_threads = 2  # One thread parses and responds while the other commits.

    def __init__(self, path: str, timeout: float = 2.5) -> None:
        super().__init__(partial(_FileConnections, str(Path(path).absolute())), timeout)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store for ``sqlite:///relative/file`` or ``sqlite:////absolute/file``, percent-encoded.

        :raises ValueError: the URL names no file, or has a query, a fragment or a NUL.
        """
        path = url.removeprefix("sqlite:///")
        if path in {url, "", ":memory:"} or re.search("[?#\0]|%00|/$", path):
            raise ValueError("the URL of a SQLite store is sqlite:///relative/file or sqlite:////absolute/file")
        return cls(os.fsdecode(unquote_to_bytes(os.fsencode(path))))


class _LostWAL(StoreUnusable):
    """SQLite's write-ahead log was removed or replaced, but not the file."""

    def __init__(self) -> None:
        super().__init__("SQLite's log (-wal) was removed or replaced: wait until every process has closed the file")


class _FileConnections(Connections):
    """A connection that writes, and one that reads: with a write-ahead log, a reader waits for no writer."""

    def __init__(self, path: str, timeout: float, shared_state: mmap.mmap) -> None:
        self._path = path
        self._timeout = timeout
        self._shared_state = shared_state
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._writer: _OpenFile | None = None
        self._reader: _OpenFile | None = None
        self._last_opened: _OpenFile | None = None
        self._closed = False
        self._wal_too_long = False

    def insert(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        return self._write(lambda connection: _insert(collect(), connection), deadline)

    def find(self, plant_id: int, deadline: float) -> Plant | None:
        with self._locked(self._read_lock, deadline, self._close_reader):
            self._check_open()
            if self._shared_state[0] == WAL_LOST:
                raise _LostWAL  # Only the next write can recover from this.
            reader = self._reader = self._reader or self._connect(timeout=self._timeout)
            row = reader.connection.execute(_SELECT, (plant_id,)).fetchone()
            reader.check_unchanged()
        return None if row is None else Plant(plant_id, *row)

    def check(self, deadline: float) -> None:
        self._write(_rewrite_page, deadline)

    def close(self) -> None:
        self._closed = True
        deadline = time.monotonic() + self._timeout
        with suppress(StoreUnavailable), self._locked(self._read_lock, deadline, self._close_reader):
            self._close_reader()
        with suppress(StoreUnavailable), self._locked(self._write_lock, deadline, self._close_writer):
            self._checkpoint(deadline)
            self._close_writer()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _checkpoint(self, deadline: float) -> None:
        # The last connection to close copies the log into the file. If two close at once, possibly neither does.
        if self._writer:
            self._writer.check_unchanged()
            checkpoint = partial(self._writer.connection.execute, "PRAGMA wal_checkpoint")
            while checkpoint().fetchone()[0] and time.monotonic() < deadline:
                time.sleep(_LOCK_POLL_SECONDS)

    def _close_writer(self) -> None:
        if self._writer:
            self._writer.close()
            self._writer = None

    def _close_reader(self) -> None:
        if self._reader:
            self._reader.close()
            self._reader = None

    @contextmanager
    def _locked(self, lock: threading.Lock, deadline: float, close: Callable[[], None]) -> Iterator[None]:
        """Hold a lock. If the block fails, close the connection and raise StoreUnavailable."""
        if not lock.acquire(timeout=max(0, deadline - time.monotonic())):
            raise StoreUnavailable(f"{self._path}: no response in time")
        try:
            yield
        except BaseException as error:
            close()
            if isinstance(error, _LostWAL):
                self._shared_state[0] = WAL_LOST
            if isinstance(error, Exception):
                kind = StoreUnusable if isinstance(error, StoreUnusable) else StoreUnavailable
                raise kind(f"{self._path}: {error}") from error
            raise
        finally:
            lock.release()

    def _write(self, work: Callable[[sqlite3.Connection], _T], deadline: float) -> _T:
        """Return what the work returns, once its transaction is committed."""
        with self._locked(self._write_lock, deadline, self._close_writer):
            writer, waited = self._begin(deadline)
            began = time.monotonic()
            writer.check_table_unchanged()
            result = work(writer.connection)
            writer.connection.execute("COMMIT")
            # A commit to a file that was removed or replaced stores nothing.
            writer.check_unchanged()
            self._check_wal_size(writer)
            if waited:
                # Other processes also wait for SQLite's write lock. Pause long enough for one of them to acquire it.
                time.sleep(min(time.monotonic() - began, 2 * _LOCK_POLL_SECONDS))
        return result

    def _begin(self, deadline: float) -> tuple["_OpenFile", bool]:
        """Return the connection once it may write, and whether it had to wait."""
        self._check_open()
        waited = False
        while True:
            try:
                writer = self._writer = self._writer or self._connect_writer()
                writer.connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _LOCKED_CODES or time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_POLL_SECONDS)
                waited = True
            else:
                # If the -shm file was replaced, this process would miss other processes' locks and overwrite their log.
                writer.check_unchanged()
                return writer, waited

    def _connect_writer(self) -> "_OpenFile":
        if self._shared_state[0] == WAL_LOST:
            with self._read_lock:
                self._close_reader()
            # A connection that has the removed log open still copies it into the file when it closes. No new log may
            # begin before that, so first acquire an exclusive lock, which fails while such a connection is open.
            with closing(_OpenFile(self._path)) as file:
                file.connection.executescript("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; ROLLBACK")
        return self._connect()

    def _connect(self, timeout: float = 0) -> "_OpenFile":
        may_create = not self._shared_state[0]
        file = _OpenFile(self._path, timeout, may_create=may_create)
        try:
            file.check_wal(self._last_opened)
            file.connection.executescript(_SET_UP + _TABLE if may_create else _SET_UP)
            file.check_table_unchanged()
            file.identify()
        except BaseException:
            file.close()
            raise
        self._shared_state[0] = CREATED
        self._last_opened = file
        return file

    def _check_wal_size(self, writer: "_OpenFile") -> None:
        size = os.stat(writer.wal_path).st_size  # noqa: PTH116  # as in _identity
        too_long = size > _WAL_WARNING_BYTES
        if too_long and not self._wal_too_long:
            fault = "a long-running reader or a disk error keeps SQLite from emptying it"
            _log.warning("%s has %d MB: %s", writer.wal_path, size >> 20, fault)
        self._wal_too_long = too_long


class _OpenFile:
    """A connection, and the identities of the files that it uses."""

    def __init__(self, path: str, timeout: float = 0, *, may_create: bool = False) -> None:
        # SQLite keeps its log beside the file itself, not beside a symbolic link to it.
        self.real_path = os.path.realpath(path)
        _check_fork()  # uWSGI forks without calling Python's hooks.
        if self.real_path in _inherited_files:
            raise StoreUnusable(
                "this process was forked while its parent had the file open, and SQLite would lose plants; "
                "fork before the first use"
            )
        self.wal_path = f"{self.real_path}-wal"
        # Look for the log before the file. Otherwise, if another process creates both now, only its log might be found.
        has_wal = Path(self.wal_path).exists()
        if not Path(self.real_path).exists() and (has_wal or not may_create):
            lost = "the file is gone, but not its log (-wal); restore the file, or move the log away to begin empty"
            raise StoreUnusable(lost if may_create else f"the file is gone; {HOW_TO_RECOVER}")
        uri = f"file:{quote(os.fsencode(self.real_path))}?mode={'rwc' if may_create else 'rw'}"
        _open_files.add(self)  # Add it before it is open, because another thread may fork meanwhile.
        connect = partial(sqlite3.connect, isolation_level=None, check_same_thread=False)
        self.connection = connect(uri, uri=True, timeout=timeout)
        self._schema_version = -1
        self._paths = path, self.wal_path, f"{self.real_path}-shm"

    def close(self) -> None:
        self.connection.close()
        _open_files.discard(self)

    def check_wal(self, earlier: "_OpenFile | None") -> None:
        """Raise StoreUnusable if the log belongs to an earlier file, because SQLite would mix both files' pages."""
        self.identify()
        file, wal, _ = self._identities
        if earlier and wal and file != earlier._identities[0] and wal == earlier._identities[1]:
            raise StoreUnusable(
                "the file was replaced, but SQLite's log (-wal) is that of the old file: if the new file is a backup, "
                "move the log and the -shm away; if it is a copy of the old file, restart"
            )

    def identify(self) -> None:
        """Record the identities of the database file, its write-ahead log and its shared-memory file."""
        self._identities = [_identity(path) for path in self._paths]

    def check_unchanged(self) -> None:
        """Raise StoreUnusable if one of the files was removed or replaced."""
        found = [_identity(path) for path in self._paths]
        if found == self._identities and all(found):
            return
        if found[0] == self._identities[0] and found[1] != self._identities[1]:
            raise _LostWAL
        raise StoreUnusable(
            "the file or a file beside it was removed or replaced; restore it, or restart to use what is there"
        )

    def check_table_unchanged(self) -> None:
        """After a change of the schema, raise StoreUnusable if the table's definition is not the store's own."""
        (version,) = self.connection.execute("PRAGMA schema_version").fetchone()
        if version != self._schema_version:
            _check_table(self.connection)
            self._schema_version = version


def _identity(file: str) -> tuple[int, ...] | None:
    with suppress(OSError):
        return os.stat(file)[1:3]  # noqa: PTH116  # Path.stat takes twice as long, and this runs six times per commit
    return None


def _insert(plants: list[Plant], connection: sqlite3.Connection) -> Outcomes:
    outcomes: Outcomes = []
    cursor = connection.cursor()
    for plant in plants:
        outcome: Exception | None = None
        try:
            cursor.execute(_INSERT, plant)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            outcome = StoreUnavailable(str(error))  # An index expression failed, which undoes this statement alone.
        except sqlite3.IntegrityError as error:
            is_in_use = error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
            outcome = PlantIdInUse(plant.id) if is_in_use else StoreUnavailable(str(error))
        except (ValueError, OverflowError, sqlite3.DataError) as error:  # SQLite cannot hold this plant.
            outcome = error
        else:
            if cursor.rowcount != 1:
                raise StoreUnusable("the table plants did not store a plant, and reported no error")
        outcomes.append(outcome)
    return outcomes


def _rewrite_page(connection: sqlite3.Connection) -> None:
    """Rewrite a page unchanged, because a full or read-only disk rejects that as it would reject a plant."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")
    # An index may need a function or a collation that only another program defines. SQLite then rejects any INSERT.
    connection.execute("INSERT INTO plants (id, name, tag) SELECT 0, '', '' WHERE 0")


def _check_table(connection: sqlite3.Connection) -> None:
    (encoding,) = connection.execute("PRAGMA encoding").fetchone()
    if encoding != "UTF-8":
        raise StoreUnusable(f"the encoding of the file is {encoding}, not UTF-8")
    definitions = connection.execute(_SCHEMA).fetchall()
    if not definitions:
        raise StoreUnusable(f"the table plants is gone; {HOW_TO_RECOVER}")
    for kind, sql in definitions:
        text = re.sub(r'[\s"`\[\]]', "", sql or "").lower()
        if text != _CONDENSED_TABLE and not text.startswith("createindex"):
            definition = f"a definition ({kind}) that is not the store's own and might reject inserts"
            raise StoreUnusable(f"the table plants has {definition}")
