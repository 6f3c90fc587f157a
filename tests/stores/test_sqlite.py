"""The SQLite store when its file, its disk or another process fails."""

import gc
import logging
import os
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from plants.stores import COLUMNS, Plant, PlantRefused, StoreUnavailable, StoreUnusable, open_store
from plants.stores.sqlite import SQLiteStore
from tests.stores.test_every_store import add_together, is_available, outcome, reason, submit
from tests.support.hosted import CHECKOUT, needs, output_of, run
from tests.support.process import wait_until


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        store_directory = Path(directory, "store")  # A test may rename it, so it has a parent of its own.
        store_directory.mkdir()
        yield store_directory / "plants.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(str(path), timeout=20)) as store:
        yield store


@contextmanager
def moved_away(path: Path) -> Iterator[None]:
    elsewhere = path.rename(path.with_name("elsewhere"))
    yield
    elsewhere.rename(path)


@contextmanager
def replaced(path: Path) -> Iterator[None]:
    with moved_away(path):
        shutil.copy(path.with_name("elsewhere"), path)
        yield


@contextmanager
def a_link_to_the_moved_file(path: Path) -> Iterator[None]:
    """The file is the same, but a new connection keeps its log (-wal) beside the link's target."""
    with moved_away(path):
        path.symlink_to("elsewhere")
        yield


@contextmanager
def a_second_name(path: Path) -> Iterator[None]:
    path.with_name("second").hardlink_to(path)
    yield
    path.with_name("second").unlink()


def execute(path: Path, script: str) -> None:
    """Change the file as another program would, which has a function of its own."""
    with closing(sqlite3.connect(path)) as other:
        other.create_function("known", 1, bool, deterministic=True)
        other.executescript(script)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


WHILE_OPEN: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    "moved away": moved_away,
    "its directory moved away": lambda path: moved_away(path.parent),
    "replaced": replaced,
    "a link to the moved file": a_link_to_the_moved_file,
    "a second name": a_second_name,
}


@pytest.mark.parametrize("breakage", WHILE_OPEN.values(), ids=WHILE_OPEN)
def test_an_open_store_is_unavailable_until_the_cause_is_gone(
    store: SQLiteStore, path: Path, breakage: Callable[[Path], AbstractContextManager[None]]
) -> None:
    store.add(Plant(1, "oak"))
    with breakage(path):
        for use in (partial(store.add, Plant(2, "fern")), partial(store.get, 1)):
            with pytest.raises(StoreUnavailable, match=str(path)):
                use()
    wait_until(lambda: is_available(store))
    assert store.get(1) == Plant(1, "oak")


def leave(path: Path, *, read_only: list[str]) -> None:
    """Leave what another user leaves, who had a table in the file."""
    execute(path, f"PRAGMA journal_mode = WAL; {PLANTS}")
    for file in (Path(f"{path}{ending}") for ending in read_only):
        file.exists() or file.write_bytes(b"\0")  # If it were empty, SQLite would change its mode.
        file.chmod(0o444)


LASTING: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda path: path.parent.rmdir(), "No such file or directory"),
    "a folder": (lambda path: path.mkdir(), "not a regular file"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "no database": (lambda path: path.write_bytes(b"x" * 4096), "file is not a database"),
    "read-only": (partial(leave, read_only=[""]), "readonly database; uid .* may not write '.*plants.db': fix"),
    "an old log": (partial(leave, read_only=["-wal", "-shm"]), "-wal': fix owner .uid [0-9]+., mode or mount; .*-shm"),
    "a read-only folder": (lambda path: path.parent.chmod(0o555), "Permission denied.*; uid .* may not write '.*/st"),
    "a closed folder": (lambda path: path.parent.chmod(0), "Permission denied.*; uid .* may not write '.*/store'"),
}


@contextmanager
def as_ordinary_user(path: Path) -> Iterator[None]:
    """If the tests run as root, who may write everything, continue as another user, who owns the folder."""
    uids = os.getresuid()
    if not os.geteuid():
        for folder in path.parents[:2]:
            os.chown(folder, 65534, 65534)
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(*uids)


