"""One SQLite file: needs no further package, and is shared by all processes of one machine."""

import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, unquote_to_bytes

from plants.stores import Plant, PlantIdInUse, PlantStore, StoreUnavailable

_LOCK_POLL = 0.001  # SQLite's own waits grow to 100 ms, and starve a process beside a busy one

_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

_SET_UP = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # macOS keeps nothing through a power cut without it
    "CREATE TABLE IF NOT EXISTS plants (id INTEGER PRIMARY KEY, name TEXT NOT NULL, tag TEXT)",
)
_INSERT = "INSERT INTO plants (id, name, tag) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING id"

# A plant that SQLite cannot hold.
_NO_FAULT_OF_OTHERS = (ValueError, OverflowError, sqlite3.DataError)

_T = TypeVar("_T")


class SQLiteStore(PlantStore):
    """Plants in one SQLite file on a local disk. An acknowledged plant survives ``kill -9`` and a power cut.

    In each process one thread owns the connection and runs everything that waits in one transaction (group commit),
    so that the price of making it durable is paid once for all of them. Nobody is answered before the commit, and
    nothing is tried again after a commit that failed: what became of it is not known, and StoreUnavailable says so.

    The file is made on the first use, its directory is not. A file that disappears from under a running store is not
    made again, because ids that were in use would be free: the store is unavailable until the file is back.

    No call takes longer than ``patience``, in seconds, whatever the disk and other processes do. Fork before the first
    use: SQLite does not carry a connection across a fork.
    """

    def __init__(self, path: str, patience: float = 2.5) -> None:
        self._path = str(Path(path).absolute())
        self._patience = patience
        self._writers: dict[int, _Writer] = {}
        self._here = _Here()

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Give the store for ``sqlite:///relative/file`` or ``sqlite:////absolute/file``, percent-encoded.

        :raises ValueError: the URL names no file, or has more than a file.
        """
        before, slashes, path = url.partition("sqlite:///")
        if before or not slashes or path in {"", ":memory:"} or set(path) & set("?#") or "%00" in path:
            raise ValueError("the URL of a SQLite store is sqlite:///relative/file or sqlite:////absolute/file")
        if sqlite3.sqlite_version_info < (3, 35):
            raise ValueError(f"a SQLite store needs SQLite 3.35, and this Python has {sqlite3.sqlite_version}")
        return cls(os.fsdecode(unquote_to_bytes(path)))

    def add(self, plant: Plant) -> None:
        parameters = (plant.id, plant.name, plant.tag)
        if self._run(lambda connection: connection.execute(_INSERT, parameters).fetchone()) is None:
            raise PlantIdInUse(plant.id)

    def get(self, plant_id: int) -> Plant | None:
        row = self._run(
            lambda connection: connection.execute("SELECT name, tag FROM plants WHERE id = ?", (plant_id,)).fetchone()
        )
        return None if row is None else Plant(plant_id, *row)

    def check(self) -> None:
        self._run(_write_nothing_new)

    def together(self, calls: Sequence[Callable[[], _T]]) -> list[_T | StoreUnavailable]:
        """Run the calls, one after the other, in a thread of the store's, and keep all that they add at once.

        Given are the calls' results in order. In the place of one that used the store, and may not be kept, there is a
        StoreUnavailable; so is there for one that has not returned in time.
        """
        attempt = _Together(calls, self._here)
        try:
            self._writer().run(attempt.work)
        except StoreUnavailable as error:
            return attempt.give_up(error)
        return [result for result, _ in attempt.results]

    def close(self) -> None:
        self._writer().close()

    def _run(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        attempt = self._here.attempt
        return attempt.run(work) if attempt else self._writer().run(work)

    def _writer(self) -> "_Writer":
        # A parent's writer stays in the dictionary of its child, unused: to close its connection here would be to
        # close files under the parent's locks.
        pid = os.getpid()
        return self._writers.get(pid) or self._writers.setdefault(pid, _Writer(self._path, self._patience))


def _write_nothing_new(connection: sqlite3.Connection) -> None:
    """Write one page as it is: a full or read-only disk refuses it as it would a plant."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {version}")


class _Here(threading.local):
    """The calls that this thread runs together, if it does."""

    attempt: "_Together | None" = None


