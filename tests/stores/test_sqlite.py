"""The SQLite store when its file, its disk or another process fails."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from plants.stores import Plant, StoreUnavailable, open_store
from plants.stores.sqlite import SQLiteStore
from tests.stores.test_every_store import add_together, is_available, reason, run_forking
from tests.support.needs import needs
from tests.support.process import wait_until

NOBODY = 65534


@pytest.fixture
def path() -> Iterator[Path]:
    # Another user can enter this directory, unlike tmp_path.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        store_directory = Path(directory, "store")  # A test may rename it, so it has a parent of its own.
        store_directory.mkdir(mode=0o755)
        yield store_directory / "plants.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(str(path), timeout=20)) as store:
        yield store


@pytest.fixture
def impatient_store(path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(str(path), timeout=1)) as store:
        wait_until(lambda: is_available(store))
        yield store


@contextmanager
def moved_away(path: Path) -> Iterator[None]:
    elsewhere = path.rename(path.with_name("elsewhere"))
    yield
    elsewhere.rename(path)


@contextmanager
def directory_moved_away(path: Path) -> Iterator[None]:
    with moved_away(path.parent):
        yield


@contextmanager
def replaced(path: Path) -> Iterator[None]:
    backup = path.with_name("backup")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    path.with_name("original").hardlink_to(path)
    backup.replace(path)
    yield
    path.with_name("original").replace(path)


@contextmanager
def disk_full(path: Path) -> Iterator[None]:
    """Limit the size of files to one byte, so that writes fail as on a full disk."""
    assert path.exists()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    path.chmod(0o444)
    path.parent.chmod(0o555)
    user = os.geteuid()
    os.seteuid(user or NOBODY)  # Root may write to a read-only file.
    try:
        yield
    finally:
        os.seteuid(user)
        path.parent.chmod(0o755)
        path.chmod(0o644)


@contextmanager
def not_a_database(path: Path) -> Iterator[None]:
    content = path.read_bytes()
    path.write_bytes(b"plants" * 1000)
    yield
    path.write_bytes(content)


WHILE_OPEN = [moved_away, directory_moved_away, replaced, disk_full]
WHILE_CLOSED = [directory_moved_away, disk_full, read_only, not_a_database]
Breakage = Callable[[Path], AbstractContextManager[None]]


@pytest.mark.parametrize("breakage", WHILE_OPEN)
def test_an_open_store_is_unavailable_until_the_cause_is_gone(
    store: SQLiteStore, path: Path, breakage: Breakage
) -> None:
    store.add(Plant(1, "oak"))
    with breakage(path):
        with pytest.raises(StoreUnavailable, match=str(path)):
            store.add(Plant(2, "fern"))
        if breakage is not disk_full:
            with pytest.raises(StoreUnavailable, match=str(path)):
                store.get(1)
    wait_until(lambda: is_available(store))
    assert store.get(1) == Plant(1, "oak")
    store.add(Plant(3, "moss"))


@pytest.mark.parametrize("breakage", WHILE_CLOSED)
def test_a_store_that_failed_to_open_recovers(path: Path, breakage: Breakage) -> None:
    with closing(SQLiteStore(str(path))) as earlier:
        earlier.add(Plant(1, "oak"))
    with closing(SQLiteStore(str(path))) as store:
        with breakage(path), pytest.raises(StoreUnavailable, match=str(path)):
            store.check()
        wait_until(lambda: is_available(store))
        assert store.get(1) == Plant(1, "oak")


def test_a_file_that_disappeared_is_not_recreated(store: SQLiteStore, path: Path) -> None:
    store.add(Plant(1, "oak"))
    path.unlink()
    with pytest.raises(StoreUnavailable, match=r"removed or replaced; move it back, .* and do not restart before"):
        store.add(Plant(1, "fern"))
    wait_until(lambda: "gone; it is not recreated, because ids already in use" in reason(store))
    assert not path.exists()


def test_a_store_that_could_not_be_prepared_is_not_created_later(path: Path) -> None:
    with closing(SQLiteStore(f"{path.parent}/later/plants.db")) as store:
        with pytest.raises(StoreUnavailable, match="there is no file, and no folder"):
            store.prepare()
        path.with_name("later").mkdir()
        assert "gone; it is not recreated" in reason(store)


def test_a_lost_file_whose_wal_remains_is_not_recreated(store: SQLiteStore, path: Path) -> None:
    """After a crash, the WAL may contain all plants. SQLite deletes the WAL when it creates a new file."""
    store.add(Plant(1, "oak"))
    lost = path.rename(path.with_name("lost"))
    with closing(SQLiteStore(str(path))) as later:
        with pytest.raises(StoreUnavailable, match="gone, but not its log"):
            later.prepare()
        lost.rename(path)
        later.prepare()
        assert later.get(1) == Plant(1, "oak")


def test_an_add_that_timed_out_on_a_lock_is_never_stored(impatient_store: SQLiteStore, path: Path) -> None:
    with locked(path), ThreadPoolExecutor(4) as threads:
        adds = [threads.submit(impatient_store.add, Plant(plant_id, "oak")) for plant_id in range(4)]
        assert [type(add.exception(timeout=60)) for add in adds] == [StoreUnavailable] * 4
    wait_until(lambda: is_available(impatient_store))
    assert [impatient_store.get(plant_id) for plant_id in range(4)] == [None] * 4


def name_that_calls(action: Callable[[], object]) -> str:
    """Return a plant name that calls ``action`` when SQLite binds it, in the middle of a transaction."""

    class Name(str):
        def __conform__(self, _protocol: object) -> str:
            action()
            return str(self)

    return Name("oak")


@contextmanager
def disk_hanging(store: SQLiteStore, *followers: Plant) -> Iterator[Sequence[Callable[[], None]]]:
    """Block a transaction in another thread; yield the results of further plants in it."""

    def hang() -> None:
        has_begun.set()
        released.wait()

    has_begun, released = threading.Event(), threading.Event()
    leader, *others = [store.submit(plant) for plant in (Plant(0, name_that_calls(hang)), *followers)]
    with ThreadPoolExecutor(1) as thread:
        hanging = thread.submit(leader)
        try:
            wait_until(lambda: has_begun.is_set() or hanging.done())
            yield others
        finally:
            released.set()
        assert hanging.exception() is None


def test_an_add_and_a_probe_time_out_when_the_disk_hangs(
    impatient_store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plants.stores.outage.FRESH_SECONDS", -1.0)
    with disk_hanging(impatient_store):
        assert "no response in time" in reason(impatient_store)
        assert add_together(impatient_store, [Plant(1, "oak"), Plant(2, "oak")]) == ["unavailable"] * 2
    wait_until(lambda: add_together(impatient_store, [Plant(3, "oak")]) != ["unavailable"])
    assert impatient_store.get(1) is None


def test_closing_a_store_times_out_when_the_disk_hangs(impatient_store: SQLiteStore) -> None:
    with disk_hanging(impatient_store):
        impatient_store.submit(Plant(1, "oak"))
        impatient_store.close()
    with pytest.raises(StoreUnavailable, match=r": the store is closed$"):
        impatient_store.get(1)


def test_an_add_past_its_deadline_is_not_stored(path: Path) -> None:
    with closing(SQLiteStore(str(path), timeout=-1)) as store, pytest.raises(StoreUnavailable, match=r"^no time left$"):
        store.add(Plant(1, "oak"))
    assert not path.exists()


def test_a_follower_times_out_when_its_leader_hangs(impatient_store: SQLiteStore) -> None:
    timeout = pytest.raises(StoreUnavailable, match=r"^no response in time$")
    with disk_hanging(impatient_store, Plant(2, "fern")) as [follower], timeout:
        follower()
    follower()
    assert impatient_store.get(2) == Plant(2, "fern")


def test_an_interrupted_commit_fails_its_whole_batch(store: SQLiteStore) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    pending = [store.submit(plant) for plant in (Plant(1, "oak"), Plant(2, name_that_calls(interrupt)))]
    with pytest.raises(KeyboardInterrupt):
        pending[1]()
    with pytest.raises(StoreUnavailable, match=r"^the commit was interrupted$"):
        pending[0]()
    store.add(Plant(3, "oak"))
    assert store.get(1) is None


def test_a_commit_to_a_removed_file_is_not_acknowledged(store: SQLiteStore, path: Path) -> None:
    store.check()
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        store.add(Plant(1, name_that_calls(path.unlink)))


def test_a_log_that_is_truncated_during_a_commit_is_never_copied_into_the_file(path: Path) -> None:
    """SQLite writes at an offset in the empty log. When it copies the log, the file would get zeros."""
    with closing(SQLiteStore(str(path))) as earlier:
        for plant_id in range(300):
            earlier.add(Plant(plant_id, "oak" * 100))
    before = path.read_bytes()
    with closing(SQLiteStore(str(path))) as store:
        store.add(Plant(1000, "oak" * 100))
        truncating = name_that_calls(partial(os.truncate, f"{path}-wal", 0))
        for plant in (Plant(1001, truncating), Plant(1002, "fern")):
            with pytest.raises(StoreUnavailable, match="was truncated, so plants may be lost; before you restart"):
                store.add(plant)
    assert path.read_bytes() == before
    # This process never closes its connection, so start again with a copy.
    copy = shutil.copytree(path.parent, path.parent.with_name("copy"), ignore=shutil.ignore_patterns("*-shm"))
    with closing(SQLiteStore(str(copy / path.name))) as restarted:
        restarted.add(Plant(2000, "fern"))
        assert all(restarted.get(plant_id) for plant_id in range(300))


ADD_AGAIN = """
import sys
from plants.stores import Plant, open_store
from tests.stores.test_every_store import outcome

