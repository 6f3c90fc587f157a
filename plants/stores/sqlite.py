"""One SQLite file: needs no further package, and is shared by all processes of one machine.

Each process has one connection that writes. After each commit the store checks that the path still leads to the file
that it opened first, because SQLite commits to a removed or replaced file without an error. A difference, or an error,
closes the connection. If the file was moved away, the store waits for it to return.
"""

import logging
import os
import re
import sqlite3
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import chain
from operator import length_hint
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import unquote_to_bytes

from plants.stores import COLUMNS, GONE, TABLE_GONE, Plant, PlantIdInUse, PlantRefused, StoreUnavailable, StoreUnusable
from plants.stores.group_commit import GroupCommitStore
from plants.stores.health import Outcomes

_LOCK_POLL_SECONDS = 0.001  # SQLite itself would pause for up to 100 ms, and a busy process would lock out others.
_LOCKED_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

_SET_UP = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA fullfsync = ON;  -- Without this, macOS may lose commits in a power cut.
    PRAGMA journal_size_limit = 67108864;  -- Without this, the log (-wal) stays as large as a long reader made it.
"""
_TYPES = {int: "INTEGER", str: "TEXT"}
_NAMES = ", ".join(Plant._fields)
_DEFINITIONS = {column: column.define(_TYPES) for column in COLUMNS}
_CREATE = f"CREATE TABLE plants ({', '.join(_DEFINITIONS.values())})"
# ABORT overrides ON CONFLICT in the table's definition, which could replace a plant, or lose one, without an error.
_INSERT = f"INSERT OR ABORT INTO plants ({_NAMES}) VALUES ({', '.join('?' for _ in COLUMNS)})"  # noqa: S608  # constants
_SELECT = f"SELECT {_NAMES} FROM plants WHERE id = ?"  # noqa: S608  # constants
_OBJECTS = "SELECT type, name, sql FROM sqlite_master WHERE lower(tbl_name) = 'plants' AND type <> 'index'"
_FOUND_COLUMNS = "SELECT lower(name), upper(type), pk, hidden, [notnull], dflt_value FROM pragma_table_xinfo('plants')"

_UNTIL_RETURNED = "move it back, together with its log (-wal), and do not restart before that"
_FILE_GONE = f"the file {GONE}; {_UNTIL_RETURNED}"
_TWO_NAMES = (
    "the file has a second name (a hard link), and SQLite keeps a log (-wal) beside each name that is used; stop all "
    "processes that use the file, then remove the name that has no log beside it"
)
_MOUNTED_ALONE = (
    "the file is mounted without its folder, so SQLite's log (-wal) would be lost with the container; mount the folder"
)

_stat = os.stat  # Path.stat takes twice as long, and this runs for each commit.
O_PATH: int | None = getattr(os, "O_PATH", None)
MOUNTS = Path("/proc/self/mountinfo")

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class SQLiteStore(GroupCommitStore):
    """Plants in one SQLite file on a local disk. An acknowledged plant survives ``kill -9`` and a power cut.

    Each batch is one transaction, and no call returns before its commit. A commit that failed is not retried, because
    its outcome is unknown: every call in it raises StoreUnavailable.

    The directory must exist. Fork before the first use, because SQLite does not support a connection across a fork.
    """

    def __init__(self, path: str, timeout: float = 1.8) -> None:
        super().__init__(timeout)
        self._path = str(Path(path).absolute())
        self._printable_path = self._path.encode(errors="backslashreplace").decode()
        self._file: _File | None = None  # the one that was opened first

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store for ``sqlite:///relative/file`` or ``sqlite:////absolute/file``, percent-encoded.

        :raises ValueError: the URL names no file, or has a query, a fragment or a NUL.
        """
        path = url.removeprefix("sqlite:///")
        if path in {url, "", ":memory:"} or re.search("[?#\0]|%00|/$", path):
            raise ValueError("the URL of an SQLite store is sqlite:///relative/file or sqlite:////absolute/file")
        return cls(os.fsdecode(unquote_to_bytes(os.fsencode(path))))

    def _connect(self) -> "_Connection":
        return self._poll(self._open)

    def _insert(self, connection: "_Connection", collect: Callable[[], list[Plant]]) -> Outcomes:
        self._poll(partial(connection.execute, "BEGIN IMMEDIATE"))
        # Do not repeat what follows, because the outcome of a commit that failed is unknown.
        return self._poll(partial(self._insert_batch, connection, collect), repeats=False)

    def _find(self, connection: "_Connection", plant_id: int) -> Plant | None:
        rows = self._poll(lambda: connection.execute(_SELECT, (plant_id,)).fetchall())
        self._poll(partial(connection.file.check, self._path))
        return Plant(*rows[0]) if rows else None

    def _poll(self, work: Callable[[], _T], *, repeats: bool = True) -> _T:
        """Return what the work returns; repeat it while another process holds the lock.

        :raises StoreUnavailable: the work failed.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return work()
            except (sqlite3.Error, OSError, StoreUnavailable) as error:
                is_locked = getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED_CODES
                if not (repeats and is_locked) or time.monotonic() > deadline:
                    raise self._unavailable(error) from error
            time.sleep(_LOCK_POLL_SECONDS)

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        """Return an error that names the files that this user may not write, which SQLite's own errors do not."""
        file = Path(os.path.realpath(self._path))
        # If it was never there, only a missing folder prevents its creation.
        is_gone = isinstance(error, FileNotFoundError) and (file.parent.is_dir() or not self._may_create)
        text = f"{self._printable_path}: {_FILE_GONE if is_gone else error}"
        lasts = isinstance(error, StoreUnusable | OSError) or type(error) is sqlite3.DatabaseError  # malformed
        for each in (file, Path(f"{file}-wal"), Path(f"{file}-shm"), file.parent):
            with suppress(OSError):
                owner = each.stat().st_uid
                if not os.access(each, os.W_OK):
                    lasts = True
                    text += f"; uid {os.geteuid()} may not write {str(each)!r}: fix owner (uid {owner}), mode or mount"
        return StoreUnusable(text) if lasts else StoreUnavailable(text)

    def _insert_batch(self, connection: "_Connection", collect: Callable[[], list[Plant]]) -> Outcomes:
        connection.check_table()
        plants = collect()
        try:
            outcomes = connection.insert(plants)
        except sqlite3.Error as error:  # A page may be malformed; plants that need other pages can be stored.
            connection.rollback()
            if not (half := len(plants) // 2):
                return [self._unavailable(error)]
            parts = (plants[:half], plants[half:])
            return [outcome for part in parts for outcome in self._insert(connection, partial(list, part))]
        if self._health.down_reason or (plants and not connection.has_committed):
            # Rewrite a page unchanged. A disk that is still full rejects that as it would reject a plant. Besides, a
            # process that was killed may have written plants to the log, but not flushed it. Flush it now, before their
            # ids are reported as in use.
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA user_version = {version}")
            connection.has_committed = True
        connection.execute("COMMIT")  # If nothing was changed, this writes nothing.
        connection.file.check(self._path)  # A commit to a file that was removed or replaced stores nothing.
        return outcomes

    def _open(self) -> "_Connection":
        path = os.path.realpath(self._path)  # SQLite keeps its log beside the file itself, not beside a link to it.
        # Look for the log before the file. Otherwise, if another process creates both now, only its log might be found.
        has_log = Path(f"{path}-wal").exists()
        if self._may_create and not has_log:
            with suppress(FileExistsError):
                Path(path).touch(0o644, exist_ok=False)
        file = self._file or _File(path)
        file.check(self._path)
        if has_log and not _stat(path).st_size:
            raise StoreUnusable(f"the file is empty, but not its log (-wal); {_UNTIL_RETURNED}")
        with ExitStack() as on_failure:
            connection = _Connection(f"{Path(path).as_uri()}?mode=rw", file)
            on_failure.enter_context(closing(connection))
            # Inspect it before anything in the file is changed.
            statements = _inspect(connection, may_complete=self._may_create)
            connection.executescript(_SET_UP)
            if statements:
                self._complete(connection)
            file.check(self._path)
            on_failure.pop_all()
        self._file = file
        self._had_table[0] = 1
        return connection

    def _complete(self, connection: "_Connection") -> None:
        """Create the table, or the nullable columns that an earlier version did not have."""
        connection.execute("BEGIN IMMEDIATE")
        statements = _inspect(connection, may_complete=True)  # Another process may have completed it meanwhile.
        for statement in statements:
            connection.execute(statement)
        connection.execute("COMMIT")
        for change in statements.values():
            _log.info("%s: %s", self._printable_path, change)


class _File:
    """A database file, at its path without links. While this object exists, no other file is mistaken for it.

    Linux uses the inode number of a removed file again, unless a descriptor refers to it. This one has O_PATH, because
    closing any other descriptor of the file releases the locks of SQLite in this process. A forked process inherits it.
    Elsewhere (APFS, NTFS), file systems do not use a number twice.

    :raises FileNotFoundError: it is gone.
    :raises StoreUnusable: it is not a regular file, or it is mounted without its folder.
    """

    def __init__(self, path: str) -> None:
        status = _stat(path)
        if O_PATH is not None:
            descriptor = os.open(path, O_PATH)
            weakref.finalize(self, os.close, descriptor)
            status = os.fstat(descriptor)
        self._path = path
        self._identity = status[1:3]
        if not Path(path).is_file():
            raise StoreUnusable("this is not a regular file")
        if _is_mount_point(path):
            raise StoreUnusable(_MOUNTED_ALONE)

    def check(self, path: str) -> None:
        """Raise an error unless the path leads to this file, and the file was not moved and has no other name.

        :raises FileNotFoundError: it is gone.
        :raises StoreUnavailable: it is another file, or it has another name.
        """
        status = _stat(path)
        # If the file was moved, and a link to it is in its place, two processes would write to different logs (-wal).
        if status[1:3] != self._identity or os.lstat(self._path)[1:3] != self._identity:
            raise StoreUnavailable(f"the file was replaced; {_UNTIL_RETURNED}")
        if status.st_nlink > 1:
            raise StoreUnavailable(_TWO_NAMES)


class _Connection(sqlite3.Connection):
    def __init__(self, uri: str, file: _File) -> None:
        super().__init__(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        self.file = file
        self.has_committed = False
        self._schema_version = -1

    def check_table(self) -> None:
        """After a change of the schema, raise StoreUnavailable if the table lacks a column or could lose a plant."""
        (version,) = self.execute("PRAGMA schema_version").fetchone()
        if version != self._schema_version:
            _inspect(self, may_complete=False)
            self.execute("DELETE FROM plants WHERE false")  # Without permission, a transaction can begin.
            self._schema_version = version

    def insert(self, plants: list[Plant]) -> Outcomes:
        """Insert plants; if SQLite does not insert one, the transaction goes on."""
        outcomes: Outcomes = [None] * len(plants)
        remaining = iter(plants)
        for plant in remaining:  # Each attempt takes at least one plant, even if SQLite cannot prepare the statement.
            try:
                self.executemany(_INSERT, chain([plant], remaining))
            except (sqlite3.Error, ValueError, OverflowError) as error:
                index = len(plants) - length_hint(remaining) - 1
                outcomes[index] = _blame_plant(plants[index], error)
        return outcomes


def _is_mount_point(path: str) -> bool:
    # A bind mount may have the device number of the folder, and a file on overlayfs has another one, so read the list.
    escaped = re.sub(r"[ \t\n\\]", lambda found: f"\\{ord(found[0]):03o}", path)
    with suppress(OSError):  # Only Linux has this list.
        mounts = os.fsdecode(MOUNTS.read_bytes()).split("\n")
        return any(mount.split(" ", 5)[4:5] == [escaped] for mount in mounts)
    return False


def _blame_plant(plant: Plant, error: Exception) -> Exception:
    """Return why SQLite did not insert the plant; raise the error if the plant is not the cause."""
    if isinstance(error, sqlite3.IntegrityError):
        is_in_use = error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
        return PlantIdInUse(plant.id) if is_in_use else PlantRefused(str(error))
    if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
        # SQLite's message might quote the plant.
        return PlantRefused("an expression of an index, a CHECK or a generated column failed")
    if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.DataError):
        raise error
    return error  # SQLite cannot hold this plant.


def _inspect(connection: sqlite3.Connection, *, may_complete: bool) -> dict[str, str]:
    """Return the statements that make the table complete, each with its line in the log.

    :param may_complete: whether the table may be missing or lack nullable columns.
    :raises StoreUnavailable: it must be complete and is not; or with it, the store could lose or alter a plant.
    """
    (encoding,) = connection.execute("PRAGMA encoding").fetchone()
    if encoding != "UTF-8":
        raise StoreUnavailable(f"the encoding of the file is {encoding}, not UTF-8")
    objects = connection.execute(_OBJECTS).fetchall()
    if not objects:  # The file is new, was made in advance, or was truncated.
        if not may_complete:
            raise StoreUnavailable(TABLE_GONE)
        return {_CREATE: "created the table plants: this is a new, empty store"}
    for kind, name, sql in objects:
        if kind != "table" or not sql.startswith("CREATE TABLE"):
            raise StoreUnavailable(f"the {kind} {name} of the table plants could lose or alter a plant silently")
    found = {name: properties for name, *properties in connection.execute(_FOUND_COLUMNS)}
    statements = {}
    for column, definition in _DEFINITIONS.items():
        properties = found.pop(column.name.lower(), None)
        if properties is None and column.nullable and may_complete:
            statements[f"ALTER TABLE plants ADD COLUMN {definition}"] = f"added the column {definition}"
        elif properties is None or properties[:3] != [_TYPES[column.type], column.name == "id", 0]:
            raise StoreUnavailable(f"the table plants has no column {definition}")
    for name, (_, is_key, hidden, is_required, default) in found.items():
        if is_key or (statements and is_required and default is None and not hidden):
            raise StoreUnavailable(f"the column {name} of the table plants is in the key, or must have a value")
    return statements
