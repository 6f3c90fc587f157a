"""The store of another package, with a log of its outages."""

import pytest

from plants import MemoryStore, Plant, PlantIdInUse
from plants.stores import StoreUnavailable
from plants.stores.outage import LoggedStore


class Garden(MemoryStore):
    """A store of another package. It fails if it has a reason."""

    reason = ""
    checks = 0

    def check(self) -> None:
        self.checks += 1
        if self.reason:
            raise StoreUnavailable(self.reason)

    def add(self, plant: Plant) -> None:
        self.check()
        super().add(plant)


def test_an_outage_of_another_store_logs_its_start_and_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plants.stores.outage.QUIET_SECONDS", 60.0)
    monkeypatch.setattr("plants.stores.outage.FRESH_SECONDS", -1.0)
    garden = Garden()
    store = LoggedStore(garden)
    store.add(Plant(1, "Fern"))
    for reason in ("closed\nfor lunch", "winter", "snow"):
        garden.reason = reason
        for use in (store.check, lambda: store.add(Plant(2, "Rose"))):
            with pytest.raises(StoreUnavailable, match=reason):
                use()
        garden.reason = ""
        store.check()  # A success soon after a failure does not end the outage.
    assert caplog.messages == ["the store is unavailable: closed for lunch"]
    monkeypatch.setattr("plants.stores.outage.QUIET_SECONDS", -1.0)
    store.check()
    with pytest.raises(PlantIdInUse):
        store.add(Plant(1, "Rose"))
    assert store.get(1) == Plant(1, "Fern")
    assert caplog.messages[1:] == ["the store is available again; requests rejected meanwhile: 3"]
    store.close()


def test_checks_of_another_store_share_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plants.stores.outage.FRESH_SECONDS", 60.0)
    garden = Garden()
    store = LoggedStore(garden)
    garden.reason = "snow"
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            store.check()
    garden.reason = ""
    for _ in range(2):
        store.check()
    assert garden.checks == 3
