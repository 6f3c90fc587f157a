"""The circuit breaker of a store, and the log of its outages."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from plants import MemoryStore, Plant, PlantIdInUse
from plants.stores import StoreUnavailable, StoreUnusable
from plants.stores.outage import CircuitBreaker, LoggedStore
from tests.support.process import wait_until

LATER = time.monotonic() + 3600  # a deadline that no test reaches


class Database:
    """What a circuit breaker protects: it counts the calls, and fails if ``fault`` is set."""

    def __init__(self) -> None:
        self.calls = 0
        self.fault: StoreUnavailable | None = None
        self.released = threading.Event()
        self.released.set()

    def check(self, _deadline: float) -> None:
        self.calls += 1
        assert self.released.wait(60)
        if self.fault:
            raise self.fault

    def write(self, deadline: float) -> None:
        self.check(deadline)


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def breaker(database: Database) -> CircuitBreaker:
    return CircuitBreaker(database.check)


def test_in_an_outage_one_caller_retries_and_others_fail_fast(
    breaker: CircuitBreaker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plants.stores.outage.RETRY_SECONDS", 0.0)
    database.fault = StoreUnusable("the file is gone")
    with pytest.raises(StoreUnavailable):
        breaker.run(database.write, LATER)
    database.released.clear()
    with ThreadPoolExecutor(1) as thread:
        retry = thread.submit(breaker.run, database.write, LATER)
        wait_until(lambda: database.calls == 2)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="the file is gone"):
                breaker.run(database.write, LATER)
        assert database.calls == 2
        database.fault = None
        database.released.set()
        retry.result()
    breaker.run(database.write, LATER)


@pytest.mark.parametrize("others_write", [True, False])
def test_a_failure_opens_the_breaker_unless_others_write(breaker: CircuitBreaker, *, others_write: bool) -> None:
    def fail(_deadline: float) -> None:
        if others_write:
            breaker.written_at = time.monotonic()
        raise StoreUnavailable("a row is locked")

    with pytest.raises(StoreUnavailable):
        breaker.run(fail, LATER)
    with nullcontext() if others_write else pytest.raises(StoreUnavailable, match="a row is locked"):
        breaker.raise_if_open()


def test_concurrent_probes_share_a_check_until_their_deadline(
    breaker: CircuitBreaker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plants.stores.outage.FRESH_SECONDS", 60.0)
    database.released.clear()
    with ThreadPoolExecutor(8) as threads:
        probes = [threads.submit(breaker.probe, LATER) for _ in range(8)]
        wait_until(lambda: database.calls)
        with pytest.raises(StoreUnavailable, match="no response in time"):
            breaker.probe(time.monotonic())
        database.released.set()
        assert [probe.result() for probe in probes] == [None] * 8
    assert database.calls == 1


@pytest.mark.parametrize(("quiet", "lines"), [(60.0, 1), (0.0, 4)], ids=["within", "after"])
def test_failures_in_the_quiet_period_belong_to_one_outage(
    breaker: CircuitBreaker,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    quiet: float,
    lines: int,
) -> None:
    monkeypatch.setattr("plants.stores.outage.QUIET_SECONDS", quiet)
    monkeypatch.setattr("plants.stores.outage.FRESH_SECONDS", -1.0)
    monkeypatch.setattr("plants.stores.outage.RETRY_SECONDS", 0.0)
    for fault in (None, StoreUnavailable("the disk is full"), None, StoreUnavailable("the file is gone"), None):
        database.fault = fault
        with pytest.raises(StoreUnavailable) if fault else nullcontext():
            breaker.probe(LATER)
    begin, end = "the store is unavailable: ", "the store is available again; requests rejected meanwhile: 0"
    assert len(caplog.messages) == lines
    assert all(message.startswith(begin) for message in caplog.messages[::2])
    assert all(message == end for message in caplog.messages[1::2])


class Garden(MemoryStore):
    """A store of another package. It fails if it has a reason."""

    reason = ""

    def check(self) -> None:
        if self.reason:
            raise StoreUnavailable(self.reason)

    def add(self, plant: Plant) -> None:
        self.check()
        super().add(plant)


def test_an_outage_of_another_store_logs_its_start_and_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plants.stores.outage.QUIET_SECONDS", 0.0)
    monkeypatch.setattr("plants.stores.outage.RETRY_SECONDS", 0.0)
    garden = Garden()
    store = LoggedStore(garden)
    store.add(Plant(1, "Fern"))
    for garden.reason in ("closed\nfor lunch", "winter", "snow"):
        for use in (store.check, lambda: store.add(Plant(2, "Rose"))):
            with pytest.raises(StoreUnavailable):
                use()
    assert caplog.messages == ["the store is unavailable: closed for lunch"]
    garden.reason = ""
    store.check()
    with pytest.raises(PlantIdInUse):
        store.add(Plant(1, "Rose"))
    assert store.get(1) == Plant(1, "Fern")
    assert caplog.messages[1:] == ["the store is available again; requests rejected meanwhile: 3"]
    store.close()
