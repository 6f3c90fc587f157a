"""The suite for stores, run on each of them, and the choice of a store by its URL."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from plants.store_suite import StoreSuite
from plants.stores import Plant, PlantIdInUse, PlantStore, StoreUnavailable, open_store
from plants.stores.group_commit import GroupCommitStore
from tests.support.calls import no_reference_cycle
from tests.support.postgres_server import PostgresServer
from tests.support.process import PATIENCE_SECONDS

# The beginning of a program, whose argument is the URL of a store.
OPENING = """
import os, sys, threading
from plants.stores import Plant, StoreUnavailable, open_store

def in_a_child(*uses):
    child = os.fork()
    if not child:
        for use in uses:
            use()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

store = open_store(sys.argv[1])
"""
STILL_OPEN = """
store.add(Plant(1, "oak"))
assert store.get(1)
threading.Thread(target=lambda: [store.begin(Plant(n, "oak"))([].append, 0) for n in range(9999)], daemon=True).start()
"""
AFTER_USE = """
store.add(Plant(1, "parent"))

def fail():
    for use in (lambda: store.add(Plant(2, "child")), lambda: store.get(1), store.check):
        try:
            use()
        except StoreUnavailable as error:
            assert "fork before the first use" in str(error), error
        else:
            os._exit(1)

in_a_child(fail, store.close)
in_a_child(store.close)
store.add(Plant(2, "parent"))
store.close()
"""
PREPARED = """
store.prepare()
for number in (1, 2):
    in_a_child(lambda: store.add(Plant(number, "child")), store.close)
assert store.get(2) == Plant(2, "child")
"""
CREATED_BY_A_CHILD = """
in_a_child(lambda: store.add(Plant(1, "child")), store.close)
os.unlink(sys.argv[1].removeprefix("sqlite:///"))
try:
    store.add(Plant(1, "parent"))
except StoreUnavailable as error:
    assert "gone; it is not recreated" in str(error), error
else:
    os._exit(1)
"""
GREENLETS = """
store.prepare()

from gevent.monkey import patch_all
patch_all()
import gevent

def add(plant_id):
    with gevent.Timeout(0.0005 * (plant_id % 8), False):
        store.add(Plant(plant_id, "oak"))

