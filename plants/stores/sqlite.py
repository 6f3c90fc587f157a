"""One SQLite file: needs no further package, and is shared by all processes of one machine.

Each process has one connection that writes. After each commit the store checks that the path still leads to the file
that it opened first, because SQLite commits to a removed or replaced file without an error. A difference, or an error,
closes the connection. If the file was moved away, the store waits for it to return.
"""

import logging
import os
import re
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import unquote_to_bytes

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
from plants.stores.group_commit import BatchStore, Outcomes

_LOCK_POLL_SECONDS = 0.001  # SQLite itself would pause for up to 100 ms, and a busy process would lock out others.
_LOCKED_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_ACCESS_CODES = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}

_SET_UP = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA fullfsync = ON;  -- Without this, macOS may lose commits in a power cut.
"""
_TYPES = {int: "INTEGER", str: "TEXT"}
_NAMES = ", ".join(Plant._fields)
_DEFINITIONS = {column: column.define(_TYPES) for column in COLUMNS}
_CREATE = f"CREATE TABLE plants ({', '.join(_DEFINITIONS.values())})"
# ABORT overrides ON CONFLICT in the table's definition, which could replace a plant, or lose one, without an error.
_INSERT = f"INSERT OR ABORT INTO plants ({_NAMES}) VALUES ({', '.join('?' for _ in COLUMNS)})"  # noqa: S608  # constants
_SELECT = f"SELECT {_NAMES} FROM plants WHERE id = ?"  # noqa: S608  # constants
_OBJECTS = "SELECT type, name, sql FROM sqlite_master WHERE lower(tbl_name) = 'plants' AND type <> 'index'"
_FOUND_COLUMNS = """
    SELECT lower(name), upper(type), pk, hidden, "notnull" > (dflt_value IS NOT NULL OR hidden)
    FROM pragma_table_xinfo('plants')
