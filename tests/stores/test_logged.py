"""The log of the outages of a store of another package."""

import pytest

from plants import MemoryStore, Plant, PlantIdInUse, StoreUnavailable
from plants.stores.logged import LoggedStore


class Garden(MemoryStore):
    """A store that fails for as long as it has a reason."""

    reason = ""

    def check(self) -> None:
        if self.reason:
            raise StoreUnavailable(self.reason)

    def add(self, plant: Plant) -> None:
        self.check()
        super().add(plant)


def test_an_outage_logs_its_first_and_last_failure(caplog: pytest.LogCaptureFixture) -> None:
    garden = Garden()
    store = LoggedStore(garden)
    store.add(Plant(1, "Fern"))
    for garden.reason in ("closed\nfor lunch", "winter", "snow"):
        with pytest.raises(StoreUnavailable):
            store.add(Plant(2, "Rose"))
    assert caplog.messages == ["the store is unavailable: closed for lunch"]
    garden.reason = ""
    store.check()
    with pytest.raises(PlantIdInUse):
        store.add(Plant(1, "Rose"))
    assert store.get(1) == Plant(1, "Fern")
    assert caplog.messages[1:] == ["the store is available again after 3 failed calls; the last: snow"]
    store.close()
