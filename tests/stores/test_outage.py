"""The log of a store's outages, and the store of another package with one."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from plants import MemoryStore, Plant, PlantIdInUse
from plants.stores import StoreUnavailable
from plants.stores.outage import LoggedStore, Outage
from tests.support.process import wait_until


def test_failures_in_the_quiet_period_belong_to_one_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plants.stores.outage.QUIET_SECONDS", 60.0)
    outage = Outage()
    for _ in range(2):
        outage.record_failure("the disk is full")
        outage.record_success()
    assert caplog.messages == ["the store is unavailable: the disk is full"]


class Garden(MemoryStore):
    """A store of another package. It fails if it has a reason."""

    reason = ""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.released = threading.Event()
        self.released.set()

    def check(self) -> None:
        self.calls += 1
        self.released.wait()
        if self.reason:
            raise StoreUnavailable(self.reason)

    def add(self, plant: Plant) -> None:
        self.check()
        super().add(plant)


def test_an_outage_of_another_store_logs_its_start_and_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plants.stores.outage.QUIET_SECONDS", -1.0)
    monkeypatch.setattr("plants.stores.outage.FRESH_SECONDS", -1.0)
    garden = Garden()
    store = LoggedStore(garden)
    store.add(Plant(1, "Fern"))
    for garden.reason in ("closed\nfor lunch", "winter", "snow"):
        for use in (store.check, lambda: store.add(Plant(2, "Rose"))):
            with pytest.raises(StoreUnavailable, match=garden.reason):
                use()
    assert caplog.messages == ["the store is unavailable: closed for lunch"]
    garden.reason = ""
    store.check()
    with pytest.raises(PlantIdInUse):
        store.add(Plant(1, "Rose"))
    assert store.get(1) == Plant(1, "Fern")
    assert caplog.messages[1:] == ["the store is available again; requests rejected meanwhile: 3"]
    store.close()


def test_concurrent_checks_of_another_store_share_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plants.stores.outage.FRESH_SECONDS", 60.0)
    garden = Garden()
    garden.released.clear()
    store = LoggedStore(garden)
    with ThreadPoolExecutor(8) as threads:
        checks = [threads.submit(store.check)]
        wait_until(lambda: garden.calls)
        monkeypatch.setattr("plants.stores.outage.CHECK_SECONDS", 0.0)
        with pytest.raises(StoreUnavailable, match="no response in time"):
            store.check()
        monkeypatch.setattr("plants.stores.outage.CHECK_SECONDS", 60.0)
        checks += [threads.submit(store.check) for _ in range(7)]
        garden.released.set()
        assert {check.exception() for check in checks} == {None}
    assert garden.calls == 1