"""

_UNTIL_RETURNED = "move it back, together with its log (-wal), and do not restart before that"
_TWO_NAMES = (
    "the file has a second name (a hard link), and SQLite keeps a log (-wal) beside each name that is used; stop all "
    "processes that use the file, then remove the name that has no log beside it"
)
_MOUNTED_ALONE = (
    "the file is mounted without its folder, so SQLite's log (-wal) would be lost with the container; mount the folder"
)

O_PATH: int | None = getattr(os, "O_PATH", None)
MOUNTS = Path("/proc/self/mountinfo")

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class SQLiteStore(BatchStore):
    """Plants in one SQLite file on a local disk. An acknowledged plant survives ``kill -9`` and a power cut.

    Each batch is one transaction, and no call returns before its commit. A commit that failed is not retried, because
    its outcome is unknown: every call in it raises StoreUnavailable.

    The directory must exist. Fork before the first use, because SQLite does not support a connection across a fork.
    """

    worker_threads = 2  # One thread parses and responds while the other commits.

    def __init__(self, path: str, timeout: float = 2.5) -> None:
        super().__init__(timeout)
        self._path = str(Path(path).absolute())
        self._printable_path = self._path.encode(errors="backslashreplace").decode()
        self._file: _File | None = None  # the one that was opened first
        self._write_lock = threading.Lock()  # guards the connection that writes
        self._writer: _Connection | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store for ``sqlite:///relative/file`` or ``sqlite:////absolute/file``, percent-encoded.

        :raises ValueError: the URL names no file, or has a query, a fragment or a NUL.
        """
        path = url.removeprefix("sqlite:///")
        if path in {url, "", ":memory:"} or re.search("[?#\0]|%00|/$", path):
            raise ValueError("the URL of an SQLite store is sqlite:///relative/file or sqlite:////absolute/file")
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
            # A new connection needs no lock, and waits for no commit. The service itself never reads.
            with closing(self._connect(timeout=self._timeout)) as reader:
                row = reader.execute(_SELECT, (plant_id,)).fetchone()
                reader.file.check(self._path)
        except (sqlite3.Error, OSError, StoreUnavailable) as error:
            raise self._unavailable(error) from error
        return None if row is None else Plant(*row)

    def _check(self, deadline: float) -> None:
        # Rewrite a page unchanged, because a full or read-only disk rejects that as it would reject a plant.
        self._write(_rewrite_page, deadline)

    def _try_insert(self, plant: Plant, deadline: float) -> None:
        if refusal := self._write(partial(_insert_and_roll_back, plant), deadline):
            raise refusal

    def _disconnect(self, deadline: float) -> None:
        with suppress(StoreUnavailable), self._locked(deadline):
            self._close_writer()
            if self._closed:
                self._file = None

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
        if isinstance(error, OSError):
            error = _explain(error, Path(self._path).parent)
        kind = type(error) if isinstance(error, StoreUnusable) else StoreUnavailable
        return kind(f"{self._printable_path}: {error}{_describe_access(error, self._path)}")

    def _write(self, work: Callable[[sqlite3.Connection], _T], deadline: float) -> _T:
        """Return what the work returns, once its transaction is committed."""
        with self._locked(deadline):
            writer = self._begin(deadline)
            writer.check_table()
            result = work(writer)
            if not writer.has_committed:
                # A process that was killed may have written plants to the log, but not flushed it. Flush it now, before
                # their ids are reported as in use.
                _rewrite_page(writer)
            writer.execute("COMMIT")
            writer.has_committed = True
            # A commit to a file that was removed or replaced stores nothing.
            writer.file.check(self._path)
        return result

    def _begin(self, deadline: float) -> "_Connection":
        """Return the connection once it may write."""
        while True:
            try:
                writer = self._writer = self._writer or self._connect()
                writer.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _LOCKED_CODES or time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_POLL_SECONDS)
            else:
                return writer

    def _connect(self, timeout: float = 0) -> "_Connection":
        self._check_open()
        path = os.path.realpath(self._path)  # SQLite keeps its log beside the file itself, not beside a link to it.
        if self._may_create:
            self._create_file(path)
        file = self._file or _File(path)
        file.check(self._path)
        with ExitStack() as on_failure:
            connection = _Connection(f"{Path(path).as_uri()}?mode=rw", file, timeout)
            on_failure.enter_context(closing(connection))
            connection.executescript(_SET_UP)
            if self._may_create:
                self._create_columns(connection)
            connection.check_table()
            file.check(self._path)
            on_failure.pop_all()
        self._file = file
        self._may_create = False
        return connection

    def _create_file(self, path: str) -> None:
        # Look for the log before the file. Otherwise, if another process creates both now, only its log might be found.
        if Path(f"{path}-wal").exists() and not Path(path).exists():
            raise StoreMissing("the file is gone, but not its log (-wal); move the file back beside it")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))

    def _create_columns(self, connection: sqlite3.Connection) -> None:
        """Create the table, or the nullable columns that an earlier version did not have."""
        if _find_columns(connection).keys() >= {column.name.lower() for column in COLUMNS}:
            return
        connection.execute("BEGIN IMMEDIATE")
        found = _find_columns(connection)
        if not found:  # The file is new, was made in advance, or was truncated.
            connection.execute(_CREATE)
            connection.execute("COMMIT")
            self.is_new = True
            _log.warning("%s had no table plants; it was created, without plants", self._printable_path)
            return
        missing = [column for column in COLUMNS if column.nullable and column.name.lower() not in found]
        for column in missing:
            connection.execute(f"ALTER TABLE plants ADD COLUMN {_DEFINITIONS[column]}")
        connection.execute("COMMIT")
        for column in missing:
            _log.warning("%s: the table plants now has the column %s", self._printable_path, column.name)


class _File:
    """A database file, at its path without links. While this object exists, no other file is mistaken for it.

    Linux uses the inode number of a removed file again, unless a descriptor refers to it. This one has O_PATH, because
    closing any other descriptor of the file releases the locks of SQLite in this process. A forked process inherits it.
    Elsewhere (APFS, NTFS), file systems do not use a number twice.

    :raises FileNotFoundError: there is no such file.
    :raises StoreUnusable: it is a folder, or the file is mounted without its folder.
    """

    def __init__(self, path: str) -> None:
        status = Path(path).stat()
        if O_PATH is not None:
            descriptor = os.open(path, O_PATH)
            weakref.finalize(self, os.close, descriptor)
            status = os.fstat(descriptor)
        self._path = path
        self._identity = status[1:3]
        if stat.S_ISDIR(status.st_mode):
            raise StoreUnusable("this is a folder; add the name of a file to the URL")
        if _is_mount_point(path):
            raise StoreUnusable(_MOUNTED_ALONE)

    def check(self, path: str) -> None:
        """Raise an error unless the path leads to this file, and the file was not moved and has no other name.

        :raises FileNotFoundError: there is no such file.
        :raises StoreUnusable: it is another file, or has another name.
        """
        status = os.stat(path)  # noqa: PTH116  # Path.stat takes twice as long, and this runs for each commit.
        # If the file was moved, and a link to it is in its place, two processes would write to different logs (-wal).
        if status[1:3] != self._identity or os.lstat(self._path)[1:3] != self._identity:
            raise StoreUnusable(f"the file was replaced; {_UNTIL_RETURNED}")
        if status.st_nlink > 1:
            raise StoreUnusable(_TWO_NAMES)


