"""The committer, on a database that a test can break."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from plants.stores import Plant, PlantIdInUse, StoreUnavailable
from plants.stores.group_commit import GroupCommitStore, Outcomes
from tests.stores.test_every_store import future_of, outcome, reason, submit
from tests.support.hosted import run
from tests.support.process import wait_until


class Connection:
    def __init__(self, store: "GardenStore") -> None:
        self.store = store

    def close(self) -> None:
        self.store.open.remove(self)


class GardenStore(GroupCommitStore):
    """A dictionary. Inserts fail if it has a fault.

    A read waits until the store is released.
    """

    worker_threads = 1

    def __init__(self, timeout: float = 20.0) -> None:
        super().__init__(timeout)
        self.plants: dict[int, Plant] = {}
        self.open: list[Connection] = []
        self.fault = ""
        self.room = 9  # for connections
        self.inserts = 0
        self.reads = 0
        self.released = threading.Event()
        self.released.set()

    def _connect(self) -> Connection:
        if len(self.open) >= self.room:
            raise StoreUnavailable("no connection")
        self.open.append(connection := Connection(self))
        return connection

    def _insert(self, _connection: Connection, collect: Callable[[], list[Plant]]) -> Outcomes:
        plants = collect()
        self.inserts += 1
        if self.fault:
            raise StoreUnavailable(self.fault)
        return [None if self.plants.setdefault(each.id, each) is each else PlantIdInUse(each.id) for each in plants]

    def _find(self, _connection: Connection, plant_id: int) -> Plant | None:
        self.reads += 1
        self.released.wait()
        return self.plants.get(plant_id)


@pytest.fixture
def store() -> Iterator[GardenStore]:
    with closing(GardenStore()) as store:
        yield store
    assert store.open == []


def test_in_an_outage_calls_fail_fast_until_a_check_succeeds(store: GardenStore) -> None:
    store.add(Plant(0, "oak"))
    store.fault = "the disk is full"
    assert outcome(partial(store.add, Plant(1, "oak"))) == "unavailable"
    inserts = store.inserts
    for plant_id in range(1000):
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            store.add(Plant(plant_id, "oak"))
    assert reason(store) == "the disk is full"
    assert store.inserts <= inserts + 4
    store.fault = ""
    began = time.monotonic()
    wait_until(lambda: outcome(partial(store.add, Plant(1, "oak"))) == "added")
    assert time.monotonic() < began + 5


def test_a_store_that_is_idle_for_longer_than_its_timeout_is_available() -> None:
    with closing(GardenStore(timeout=0.1)) as store:
        wait_until(lambda: outcome(partial(store.add, Plant(1, "oak"))) in {"added", "in use"})
        time.sleep(0.2)
        store.raise_if_down()


def test_concurrent_reads_neither_wait_nor_outlive_their_store(store: GardenStore) -> None:
    store.released.clear()
    with ThreadPoolExecutor(3) as threads:
        reads = [threads.submit(store.get, 1) for _ in range(3)]
        wait_until(lambda: store.reads == 3)
        store.close()
        store.released.set()
        assert [read.result() for read in reads] == [None] * 3
    assert store.open == []


def test_a_process_without_another_thread_is_unavailable(store: GardenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr("threading.Thread.start", fail)
        assert reason(store) == "can't start new thread"
    store.add(Plant(1, "oak"))


def test_checks_share_a_commit_and_the_last_plants(store: GardenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(Plant(1, "oak"))
    inserts = store.inserts
    for _ in range(100):
        store.check()
    assert store.inserts == inserts
    monkeypatch.setattr("plants.stores.group_commit.FRESH_SECONDS", 0.0)
    store.add(Plant(2, "oak"))
    checks = [future_of(store.submit_check) for _ in range(100)]
    assert {outcome(check.result) for check in checks} == {"added"}
    assert store.inserts < inserts + 100


def test_every_future_completes_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plants.stores.group_commit.RETRY_SECONDS", 0.001)
    monkeypatch.setattr("plants.stores.outage.QUIET_SECONDS", 0.01)
    random = Random(1)

    def submit_many(store: GardenStore, first_id: int, closed: threading.Event) -> list[Future[None]]:
        futures = []
        for plant_id in count(first_id, 4):
            futures.append(submit(store, Plant(plant_id, "oak")))
            if closed.is_set():
                break
            time.sleep(0)
        return futures

    for _ in range(5):
        with closing(GardenStore()) as store, ThreadPoolExecutor(4) as threads:
            closed = threading.Event()
            submitting = [threads.submit(submit_many, store, number, closed) for number in range(4)]
            for _ in range(20):
                store.fault = random.choice(["", "full"])
                store.room = random.choice([0, 9])
                time.sleep(0.005)
            store.close()
            has_ended = "plants.stores" not in {thread.name for thread in threading.enumerate()}
            closed.set()
        assert has_ended
        futures = [future for each in submitting for future in each.result()]
        assert all(future.done() for future in futures)
        added = sum(outcome(future.result) == "added" for future in futures)
        assert added == len(store.plants)
        assert store.open == []


STILL_OPEN = """
import sys, threading
from plants.stores import Plant, open_store

store = open_store(sys.argv[1])
store.add(Plant(1, "oak"))
assert store.get(1)
threading.Thread(target=lambda: [store.submit(Plant(n, "oak"), [].append) for n in range(9999)], daemon=True).start()
"""


def test_a_process_ends_with_an_open_store(tmp_path: Path) -> None:
    result = run(sys.executable, "-X", "dev", "-W", "error", "-c", STILL_OPEN, f"sqlite:///{tmp_path}/plants.db")
    assert (result.returncode, result.stderr.count("\n")) == (0, 1), result.stderr
