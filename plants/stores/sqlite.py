"""One SQLite file: needs no further package, and is shared by all processes of one machine.

Each process has one connection that writes. A transaction first acquires SQLite's write lock, then compares the files
with those that the connection opened: to a file that was removed or replaced, SQLite commits without an error. A
difference, or an error, closes the connection. If the file itself was moved away, the store waits for it to return. If
SQLite's log was lost, only a restart of all processes helps. A truncated log is never copied into the file, because
that would damage the file.
"""

import ctypes
import logging
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

from plants.stores import Plant, PlantIdInUse, StoreMissing, StoreUnavailable, StoreUnusable
from plants.stores.group_commit import BatchStore, Outcomes

_LOCK_POLL_SECONDS = 0.001  # SQLite itself would pause for up to 100 ms, and a busy process would lock out others.
_LOCKED_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_WAL_MAGIC = {b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"}

_SET_UP = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA fullfsync = ON;  -- Without this, macOS may lose commits in a power cut.
    PRAGMA journal_size_limit = -1;  -- SQLite never truncates the log, so a truncated one is noticed.
"""
_TABLE = "CREATE TABLE IF NOT EXISTS plants (id INTEGER PRIMARY KEY, name TEXT NOT NULL, tag TEXT)"
_CONDENSED_TABLE = "createtableplants(idintegerprimarykey,nametextnotnull,tagtext)"
_INSERT = "INSERT INTO plants (id, name, tag) VALUES (?, ?, ?)"
_SELECT = "SELECT name, tag FROM plants WHERE id = ?"
_SCHEMA = "SELECT type, sql FROM sqlite_master WHERE lower(tbl_name) = 'plants'"

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# The files that this process has open, and those that its parent had open when it forked.
_open_files: "weakref.WeakSet[_OpenFile]" = weakref.WeakSet()


class SQLiteStore(BatchStore):
    """Plants in one SQLite file on a local disk. An acknowledged plant survives ``kill -9`` and a power cut.

    Each batch is one transaction, and no call returns before its commit. A commit that failed is not retried, because
    its outcome is unknown: every call in it raises StoreUnavailable.

    The directory must exist. Fork before the first use, because SQLite does not support a connection across a fork. In
    a child of a process that has a connection, the store raises StoreUnavailable.
    """

    worker_threads = 2  # One thread parses and responds while the other commits.

    def __init__(self, path: str, timeout: float = 2.5) -> None:
        super().__init__(timeout)
        self._path = str(Path(path).absolute())
        self._printable_path = self._path.encode(errors="backslashreplace").decode()
        self._file_identity: tuple[int, ...] | None = None  # of the file that this store uses
        self._lost_log: StoreUnusable | None = None  # set when SQLite's log was lost; only a restart helps
        self._write_lock = threading.Lock()  # guards the connection that writes
        self._writer: _OpenFile | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store for ``sqlite:///relative/file`` or ``sqlite:////absolute/file``, percent-encoded.

        :raises ValueError: the URL names no file, or has a query, a fragment or a NUL.
        """
        path = url.removeprefix("sqlite:///")
        if path in {url, "", ":memory:"} or re.search("[?#\0]|%00|/$", path):
            raise ValueError("the URL of a SQLite store is sqlite:///relative/file or sqlite:////absolute/file")
        return cls(os.fsdecode(unquote_to_bytes(os.fsencode(path))))

    def prepare(self, *, create: bool = True) -> None:
        try:
            super().prepare(create=create)
        finally:
            self._may_create = False  # Even if this failed, no worker creates the file.

    def _insert(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        return self._write(lambda connection: _insert(collect(), connection), deadline)

    def _find(self, plant_id: int, deadline: float) -> Plant | None:  # noqa: ARG002  # SQLite has its own timeout.
        try:
            self._check_usable()
            # A new connection needs no lock, and waits for no commit. The service itself never reads.
            with closing(self._connect(timeout=self._timeout)) as reader:
                row = reader.connection.execute(_SELECT, (plant_id,)).fetchone()
                reader.check_unchanged()
        except (sqlite3.Error, StoreUnavailable) as error:
            raise self._unavailable(error) from error
        return None if row is None else Plant(plant_id, *row)

    def _check(self, deadline: float) -> None:
        # Rewrite a page unchanged, because a full or read-only disk rejects that as it would reject a plant.
        self._write(_rewrite_page, deadline)

    def _try_insert(self, deadline: float) -> None:
        self._check(deadline)

    def _disconnect(self, deadline: float) -> None:
        with suppress(StoreUnavailable), self._locked(deadline):
            self._close_writer()

    def _check_usable(self) -> None:
        if self._lost_log:
            raise _LostLog(*self._lost_log.args)
        self._check_open()

    def _close_writer(self) -> None:
        if self._writer:
            self._writer.close()
            self._writer = None

    @contextmanager
    def _locked(self, deadline: float) -> Iterator[None]:
        """Hold the lock. If the block fails, close the connection and raise StoreUnavailable."""
        if not self._write_lock.acquire(timeout=max(0, deadline - time.monotonic())):
            raise self._unavailable(StoreUnavailable("no response in time"))
        try:
            yield
        except BaseException as error:
            self._close_writer()
            if isinstance(error, Exception):
                raise self._unavailable(error) from error
            raise
        finally:
            self._write_lock.release()

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        if isinstance(error, _LostLog):
            self._lost_log = error
        kind = type(error) if isinstance(error, StoreUnusable) else StoreUnavailable
        return kind(f"{self._printable_path}: {error}")

    def _write(self, work: Callable[[sqlite3.Connection], _T], deadline: float) -> _T:
        """Return what the work returns, once its transaction is committed."""
        with self._locked(deadline):
            writer, waited = self._begin(deadline)
            began = time.monotonic()
            writer.check_table_unchanged()
            result = work(writer.connection)
            if not writer.has_committed:
                # A process that was killed may have written plants to the log, but not flushed it. Flush it now, before
                # their ids are reported as in use.
                _rewrite_page(writer.connection)
            writer.connection.execute("COMMIT")
            writer.has_committed = True
            # A commit to a file that was removed or replaced stores nothing.
            writer.check_unchanged()
            if waited:
                # Other processes also wait for SQLite's write lock. Pause long enough for one of them to acquire it.
                time.sleep(min(time.monotonic() - began, 2 * _LOCK_POLL_SECONDS))
        return result

    def _begin(self, deadline: float) -> tuple["_OpenFile", bool]:
        """Return the connection once it may write, and whether it had to wait."""
        self._check_usable()
        waited = False
        while True:
            try:
                writer = self._writer = self._writer or self._connect()
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

    def _connect(self, timeout: float = 0) -> "_OpenFile":
        file = _OpenFile(self._path, timeout, self._file_identity, may_create=self._may_create)
        try:
            file.connection.executescript(_SET_UP + _TABLE if self._may_create else _SET_UP)
            file.check_table_unchanged()
            file.identify()
        except BaseException:
            file.close()
            raise
        if file.is_new:
            self.is_new = True
            _log.warning("%s did not exist; a new store was created, without plants", self._printable_path)
        self._may_create = False
        self._file_identity = file.identities[0]
        return file


class _LostLog(StoreUnusable):
    """SQLite's write-ahead log, or the index of the log, was removed, replaced or truncated."""


class _OpenFile:
    """A connection, and the identities of the files that it uses.

    :param expected: the identity that an existing file must have, or None.
    :raises StoreUnusable: there is no such file and it may not be created, or it is another one.
    """

    def __init__(self, path: str, timeout: float, expected: tuple[int, ...] | None, *, may_create: bool) -> None:
        # SQLite keeps its log beside the file itself, not beside a symbolic link to it.
        self.real_path = os.path.realpath(path)
        self.wal_path = f"{self.real_path}-wal"
        self.has_committed = False
        self.pid = os.getpid()
        self._check_fork()
        self._check_before_opening(expected, may_create=may_create)
        uri = f"file:{quote(os.fsencode(self.real_path))}?mode={'rwc' if may_create else 'rw'}"
        connect = partial(sqlite3.connect, isolation_level=None, check_same_thread=False)
        self.connection = connect(uri, uri=True, timeout=timeout)
        _open_files.add(self)
        self._schema_version = -1
        self._paths = path, self.wal_path, f"{self.real_path}-shm"
        self._wal_descriptor = -1
        self._wal_bytes = 0
        self._wal_truncated = False

    def _check_fork(self) -> None:
        # In a fork, SQLite would believe that it holds the locks of its parent.
        if any(file.real_path == self.real_path and file.pid != self.pid for file in _open_files):
            raise StoreUnusable(
                "this process was forked while its parent had the file open, and SQLite would lose plants; "
                "fork before the first use"
            )

    def _check_before_opening(self, expected: tuple[int, ...] | None, *, may_create: bool) -> None:
        # Look for the log before the file. Otherwise, if another process creates both now, only its log might be found.
        has_wal = Path(self.wal_path).exists()
        found = _identity(self.real_path)
        self.is_new = found is None
        folder = Path(self.real_path).parent
        if found is None and not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            raise StoreUnusable(f"there is no file, and no folder {folder} in which this user may create it")
        if found is None and not may_create:
            raise StoreMissing(
                "the file is gone; it is not recreated, because ids already in use would become available; "
                "move it back, and do not restart before that"
            )
        if found is None and has_wal:
            raise StoreMissing("the file is gone, but not its log (-wal); move the file back beside it")
        if expected and found and found != expected:
            raise StoreUnusable(
                "the file was replaced; move the right one back, together with its log (-wal), and do not restart "
                "before that"
            )

    def close(self) -> None:
        if self._is_wal_truncated():
            # SQLite would copy what is left of the log into the file, and damage it. So never close the connection.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))
        else:
            self.connection.close()
        if self._wal_descriptor >= 0:
            os.close(self._wal_descriptor)
        _open_files.discard(self)

    def identify(self) -> None:
        """Record the identities of the database file, its write-ahead log and its shared-memory file."""
        self.identities = [_identity(path) for path in self._paths]
        self._wal_descriptor = os.open(self.wal_path, os.O_RDONLY | os.O_CLOEXEC)

    def check_unchanged(self) -> None:
        """Raise StoreUnusable if one of the files was removed, replaced or truncated."""
        found = [_identity(path) for path in self._paths]
        if found[0] != self.identities[0]:
            raise StoreUnusable(
                "the file was removed or replaced; move it back, together with its log (-wal), and do not restart "
                "before that, because ids already in use would become available"
            )
        if found != self.identities or not all(found):
            raise _LostLog(
                "SQLite's log (-wal) or the log's index (-shm) was removed or replaced; stop all processes that use "
                "the file, with TERM and never with KILL, so that the last one copies the log into the file; then start"
            )
        if self._is_wal_truncated():
            raise _LostLog(
                "SQLite's log (-wal) was truncated, so plants may be lost; before you restart, read what "
                "docs/stores.md says of it"
            )

    def _is_wal_truncated(self) -> bool:
        if self._wal_descriptor < 0 or self._wal_truncated:
            return self._wal_truncated
        size = os.fstat(self._wal_descriptor).st_size
        # Before the first commit, the log may be what is left of an earlier one, which SQLite does not use.
        has_header = not self.has_committed or os.pread(self._wal_descriptor, 4, 0) in _WAL_MAGIC
        self._wal_truncated = size < self._wal_bytes or not has_header
        self._wal_bytes = size
        return self._wal_truncated

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
        outcomes.append(outcome)
    return outcomes


def _rewrite_page(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")


def _check_table(connection: sqlite3.Connection) -> None:
    (encoding,) = connection.execute("PRAGMA encoding").fetchone()
    if encoding != "UTF-8":
        raise StoreUnusable(f"the encoding of the file is {encoding}, not UTF-8")
    definitions = connection.execute(_SCHEMA).fetchall()
    if not definitions:
        raise StoreMissing(
            "the table plants is gone; it is not recreated, because ids already in use would become available; "
            "restore it, and do not restart before that"
        )
    for kind, sql in definitions:
        text = re.sub(r'[\s"`\[\]]', "", sql or "").lower()
        if text != _CONDENSED_TABLE and not text.startswith("createindex"):
            definition = f"a definition ({kind}) that is not the store's own and might reject inserts"
            raise StoreUnusable(f"the table plants has {definition}")