class _Connection(sqlite3.Connection):
    def __init__(self, uri: str, file: _File, timeout: float) -> None:
        super().__init__(uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)
        self.file = file
        self.has_committed = False
        self._schema_version = -1

    def check_table(self) -> None:
        """After a change of the schema, raise StoreUnusable if the table could lose or alter a plant."""
        (version,) = self.execute("PRAGMA schema_version").fetchone()
        if version != self._schema_version:
            _check_table(self)
            self._schema_version = version


def _is_mount_point(path: str) -> bool:
    # A bind mount may have the device number of the folder, and a file on overlayfs has another one, so read the list.
    escaped = re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", path)
    with suppress(OSError):  # Only Linux has this list.
        mounts = os.fsdecode(MOUNTS.read_bytes()).split("\n")
        return any(mount.split(" ", 5)[4:5] == [escaped] for mount in mounts)
    return False


def _explain(error: OSError, folder: Path) -> Exception:
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return StoreUnusable(f"there is no file, and no folder {folder} in which this user may create it")
    if isinstance(error, FileNotFoundError):
        free = "ids already in use would become available"
        return StoreMissing(f"the file is gone; it is not recreated, because {free}; {_UNTIL_RETURNED}")
    return error


def _describe_access(error: Exception, path: str) -> str:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _ACCESS_CODES:
        with suppress(OSError):
            status = Path(path).stat()
            owner, mode = status.st_uid, stat.filemode(status.st_mode)
            if os.statvfs(path).f_flag & os.ST_RDONLY:
                return "; it is on a read-only mount"
            return f"; it belongs to user {owner} with mode {mode}, and the service's user must own it and its folder"
    return ""


def _insert(plants: list[Plant], connection: sqlite3.Connection) -> Outcomes:
    cursor = connection.cursor()
    return [_insert_one(plant, cursor) for plant in plants]


def _insert_one(plant: Plant, cursor: sqlite3.Cursor) -> Exception | None:
    """Return why SQLite did not insert the plant, or None. The transaction goes on."""
    try:
        cursor.execute(_INSERT, plant)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        # SQLite's message might quote the plant.
        return PlantRefused("an expression of an index, a CHECK or a generated column failed")
    except sqlite3.IntegrityError as error:
        is_in_use = error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
        return PlantIdInUse(plant.id) if is_in_use else PlantRefused(str(error))
    except (ValueError, OverflowError, sqlite3.DataError) as error:  # SQLite cannot hold this plant.
        return error
    return None


def _insert_and_roll_back(plant: Plant, connection: sqlite3.Connection) -> Exception | None:
    connection.execute("SAVEPOINT sample")
    outcome = _insert_one(plant, connection.cursor())
    connection.execute("ROLLBACK TO sample")
    return outcome


def _rewrite_page(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")


def _find_columns(connection: sqlite3.Connection) -> dict[str, list[object]]:
    return {name: properties for name, *properties in connection.execute(_FOUND_COLUMNS)}


def _check_table(connection: sqlite3.Connection) -> None:
    (encoding,) = connection.execute("PRAGMA encoding").fetchone()
    if encoding != "UTF-8":
        raise StoreUnusable(f"the encoding of the file is {encoding}, not UTF-8")
    objects = connection.execute(_OBJECTS).fetchall()
    if not objects:
        raise StoreMissing(TABLE_GONE)
    for kind, name, sql in objects:
        if kind != "table" or not sql.startswith("CREATE TABLE"):
            raise StoreUnusable(f"the {kind} {name} of the table plants could lose or alter a plant without an error")
    _check_columns(connection)


def _check_columns(connection: sqlite3.Connection) -> None:
    found = _find_columns(connection)
    for column, definition in _DEFINITIONS.items():
        if found.pop(column.name.lower(), [])[:3] != [_TYPES[column.type], column.name == "id", 0]:
            raise StoreUnusable(f"the table plants has no column {definition}")
    for name, (_, is_key, _, is_required) in found.items():
        if is_key or is_required:
            raise StoreUnusable(f"the column {name} of the table plants is unknown, and has no default")