@pytest.mark.parametrize(("breakage", "message"), LASTING.values(), ids=LASTING)
def test_a_path_without_folder_file_or_permission_is_unusable(
    store: SQLiteStore, path: Path, breakage: Callable[[Path], object], message: str
) -> None:
    with as_ordinary_user(path):
        breakage(path)
        for use in (store.prepare, store.check):
            with pytest.raises(StoreUnavailable, match=f"^{path}: .*{message}") as caught:
                use()
            assert use != store.prepare or caught.type is StoreUnusable


@pytest.mark.parametrize("is_empty", [False, True], ids=["lost", "emptied"])
def test_a_file_whose_log_remains_is_not_created_anew(store: SQLiteStore, path: Path, *, is_empty: bool) -> None:
    """After a crash, the log may contain all plants. SQLite deletes the log if the file is new or empty."""
    store.add(Plant(1, "oak"))
    lost = path.rename(path.with_name("lost"))
    if is_empty:
        path.touch()
    with closing(SQLiteStore(str(path))) as later:
        for use in (later.prepare, partial(later.get, 1)):
            with pytest.raises(StoreUnusable, match="the file is empty" if is_empty else "gone; it is not recreated"):
                use()
        lost.rename(path)
        later.prepare()
        assert later.get(1) == Plant(1, "oak")


def test_a_commit_to_a_removed_file_is_not_acknowledged(store: SQLiteStore, path: Path) -> None:
    class Name(str):
        """SQLite calls this when it binds the name, in the middle of the transaction."""

        def __conform__(self, _protocol: object) -> str:
            path.unlink()
            return str(self)

    store.check()
    with pytest.raises(StoreUnavailable, match="the file is gone"):
        store.add(Plant(1, Name("oak")))


ADD = """
import os, sys
from plants.stores import Plant, open_store

os.umask(0)
try:
    open_store(f"sqlite:///{sys.argv[1]}").add(Plant(1, "oak"))
except Exception as error:
    print(error, flush=True)
else:
    print("added", flush=True)
os._exit(0)  # as if it were killed: do not close the store, which would flush
"""


@needs("cc")
@pytest.mark.skipif(sys.platform != "linux", reason="the library needs LD_PRELOAD and /proc")
@pytest.mark.parametrize("in_use", [False, True], ids=["added", "in use"])
def test_what_a_client_was_told_survives_a_power_cut(
    store: SQLiteStore, path: Path, tmp_path: Path, *, in_use: bool
) -> None:
    """If an id is in use, a process that was killed may have written the plant, but not flushed it."""
    if in_use:
        store.check()
        shutil.copy(path, tmp_path)
        store.add(Plant(1, "oak"))
    library = path.parents[1] / "power_cut.so"
    output_of("cc", "-shared", "-fPIC", "-o", library, CHECKOUT / "tests" / "support" / "power_cut.c", "-ldl")
    output = output_of(sys.executable, "-c", ADD, path, LD_PRELOAD=str(library), DISK=str(tmp_path))
    assert output == ("a plant with the id 1 is already in the store\n" if in_use else "added\n")
    with closing(SQLiteStore(f"{tmp_path}/plants.db")) as after:
        assert after.get(1) == Plant(1, "oak")
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o644}


# For each: what an audit hook does.
WHILE_OPENED = {
    "removed": ("event == 'sqlite3.connect' and os.unlink(path)", "unable to open database file"),
    "replaced": ("event == 'sqlite3.connect/handle' and os.replace(shutil.copy(path, path + '2'), path)", "replaced"),
}


@pytest.mark.parametrize(("action", "message"), WHILE_OPENED.values(), ids=WHILE_OPENED)
def test_on_macos_a_file_that_changes_at_its_opening_is_noticed(path: Path, action: str, message: str) -> None:
    hook = f"import os, shutil, sys; sys.addaudithook(lambda event, _, path=sys.argv[1]: {action})"
    output = output_of(sys.executable, "-c", hook + ADD, path, PYTHONPATH=str(CHECKOUT / "tests/support/macos"))
    assert message in output
    assert path.exists() == ("os.replace" in action)


def test_a_check_of_a_healthy_store_writes_nothing(store: SQLiteStore, path: Path) -> None:
    store.add(Plant(1, "oak"))
    files = [path, path.with_name("plants.db-wal")]
    before = [(file.read_bytes(), file.stat().st_mtime_ns) for file in files]
    with closing(SQLiteStore(str(path))) as other:
        other.prepare()
        other.check()
    assert [(file.read_bytes(), file.stat().st_mtime_ns) for file in files] == before


