"""The committer, on a database that a test can break."""

import queue
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count

import pytest

from plants.stores import Plant, PlantIdInUse, StoreUnavailable
from plants.stores.committer import ClientWait
from plants.stores.group_commit import GroupCommitStore
from plants.stores.health import Outcomes
from tests.stores.test_every_store import add_together, outcome, reason, submit
from tests.support.process import wait_until


class GardenStore(GroupCommitStore):
    """A dictionary. Inserts fail if it has a fault, and those of negative ids always.

    A transaction begins when the store is ready. A read, and the insert of an id above 999, wait until it is released.
    """

    def __init__(self, timeout: float = 20.0) -> None:
        super().__init__(timeout)
        self.plants: dict[int, Plant] = {}
        self.open: list[ExitStack] = []  # the connections
        self.fault = ""
        self.commit_seconds = 0.0
        self.batches: list[list[int]] = []
        self.ready, self.released = threading.Event(), threading.Event()
        self.ready.set()
        self.released.set()

    def _connect(self) -> ExitStack:
        self.open.append(connection := ExitStack())
        connection.callback(self._close, connection)
        return connection

    def _close(self, connection: ExitStack) -> None:
        self.open.remove(connection)
        if self.fault == "closing a connection":
            raise MemoryError

    def _insert(self, _connection: ExitStack, collect: Callable[[], list[Plant]]) -> Outcomes:
        self.ready.wait()
        plants = collect()
        self.batches.append([plant.id for plant in plants])
        if any(plant.id > 999 for plant in plants):
            self.released.wait()
        threading.Event().wait(self.commit_seconds)
        if self.fault == "a commit":
            sys.exit()
        if self.fault:
            raise StoreUnavailable(self.fault)
        return [self._insert_one(plant) for plant in plants]

    def _insert_one(self, plant: Plant) -> Exception | None:
        if plant.id < 0:
            return StoreUnavailable("a malformed page")
        return None if self.plants.setdefault(plant.id, plant) is plant else PlantIdInUse(plant.id)

    def _find(self, _connection: ExitStack, plant_id: int) -> Plant | None:
        self.released.wait()
        return self.plants.get(plant_id)


@pytest.fixture
def store() -> Iterator[GardenStore]:
    with closing(GardenStore()) as store:
        yield store
    assert store.open == []


def test_in_an_outage_calls_fail_fast_until_a_check_succeeds(store: GardenStore) -> None:
    plants = [Plant(plant_id, "oak") for plant_id in range(1000)]
    with hanging(store):
        queued = [submit(store, plant) for plant in plants]
        store.fault = "the disk is full"
    assert [outcome(future.result) for future in queued] == ["unavailable"] * 1000
    assert add_together(store, plants) == ["unavailable"] * 1000
    assert reason(store) == "the disk is full"
    assert store.get(1) is None  # A store that cannot write can be read.
    assert [batch for batch in store.batches if batch] == [[1000]]
    assert len(store.batches) < 20
    store.fault = ""
    wait_until(lambda: outcome(partial(store.add, Plant(1, "oak"))) == "added")


def test_concurrent_reads_neither_wait_nor_outlive_their_store(store: GardenStore) -> None:
    store.released.clear()
    with ThreadPoolExecutor(3) as threads:
        reads = [threads.submit(store.get, 1) for _ in range(3)]
        wait_until(lambda: len(store.open) == 3)
        store.close()
        store.released.set()
        assert [read.result() for read in reads] == [None] * 3