class _Together:
    """Calls that the writer's thread runs, and so all that they ask of the store is in its one transaction."""

    def __init__(self, calls: Sequence[Callable[[], Any]], here: _Here) -> None:
        self._calls = calls
        self._number = len(calls)
        self._here = here
        self._lock = threading.Lock()
        self._used = False
        self._connection: sqlite3.Connection | None = None
        self._fault: Exception | None = None
        self.results: list[tuple[Any, bool]] = []

    def work(self, connection: sqlite3.Connection) -> None:
        """Run the calls, unless they have been given up.

        :raises Exception: one of them met a fault of the database, so that nothing of this transaction is kept.
        """
        self._connection = connection
        self._run_all()
        if self._fault:
            raise self._fault

    def give_up(self, error: StoreUnavailable) -> list[Any]:
        """Give what can be given without the store."""
        self._fault = error
        self._run_all()
        results = self.results.copy()
        results += [(error, True)] * (self._number - len(results))
        return [error if used else result for result, used in results]

    def _run_all(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, ()
        self._here.attempt = self
        try:
            for call in calls:
                self._used = False
                result = call()
                self.results.append((result, self._used))
        finally:
            self._here.attempt = None

    def run(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Do what a call asks of the store."""
        self._used = True
        try:
            if self._fault or not self._connection:
                raise StoreUnavailable(str(self._fault))
            return work(self._connection)
        except (*_NO_FAULT_OF_OTHERS, StoreUnavailable):
            raise
        except Exception as error:
            self._fault = error
            raise StoreUnavailable(str(error)) from error


class _Job:
    """What one caller waits for."""

    __slots__ = ("deadline", "done", "error", "result", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], Any], deadline: float) -> None:
        self.work = work
        self.result: Any = None
        self.error: Exception | None = None
        self.deadline = deadline
        self.done = threading.Lock()
        self.done.acquire()

    def work_in(self, connection: sqlite3.Connection) -> None:
        """Do the work, unless its caller has left; a plant that SQLite cannot hold is no fault of the others."""
        if time.monotonic() > self.deadline:
            self.error = StoreUnavailable("no time left")
            return
        try:
            self.result = self.work(connection)
        except _NO_FAULT_OF_OTHERS as error:
            self.error = error


class _Writer:
    """The thread of one process that owns the connection; it starts with the first job."""

    def __init__(self, path: str, patience: float) -> None:
        self._path = path
        self._patience = patience
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._mode = "rwc"
        self._files: list[tuple[int, int]] = []
        self._began = 0.0
        self._polled = False

    def run(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Give what the work gives, once it is committed."""
        # The last fifth is for the work and the commit, so that a caller is told why and not only that it took long.
        job = _Job(work, time.monotonic() + 0.8 * self._patience)
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            self._waiting.put(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="plants-sqlite", daemon=True)
                self._thread.start()
        if not job.done.acquire(timeout=self._patience):
            raise StoreUnavailable(f"{self._path}: no answer within {self._patience} s")
        if job.error:
            raise job.error
        return job.result

    def close(self) -> None:
        """Finish what waits, then give back the connection and the thread."""
        with self._lock:
            self._closed = True
            self._waiting.put(None)
            thread = self._thread
        if thread:
            thread.join(self._patience)

    def _serve(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            try:
                connection = self._begin(first.deadline)
                # Gathered only now: who came while another process had the lock goes with this commit.
                batch += self._take_all()
                for job in batch:
                    job.work_in(connection)
                connection.execute("COMMIT")
                # A commit into a file that was removed or replaced keeps nothing.
                if _identities(self._path) != self._files:
                    raise FileNotFoundError("the file was removed or replaced")
            except Exception as error:
                self._disconnect()
                for job in batch:
                    job.error = StoreUnavailable(f"{self._path}: {error}")
            for job in batch:
                job.done.release()
            if self._polled:
                # Others wait for the file, too: leave it long enough for one of them to notice.
                time.sleep(min(time.monotonic() - self._began, 2 * _LOCK_POLL))
        self._disconnect()

    def _take_all(self) -> Iterator[_Job]:
        for _ in range(self._waiting.qsize()):
            job = self._waiting.get()
            if job is None:
                self._waiting.put(None)
            else:
                yield job

    def _begin(self, deadline: float) -> sqlite3.Connection:
        self._polled = False
        while True:
            try:
                connection = self._connection or self._connect()
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _LOCKED or time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_POLL)
                self._polled = True
            else:
                self._began = time.monotonic()
                return connection

    def _connect(self) -> sqlite3.Connection:
        uri = f"file:{quote(os.fsencode(self._path))}?mode={self._mode}"
        self._connection = connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)
        try:
            for statement in _SET_UP:
                connection.execute(statement)
            self._files = _identities(self._path)
        except Exception:
            self._disconnect()
            raise
        self._mode = "rw"
        return connection

    def _disconnect(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None


def _identities(path: str) -> list[tuple[int, int]]:
    """Tell the database file, its write-ahead log and its lock file from any others of the same names."""
    return [(status.st_dev, status.st_ino) for status in map(os.stat, (path, f"{path}-wal", f"{path}-shm"))]