def test_a_batch_is_one_transaction_and_no_read_waits_for_one(store: SQLiteStore, path: Path) -> None:
    store.add(Plant(-1, "oak"))
    log = path.with_name("plants.db-wal")
    before = log.stat().st_size
    with locked(path):
        futures = [submit(store, Plant(plant_id % 16, f"plant {plant_id}")) for plant_id in range(32)]
        assert store.get(-1) == Plant(-1, "oak")
    assert [outcome(future.result) for future in futures] == ["added"] * 16 + ["in use"] * 16
    assert log.stat().st_size - before < 2 * 4096 + 2 * 24


def test_a_store_is_down_until_the_disk_accepts_a_write(store: SQLiteStore, path: Path) -> None:
    store.add(Plant(1, "oak"))
    refused_writes: list[int] = []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(sqlite3.connect(path)) as other, ExitStack() as stack:
        other.execute("SELECT * FROM plants")  # While no connection is open, a new one would have to write.
        handler = signal.signal(signal.SIGXFSZ, lambda number, _: refused_writes.append(number))
        stack.callback(signal.signal, signal.SIGXFSZ, handler)
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))  # Writes then fail as on a full disk.
        # SQLite cannot buffer all of the first plant, so it writes before the commit.
        assert add_together(store, [Plant(2, "x" * 20_000_000), Plant(3, "oak")]) == ["unavailable"] * 2
        wait_until(lambda: is_available(store) or len(refused_writes) > 3)
        assert not is_available(store)
    wait_until(lambda: outcome(partial(store.add, Plant(4, "oak"))) == "added")
    assert [store.get(plant_id) for plant_id in (2, 3)] == [None] * 2


def test_a_malformed_page_fails_only_the_plants_that_need_it(store: SQLiteStore, path: Path) -> None:
    store.prepare()
    even = "WITH even (id) AS (VALUES (0) UNION ALL SELECT id + 2 FROM even LIMIT 5000)"
    execute(path, f"{even} INSERT INTO plants SELECT id, 'plant ' || id, NULL FROM even")
    content = path.read_bytes()
    page = content.index(b"plant 4000") // 4096
    path.write_bytes(content[: page * 4096] + b"\xff" * 4096 + content[(page + 1) * 4096 :])
    with locked(path):
        futures = [submit(store, Plant(plant_id, "oak")) for plant_id in (-1, 4001, 0, 4000, 9999)]
    assert [outcome(future.result) for future in futures] == ["added", "unavailable", "in use", "unavailable", "added"]


def test_the_log_shrinks_after_a_long_read(store: SQLiteStore, path: Path) -> None:
    def add(first_id: int, number: int) -> int:
        assert set(add_together(store, [Plant(first_id + n, "x" * 1_000_000) for n in range(number)])) == {"added"}
        return path.with_name("plants.db-wal").stat().st_size

    store.check()
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM plants").fetchall()
        assert add(1, 80) > 80_000_000
    assert add(100, 10) <= 64 << 20


def test_the_file_may_be_behind_a_symbolic_link(path: Path) -> None:
    link = path.with_name("link.db")
    path.with_name("real").mkdir()
    link.symlink_to(path.with_name("real") / "plants.db")
    with closing(SQLiteStore(str(link))) as store, closing(SQLiteStore(str(link.resolve()))) as same:
        store.add(Plant(1, "oak"))
        assert same.get(1) == store.get(1) == Plant(1, "oak")


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="this needs O_PATH, which only Linux has")
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "only prepared, as before a fork"])
def test_a_copy_with_the_same_inode_number_is_another_file(store: SQLiteStore, path: Path, *, connected: bool) -> None:
    """ext4 gives the number of a removed file to the next one, unless a descriptor refers to the file."""
    (store.check if connected else store.prepare)()
    copy = path.read_bytes()
    for _ in range(3):
        path.unlink()
        wait_until(lambda: "the file is gone; it is not recreated" in reason(store))
        assert not path.exists()
        path.write_bytes(copy)
        wait_until(lambda: re.search("was replaced; move it back, .* and do not restart before", reason(store)))


def test_a_closed_store_leaves_no_descriptor(path: Path) -> None:
    with closing(SQLiteStore(str(path), timeout=20)) as store:
        store.add(Plant(1, "oak"))
    del store
    gc.collect()
    assert path not in [link.resolve() for link in Path("/proc/self/fd").iterdir()]