def test_a_process_without_another_thread_is_unavailable(store: GardenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr("threading.Thread.start", fail)
        assert reason(store) == "can't start new thread"
    store.add(Plant(1, "oak"))


def test_checks_share_a_commit_and_the_last_plants(store: GardenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [submit(store, None) for _ in range(100)]
    assert {outcome(check.result) for check in checks} == {"added"}
    assert len(store.batches) < 100
    store.add(Plant(1, "oak"))
    assert outcome(partial(store.add, Plant(1, "oak"))) == "in use"
    batches = len(store.batches)
    for _ in range(100):
        store.check()
    assert len(store.batches) == batches
    monkeypatch.setattr(store, "check", checks.clear)  # as an agent may replace it
    submit(store, None).result()
    assert not checks


@contextmanager
def hanging(store: GardenStore) -> Iterator[None]:
    """Block the commit of a plant."""
    store.released.clear()
    pending = submit(store, Plant(1000, "oak"))
    try:
        wait_until(lambda: [1000] in store.batches)
        yield
    finally:
        store.released.set()
    outcome(pending.result)


def test_while_a_commit_hangs_calls_time_out_and_then_fail_fast(caplog: pytest.LogCaptureFixture) -> None:
    """The plants that have waited too long take no room in a later batch, and cost no commit."""
    with closing(GardenStore(timeout=1.5)) as store:
        with hanging(store), ThreadPoolExecutor(2) as threads:
            store.timeout = 1  # A call waits for 2.8 s, but fails at once if the commit has lasted for 2.3 s.
            late = [submit(store, Plant(plant_id, "oak")) for plant_id in range(500)]
            calls: list[Callable[[], None]] = [partial(store.add, Plant(500, "oak")), store.check]
            began = time.monotonic()
            assert [outcome(call.result) for call in [*map(threads.submit, calls)]] == ["unavailable"] * 2
            for call in calls * 10:
                with pytest.raises(StoreUnavailable, match="no response in time"):
                    call()
            assert began + 2.8 <= time.monotonic() < began + 30  # Only the first two have waited, each for 2.8 s.
        store.add(Plant(501, "oak"))
        assert {outcome(future.result) for future in late} == {"unavailable"}
        assert [batch for batch in store.batches if batch] == [[1000], [501]]
        # On a busy machine, an outage may end before the plants that have waited too long begin another one.
        wait_until(lambda: sum(map(int, re.findall("meanwhile: ([0-9]+)", caplog.text))) == 511)
    assert {*caplog.messages[::2]} == {"the store is unavailable: no response in time"}


def test_closing_a_store_times_out_while_a_commit_hangs() -> None:
    with closing(GardenStore()) as store, hanging(store):
        queued = submit(store, Plant(1, "fern"))
        store.timeout = 0.5
        store.close()
        with pytest.raises(StoreUnavailable, match="the store is closed"):
            queued.result(0)


def test_if_no_plant_of_a_batch_can_be_stored_checks_fail_and_it_connects_anew(store: GardenStore) -> None:
    with hanging(store):
        [connection] = store.open
        futures = [submit(store, Plant(plant_id, "oak")) for plant_id in (-1, 1000, -2)]
        check = submit(store, None)
    assert [outcome(future.result) for future in futures] == ["unavailable", "in use", "unavailable"]
    assert outcome(check.result) == "unavailable"
    assert outcome(partial(store.add, Plant(1000, "oak"))) == "in use"
    assert reason(store) == "a malformed page"
    store.add(Plant(2, "oak"))
    assert not reason(store)
    assert store.open != [connection]


def test_a_batch_of_large_plants_is_small_enough_to_end_in_time(store: GardenStore) -> None:
    with hanging(store):
        futures = [submit(store, Plant(plant_id, "x" * 1_000_000)) for plant_id in range(4)]
    assert [outcome(future.result) for future in futures] == ["added"] * 4
    assert store.batches[-2:] == [[0, 1], [2, 3]]


def test_clients_that_send_again_after_a_commit_share_the_next_one(store: GardenStore) -> None:
    """Otherwise two groups of clients would take turns, and each would wait for two commits."""
    ids = count()
    shared = threading.Event()
    store.commit_seconds = 0.05

    def add_until_four_commits_are_shared(_client: int) -> None:
        while not shared.is_set():
            store.add(Plant(next(ids), "oak"))
            if [len(batch) for batch in store.batches[-4:]] == [6] * 4:
                shared.set()

    with ThreadPoolExecutor(6) as clients:
        list(clients.map(add_until_four_commits_are_shared, range(6)))


@pytest.mark.parametrize(("return_late", "pauses"), [(False, 8), (True, 1)])
def test_a_wait_in_vain_for_clients_is_repeated_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, return_late: bool, pauses: int
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        paused_before[commits] += 1
        if return_late:
            now += 1  # as long as the last commit
            entries.put(None)

    commits = 0
    paused_before = Counter[int]()
    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now)
    client_wait = ClientWait(entries := queue.SimpleQueue[None]())
    while commits < 90:
        client_wait.wait(1)
        client_wait.began = now
        now += 1
        while entries.qsize():
            entries.get()
        client_wait.note_commit(2)
        commits += 1
    # 8 pauses, each of 1/32 of a commit, are a quarter of it.
    assert paused_before == dict.fromkeys((1, 5, 21, 85), pauses)


LOGGED = {
    "a commit": "a commit failed",
    "closing a connection": "the committer failed, and continues",
    "passing on an outcome": "the outcomes of a commit were lost",
}


@pytest.mark.parametrize(("fails", "logged"), LOGGED.items(), ids=LOGGED)
def test_no_exception_ends_the_committer(
    store: GardenStore, caplog: pytest.LogCaptureFixture, fails: str, logged: str
) -> None:
    passed: list[int] = []

    def done(outcomes: Sized) -> None:
        passed.append(len(outcomes))
        raise MemoryError

    with hanging(store):
        if fails != "passing on an outcome":
            store.fault = fails
        elif wait := store.begin(Plant(1, "oak")):
            wait(done, "first")
            wait(done, "second")
        other = submit(store, Plant(2, "fern"))
    assert outcome(other.result) == ("unavailable" if store.fault else "added")
    if fails == "a commit":
        assert str(other.exception()) == "SystemExit; the log has the details"
    wait_until(lambda: logged in caplog.messages)  # The committer disconnects after it has passed on the outcomes.
    store.fault = ""
    wait_until(lambda: outcome(partial(store.add, Plant(3, "fern"))) == "added")
    assert passed in ([], [2])  # Outcomes of one batch reach their server together.


def test_a_transaction_that_begins_too_late_for_its_plants_says_nothing_of_the_store() -> None:
    with closing(GardenStore(timeout=0.1)) as store:
        store.ready.clear()
        assert outcome(partial(store.add, Plant(1, "oak"))) == "unavailable"  # This takes longer than it may wait.
        store.ready.set()
        wait_until(lambda: store.batches)
        store.check()
        assert store.batches[:2] == [[], []]