# Some greenlets are interrupted in each call that may switch.
gevent.joinall([gevent.spawn(add, plant_id) for plant_id in range(200)], raise_error=True)
adds = [gevent.spawn(store.add, Plant(plant_id, "oak")) for plant_id in range(1000, 1020)]
gevent.joinall(adds, raise_error=True)
assert store.get(1019)
store.check()
store.close()
"""


def run_program(program: str, url: str) -> str:
    """Run a program, and return its log."""
    # A store has threads, and Python 3.15 warns of a fork with threads, which the programs do on purpose.
    warnings = ["-X", "dev", "-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, *warnings, "-c", OPENING + program, url]
    return subprocess.run(command, check=True, timeout=60, stderr=subprocess.PIPE, text=True).stderr


def outcome(result: Callable[[], None]) -> str:
    """Return the outcome of an add."""
    try:
        result()
    except PlantIdInUse:
        return "in use"
    except StoreUnavailable:
        return "unavailable"
    except Exception:
        return "rejected"
    return "added"


def submit(store: GroupCommitStore, plant: Plant | None) -> Future[None]:
    """Begin to add a plant or, without one, a check; return a future with its outcome."""
    future: Future[None] = Future()

    def done(outcomes: list[tuple[str, Exception | None]]) -> None:
        [(key, error)] = outcomes
        assert key == "key"
        future.set_exception(error) if error else future.set_result(None)

    try:
        wait = store.begin(plant)
    except StoreUnavailable as error:
        future.set_exception(error)
    else:
        wait(done, "key") if wait else future.set_result(None)
    return future


def add_together(store: GroupCommitStore, plants: Iterable[Plant]) -> list[str]:
    """Submit all plants before asking for the first result."""
    futures = [submit(store, plant) for plant in plants]
    return [outcome(future.result) for future in futures]


def reason(store: PlantStore) -> str:
    """Return why the store is unavailable, or an empty string."""
    try:
        store.check()
    except StoreUnavailable as error:
        return str(error)
    return ""


def is_available(store: PlantStore) -> bool:
    return not reason(store)


class StoreContract(StoreSuite):
    """The suite for stores, with further tests. Subclasses define ``store_url``."""

    @pytest.fixture
    def store(self, store_url: str) -> Iterator[PlantStore]:
        with contextlib.closing(open_store(store_url)) as store:
            if isinstance(store, GroupCommitStore):
                store.timeout = PATIENCE_SECONDS
            yield store

    @pytest.mark.parametrize("plant_id", [-(2**63) - 1, 2**63, 10**5000], ids=["below", "above", "far above"])
    def test_an_id_beyond_64_bits_is_unknown(self, store: PlantStore, plant_id: int) -> None:
        assert store.get(plant_id) is None

    def test_a_fork_after_the_first_use_is_logged_once(self, store_url: str) -> None:
        assert run_program(AFTER_USE, store_url).count("fork before the first use") == 1


class PersistentContract(StoreContract):
    """Tests of a store that commits in batches and outlives its processes."""

    def test_more_plants_than_a_batch_holds_are_stored(self, store: GroupCommitStore) -> None:
        plants = [Plant(plant_id, f"plant {plant_id}") for plant_id in range(2000)]
        assert set(add_together(store, plants)) == {"added"}
        assert [store.get(plant_id) for plant_id in (0, 1999)] == [plants[0], plants[-1]]

    @pytest.mark.parametrize("fields", [(1, 5), (1, b"oak"), (1, "oak", 5), (None, "oak"), (1.5, "oak")], ids=repr)
    def test_a_plant_of_the_wrong_type_fails_alone(self, store: GroupCommitStore, fields: Any) -> None:
        future = submit(store, Plant(2, "fern"))
        with pytest.raises(TypeError):
            store.add(Plant(*fields))
        future.result()
        store.check()  # It is no outage.
        assert store.get(1) is None

    @pytest.mark.parametrize("plant", [Plant(2**63, "oak"), Plant(1, "\ud800")], ids=["large id", "surrogate"])
    def test_a_plant_that_the_store_cannot_hold_fails_alone(self, store: GroupCommitStore, plant: Plant) -> None:
        assert add_together(store, [Plant(3, "oak"), plant, Plant(2, "fern")]) == ["added", "rejected", "added"]

    @pytest.mark.parametrize("ids", [range(1, 4), range(0)], ids=["used", "unused"])
    def test_closing_commits_what_was_submitted(self, store: GroupCommitStore, store_url: str, ids: range) -> None:
        futures = [submit(store, Plant(plant_id, "n" * 1_500_000)) for plant_id in ids]
        store.close()
        assert all(future.done() for future in futures)
        for use in (store.check, partial(store.add, Plant(4, "oak")), partial(store.get, 1)):
            with pytest.raises(StoreUnavailable, match="the store is closed"):
                use()
        with contextlib.closing(open_store(store_url)) as reopened:
            assert all(reopened.get(plant_id) for plant_id in ids)

    def test_forked_processes_use_a_prepared_store(self, store_url: str) -> None:
        assert "unavailable" not in run_program(PREPARED, store_url)

    def test_a_process_ends_with_an_open_store(self, store_url: str) -> None:
        assert run_program(STILL_OPEN, store_url) == ""

    def test_greenlets_use_a_store_opened_before_gevent_patched(self, store_url: str) -> None:
        pytest.importorskip("gevent")
        run_program(GREENLETS, store_url)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store_url(self) -> str:
        return "memory:"

    def test_a_plant_is_found_only_with_its_tag(self, store: PlantStore) -> None:
        class Id(int):
            def __hash__(self) -> int:
                found.append(store.get(int(self)))  # as another thread might at this moment
                return int.__hash__(self)

        found: list[Plant | None] = []
        store.add(Plant(Id(1), "oak", "tree"))
        assert set(found) == {None}


class TestSQLiteStore(PersistentContract):
    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/plants.db"

    def test_a_file_that_another_process_of_the_service_has_had_is_not_recreated(self, store_url: str) -> None:
        run_program(CREATED_BY_A_CHILD, store_url)

    def test_errors_leave_no_reference_cycles(self, store: GroupCommitStore, store_url: str) -> None:
        store.add(Plant(1, "oak"))
        with contextlib.closing(open_store(f"{store_url}/missing")) as unusable, no_reference_cycle():
            assert outcome(partial(store.add, Plant(1, "oak"))) == "in use"
            assert outcome(partial(store.add, Plant(1, "\ud800"))) == "rejected"
            with pytest.raises(StoreUnavailable):
                unusable.prepare()
            for use in (partial(unusable.add, Plant(1, "oak")), unusable.check) * 3:
                with pytest.raises(StoreUnavailable):
                    use()


class TestPostgresStore(PersistentContract):
    @pytest.fixture
    def store_url(self, server: PostgresServer) -> str:
        return server.url


START = "^a store's URL starts with one of memory:, sqlite:, postgresql:"
SQLITE = "^the URL of an SQLite store is sqlite:///relative/file or sqlite:////absolute/file$"
POSTGRES = r"^the URL of a PostgreSQL store is postgresql://user:password@host:port/database, .* than libpq's$"
BAD_URLS = {
    "empty": ("", START),
    "memory with a path": ("memory:plants", "its URL is 'memory:'$"),
    "SQLite with a host": ("sqlite://user:secret@host/plants.db", SQLITE),
    "SQLite with no file": ("sqlite:///", SQLITE),
    "SQLite in memory": ("sqlite:///:memory:", SQLITE),
    "SQLite with an option": ("sqlite:///plants.db?mode=ro", SQLITE),
    "SQLite with a fragment": ("sqlite:///plants#1.db", SQLITE),
    "SQLite with an encoded U+0000": ("sqlite:///plants%00.db", SQLITE),
    "SQLite with a directory": ("sqlite:///plants/", SQLITE),
    "PostgreSQL by its short name": ("postgres://user:secret@host/plants?schema=public", POSTGRES),
    "PostgreSQL with an @ in the password": ("postgresql://user:sec@ret@host/plants", POSTGRES),
    "PostgreSQL with a port that is not a number": ("postgresql://user:secret@a:5432,b:port/plants", POSTGRES),
    "PostgreSQL with a timeout that is not a number": ("postgresql://user:secret@host?connect_timeout=x", POSTGRES),
    "PostgreSQL with no slashes": ("postgresql:plants password=secret", POSTGRES),
}


@pytest.mark.parametrize(("url", "hint"), BAD_URLS.values(), ids=BAD_URLS)
def test_a_bad_store_url_is_rejected_with_the_valid_form(url: str, hint: str) -> None:
    if hint == POSTGRES:
        pytest.importorskip("psycopg")
    with pytest.raises(ValueError, match=hint) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_error_for_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "plants.stores.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ValueError, match=r"^a PostgreSQL store needs its driver: pip install 'plants\[postgres\]'$"):
        open_store("postgresql://host/plants")