LOCK_THE_FILE = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=0).executescript("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE")
"""


def test_closing_a_store_keeps_the_locks_of_another_one(store: SQLiteStore, path: Path) -> None:
    """Closing an ordinary descriptor of a file releases all locks that the process holds on it."""
    store.add(Plant(1, "oak"))
    with closing(SQLiteStore(str(path))) as other:
        other.add(Plant(2, "oak"))
    assert "database is locked" in run(sys.executable, "-c", LOCK_THE_FILE, path).stderr


def add_in_mount(source: Path, target: Path, file: Path) -> str:
    """Mount ``source`` at ``target``, add a plant to the file, and return the output."""
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$5"'
    names: list[str | Path] = [source, target, sys.executable, ADD, file]
    # The simulation of macOS, which PYTHONPATH may name, has no list of mounts.
    result = run("unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *names, PYTHONPATH="")
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip(f"this machine allows no mount: {result.stderr}")
    return result.stdout


@needs("unshare", "mount")
def test_a_file_that_is_mounted_without_its_folder_is_rejected(path: Path) -> None:
    """A new container would have another folder, and so lose the log."""
    with closing(SQLiteStore(str(path))) as store:
        store.check()
    folder = path.with_name("a mount\\point")
    folder.mkdir()
    target = folder / "plants.db"
    target.touch()
    results = [add_in_mount(*mount, target) for mount in ((path, target), (path.parent, folder))]
    assert "mounted without its folder" in results[0]
    assert results[1] == "added\n"
    assert not target.with_name("plants.db-wal").exists()


WITHOUT_TAG = "CREATE TABLE plants (id INTEGER PRIMARY KEY, name TEXT NOT NULL, since TEXT NOT NULL DEFAULT '')"
TRIGGER = "CREATE TRIGGER never BEFORE INSERT ON Plants BEGIN SELECT RAISE(IGNORE); END"
CREATED_BY_HAND = {
    "in another case": "create table Plants(ID integer primary key, Name text, TAG text); create index i on Plants(ID)",
    "with further columns": "CREATE TABLE plants (id INTEGER PRIMARY KEY, name TEXT NOT NULL, tag TEXT, place TEXT, "
    "height INTEGER NOT NULL DEFAULT 0, upper TEXT NOT NULL AS (upper(name)))",
    "with ON CONFLICT": "CREATE TABLE plants (id INTEGER PRIMARY KEY ON CONFLICT REPLACE, "
    "name TEXT NOT NULL UNIQUE ON CONFLICT IGNORE, tag TEXT)",
    "without a nullable column": WITHOUT_TAG,
}


@pytest.mark.parametrize("definition", CREATED_BY_HAND.values(), ids=CREATED_BY_HAND)
def test_a_table_that_was_created_by_hand_is_used(
    store: SQLiteStore, path: Path, definition: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    execute(path, definition)
    plants = [Plant(1, "oak", "tree"), Plant(1, "fern"), Plant(2, "moss")]
    assert add_together(store, plants) == ["added", "in use", "added"]
    execute(path, "ALTER TABLE plants ADD later TEXT")  # as a later version does, while this one runs
    store.add(Plant(3, "ivy"))
    assert [store.get(plant_id) for plant_id in (1, 2)] == [plants[0], plants[2]]
    changes = [("plants.stores.sqlite", logging.INFO, f"{path}: added the column tag TEXT")]
    assert caplog.record_tuples == (changes if definition == WITHOUT_TAG else [])


PLANTS = f"CREATE TABLE plants ({', '.join(column.define({int: 'INTEGER', str: 'TEXT'}) for column in COLUMNS)})"
UNUSABLE = {
    "no key": (PLANTS.replace(" PRIMARY KEY", ""), "no column id"),
    "a wider key": (
        PLANTS.replace(" PRIMARY KEY", "").replace(")", ", at INT, PRIMARY KEY (id, at))"),
        "is in the key",
    ),
    "a numeric name": (PLANTS.replace("name TEXT", "name NUMERIC"), "no column name TEXT NOT NULL"),
    "a generated tag": (PLANTS.replace("tag TEXT", "tag TEXT AS (name)"), "no column tag TEXT"),
    "a view": (
        f"CREATE VIEW plants AS SELECT {', '.join(f'1 AS {name}' for name in Plant._fields)}",
        "the view plants",
    ),
    "a virtual table": (f"CREATE VIRTUAL TABLE plants USING fts5({', '.join(Plant._fields)})", "could lose"),
    "a required column": (f"{WITHOUT_TAG[:-1]}, place TEXT NOT NULL)", "the column place .* must have a value"),
    "a trigger": (f"{WITHOUT_TAG}; {TRIGGER}", "the trigger never of the table plants could lose"),
    # In UTF-16, SQLite replaces U+FFFE and U+FFFF by U+FFFD.
    "in UTF-16": ("PRAGMA encoding = 'UTF-16le'; CREATE TABLE other (id)", "encoding of the file is UTF-16le"),
}


@pytest.mark.parametrize(("definition", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_file_that_is_refused_is_not_changed(store: SQLiteStore, path: Path, definition: str, message: str) -> None:
    execute(path, definition)
    content = path.read_bytes()
    for use in (store.prepare, store.check, partial(store.add, Plant(1, "oak"))):
        with pytest.raises(StoreUnavailable, match=message):
            use()
    assert path.read_bytes() == content
    assert [*path.parent.iterdir()] == [path]


CHANGES = {
    "no table": ("DROP TABLE plants", "the table plants is gone; it is not recreated"),
    "no tag": (f"DROP TABLE plants; {WITHOUT_TAG}", "the table plants has no column tag TEXT"),
    "a trigger": (TRIGGER, "the trigger never of the table"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_running_store_refuses_a_changed_table_and_adds_nothing(
    store: SQLiteStore, path: Path, change: str, message: str
) -> None:
    def schema() -> list[object]:
        with closing(sqlite3.connect(path)) as other:
            return other.execute("SELECT sql FROM sqlite_master").fetchall()

    store.add(Plant(0, "oak"))
    execute(path, change)
    changed = schema()
    for use in (partial(store.add, Plant(1, "fern")), store.check, partial(store.get, 0)):
        with pytest.raises(StoreUnavailable, match=message):
            use()
    assert schema() == changed


REFUSALS = {
    "a CHECK": (PLANTS.replace("tag TEXT", "tag TEXT CHECK (name <> 'oak')"), "CHECK constraint failed: name <> 'oak'"),
    "a unique index": (
        f"{PLANTS}; CREATE UNIQUE INDEX names ON plants (name); INSERT INTO plants (name) VALUES ('oak')",
        "UNIQUE constraint failed: plants.name",
    ),
    "an index": (
        f"{PLANTS}; CREATE INDEX i ON plants (abs(iif(name = 'oak', -1 << 63, 1)))",
        "an expression of an index",
    ),
    "a function of another program": (PLANTS.replace("tag TEXT", "tag TEXT CHECK (known(tag))"), "an expression of an"),
}


@pytest.mark.parametrize(("definition", "message"), REFUSALS.values(), ids=REFUSALS)
def test_a_refused_plant_fails_alone(store: SQLiteStore, path: Path, definition: str, message: str) -> None:
    execute(path, definition)
    store.prepare()
    with locked(path):
        futures = [submit(store, Plant(plant_id, name)) for plant_id, name in ((11, "fern"), (12, "oak"), (13, "moss"))]
    errors = [error for future in futures if (error := future.exception())]
    assert futures[1].exception() in errors
    assert len(errors) == (3 if "known" in definition else 1)  # This store knows no such function.
    assert all(isinstance(error, PlantRefused) and str(error).startswith(message) for error in errors)
    store.check()  # It is no outage.


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///{folder}/plants.db", "plants.db"),
        ("sqlite:///plants.db", "plants.db"),
        ("sqlite:///a+%20b%3F%23%25%C3%A9%FF.db", os.fsdecode(b"a+ b?#%\xc3\xa9\xff.db")),
        ("sqlite:///caf\u00e9.db", "caf\u00e9.db"),
    ],
)
def test_a_path_is_relative_to_where_the_store_was_opened(
    url: str, file: str, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.chdir(path.parent)
    with closing(open_store(url.format(folder=path.parent))) as store:
        monkeypatch.chdir("/")
        store.add(Plant(1, "oak"))
    assert path.with_name(file).exists()
    assert b"created the table plants" in caplog.text.encode()  # The name may not be in UTF-8, and the log is.