print(outcome(lambda: open_store(sys.argv[1]).add(Plant(1, "oak"))), flush=True)
"""


@needs("strace")
def test_an_id_in_use_is_reported_only_after_the_log_was_flushed(store: SQLiteStore, path: Path) -> None:
    """A process that was killed may have written a plant to the log, but not flushed it."""
    store.add(Plant(1, "oak"))
    trace = ["strace", "-f", "-e", "trace=write,fsync,fdatasync"]
    command = [sys.executable, "-c", ADD_AGAIN, f"sqlite:///{path}"]
    traced = subprocess.run(trace + command, capture_output=True, text=True, check=True, timeout=60).stderr
    before, found, _ = traced.partition('write(1, "in use')
    assert found
    assert "sync(" in before


def test_a_batch_is_one_transaction(store: SQLiteStore, path: Path) -> None:
    store.add(Plant(0, "oak"))
    log = path.with_name("plants.db-wal")
    before = log.stat().st_size
    results = add_together(store, [Plant(plant_id % 16, f"plant {plant_id}") for plant_id in range(1, 32)])
    assert results == ["added"] * 15 + ["in use"] * 16
    assert log.stat().st_size - before < 2 * 4096
    assert store.get(15) == Plant(15, "plant 15")


def test_a_full_disk_fails_the_whole_batch(store: SQLiteStore, path: Path) -> None:
    store.check()
    huge = Plant(2, "x" * 20_000_000)  # SQLite cannot buffer all of this, so it writes before the commit.
    with disk_full(path):
        assert add_together(store, [Plant(1, "oak"), huge]) == ["unavailable"] * 2
    wait_until(lambda: is_available(store))  # If the write took long, the breaker is open.
    assert [store.get(plant_id) for plant_id in (1, 2)] == [None] * 2


def test_probes_write_nothing_while_adds_succeed(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plants.stores.outage.FRESH_SECONDS", 60.0)
    log = path.with_name("plants.db-wal")
    for plant_id in range(3):
        store.add(Plant(plant_id, "oak"))
        before = log.stat()
        store.check()
        assert log.stat() == before


def test_an_id_in_use_does_not_hide_a_full_disk_from_probes(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plants.stores.outage.FRESH_SECONDS", 0.1)
    store.add(Plant(1, "oak"))
    with disk_full(path):
        wait_until(lambda: add_together(store, [Plant(1, "oak")]) == ["in use"] and not is_available(store))
    wait_until(lambda: is_available(store))


def test_a_read_does_not_wait_for_a_writer(store: SQLiteStore, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store.add(Plant(1, "oak"))
    caplog.clear()
    with locked(path):
        assert store.get(1) == Plant(1, "oak")
        assert store.get(2) is None
    assert caplog.messages == []


FORK_WHILE_OPEN = """
use_anew = lambda: open_store(sys.argv[1]).add(Plant(2, "child"))
store.add(Plant(1, "parent"))
in_a_child(unavailable(use_anew))
in_a_child(lambda: in_a_child(unavailable(use_anew)))
store.close()
in_a_child(use_anew)
"""


def test_a_forked_child_cannot_use_a_file_its_parent_has_open(path: Path) -> None:
    run_forking(FORK_WHILE_OPEN, f"sqlite:///{path}")


def test_a_file_that_is_not_in_utf_8_is_rejected(store: SQLiteStore, path: Path) -> None:
    """In UTF-16, SQLite replaces U+FFFE and U+FFFF by U+FFFD."""
    with closing(sqlite3.connect(path)) as other:
        other.executescript("PRAGMA encoding = 'UTF-16le'; CREATE TABLE other (id)")
    with pytest.raises(StoreUnavailable, match="the encoding of the file is UTF-16le, not UTF-8"):
        store.add(Plant(1, "\uffff"))


def drop_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE plants")


@pytest.mark.parametrize("remove", [drop_table, partial(Path.write_bytes, data=b"")], ids=["dropped", "empty file"])
def test_a_table_that_is_gone_is_not_recreated(store: SQLiteStore, path: Path, remove: Callable[[Path], None]) -> None:
    store.prepare()
    remove(path)
    with pytest.raises(StoreUnavailable, match="the table plants is gone; it is not recreated"):
        store.add(Plant(1, "fern"))
    assert not is_available(store)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_the_file_may_be_behind_a_symbolic_link_and_get_a_hard_link(path: Path) -> None:
    link = path.with_name("link.db")
    path.with_name("real").mkdir()
    link.symlink_to(path.with_name("real") / "plants.db")
    with closing(SQLiteStore(str(link))) as store:
        store.add(Plant(1, "oak"))
        path.with_name("hard").hardlink_to(link)
        store.add(Plant(2, "oak"))
        assert store.get(1) == Plant(1, "oak")
        with closing(SQLiteStore(str(path.with_name("real") / "plants.db"))) as same:
            assert same.get(2) == Plant(2, "oak")


LOST_LOGS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no log": ("-wal", Path.unlink, "was removed or replaced; stop all processes"),
    "no index of the log": ("-shm", Path.unlink, "was removed or replaced; stop all processes"),
    "an empty log": ("-wal", lambda log: os.truncate(log, 0), "was truncated, so plants may be lost"),
    "half a log": ("-wal", lambda log: os.truncate(log, log.stat().st_size // 2), "was truncated"),
}


@pytest.mark.parametrize(("suffix", "lose", "reason"), LOST_LOGS.values(), ids=LOST_LOGS)
def test_after_the_log_was_lost_nothing_is_written_until_a_restart(
    store: SQLiteStore, path: Path, suffix: str, lose: Callable[[Path], object], reason: str
) -> None:
    with closing(sqlite3.connect(path)) as neighbor:  # The last process to close the file copies the log into it.
        store.add(Plant(0, "oak"))
        neighbor.execute("SELECT count(*) FROM plants").fetchall()
        lose(path.with_name(path.name + suffix))
        log = path.with_name("plants.db-wal")
        before = path.read_bytes(), log.exists() and log.read_bytes()
        for use in (partial(store.add, Plant(1, "oak")), partial(store.get, 0), store.check):
            with pytest.raises(StoreUnavailable, match=reason):
                use()
        store.close()
        assert (path.read_bytes(), log.exists() and log.read_bytes()) == before
    if "removed" in reason:
        with closing(SQLiteStore(str(path))) as restarted:
            assert restarted.get(0) == Plant(0, "oak")


def test_a_table_that_was_made_by_hand_is_used(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.executescript('create table "plants" (id integer primary key, name text not null,\n tag text)')
        other.executescript("CREATE INDEX names ON plants (name)")
    with closing(SQLiteStore(str(path))) as store:
        store.add(Plant(1, "oak"))


CHANGES = {
    "no key": "DROP TABLE plants; CREATE TABLE plants (id INTEGER, name TEXT NOT NULL, tag TEXT)",
    "no tag": "ALTER TABLE plants DROP COLUMN tag",
    "a view": "DROP TABLE plants; CREATE VIEW plants AS SELECT 1 AS id, 'oak' AS name, NULL AS tag",
    "a unique index": "CREATE UNIQUE INDEX names ON plants (name)",
    "a trigger": "CREATE TRIGGER never BEFORE INSERT ON plants BEGIN SELECT RAISE(IGNORE); END",
    "another column": "ALTER TABLE plants ADD COLUMN place TEXT",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_table_that_could_lose_plants_is_rejected_by_the_next_add_and_at_the_start(
    store: SQLiteStore, path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.add(Plant(0, "oak"))
    caplog.clear()
    with closing(sqlite3.connect(path)) as other:
        other.executescript(change)
    assert add_together(store, [Plant(1, "fern"), Plant(2, "oak"), Plant(3, "moss")]) == ["unavailable"] * 3
    for use in (store.check, SQLiteStore(str(path)).prepare):
        with pytest.raises(StoreUnavailable, match="not the store's own"):
            use()
    [message] = caplog.messages
    assert message.startswith(f"the store is unavailable: {path}: ")


def test_a_plant_rejected_by_an_index_expression_fails_alone(store: SQLiteStore, path: Path) -> None:
    store.add(Plant(0, "{}"))
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE INDEX colors ON plants (json_extract(name, '$.color'))")
    plants = [Plant(1, "{}"), Plant(2, "oak"), Plant(3, "{}")]
    assert add_together(store, plants) == ["added", "unavailable", "added"]


def test_an_add_that_waited_for_the_lock_pauses_after_its_commit(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During the pause, another process that also waits can acquire the lock."""

    def release_the_lock_and_sleep(seconds: float) -> None:
        found.append(store.get(1))
        other.rollback()
        time.sleep(seconds)

    found: list[Plant | None] = []
    store.add(Plant(0, "oak"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=release_the_lock_and_sleep)
        monkeypatch.setattr("plants.stores.sqlite.time", clock)
        store.add(Plant(1, "oak"))
    assert (found[0], found[-1]) == (None, Plant(1, "oak"))


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///{folder}/plants.db", "plants.db"),
        ("sqlite:///plants.db", "plants.db"),
        ("sqlite:///a%20b%3F%23%25%C3%A9%FF.db", os.fsdecode(b"a b?#%\xc3\xa9\xff.db")),
        ("sqlite:///\udcff.db", "\udcff.db"),
        ("sqlite:///caf\u00e9.db", "caf\u00e9.db"),
    ],
)
def test_a_path_is_relative_to_where_the_store_was_opened(
    url: str, file: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with closing(open_store(url.format(folder=path.parent))) as store:
        monkeypatch.chdir("/")
        store.add(Plant(1, "oak"))
    assert path.with_name(file).exists()
