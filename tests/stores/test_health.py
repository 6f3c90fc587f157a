"""The health of a store of another package, and the log of its outages."""

from functools import partial

import pytest

from plants import MemoryStore, Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.stores import PlantRefused
from plants.stores.health import LoggedStore
from tests.stores.test_every_store import outcome, reason


class Garden(MemoryStore):
    """A store of another package. It fails if it has an error."""

    error: Exception | None = None
    checks = 0

    def check(self) -> None:
        self.checks += 1
        if self.error:
            raise self.error

    def add(self, plant: Plant) -> None:
        if self.error:
            raise self.error
        super().add(plant)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def garden() -> Garden:
    return Garden()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(garden: Garden, clock: Clock) -> PlantStore:
    return LoggedStore(garden, clock)


def add(store: PlantStore, plant_id: int) -> str:
    return outcome(partial(store.add, Plant(plant_id, "oak")))


def test_an_outage_logs_its_start_new_reasons_and_its_end(
    garden: Garden, clock: Clock, store: PlantStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert add(store, 1) == "added"
    for why in ("closed\nfor lunch", "winter", "winter", "winter", "snow"):
        garden.error = StoreUnavailable(why)
        assert add(store, 2) == "unavailable"
        clock.now += 6
        assert reason(store) == why
    assert caplog.messages == [f"the store is unavailable: {why}" for why in ("closed for lunch", "winter", "snow")]
    caplog.clear()
    garden.error = None
    assert add(store, 1) == "in use"
    assert add(store, 2) == "added"  # It is too soon after a failure for the end of the outage.
    assert not caplog.messages
    clock.now += 1.1
    store.check()
    assert caplog.messages == ["the store is available again; requests rejected meanwhile: 5"]
    clock.now += 1.1
    garden.error = StoreUnavailable("hail")
    assert reason(store) == "hail"
    garden.error = None
    clock.now += 1.1
    store.check()
    assert caplog.messages[1:] == [
        "the store is unavailable: hail",
        "the store is available again; requests rejected meanwhile: 0",
    ]
    assert store.get(2)
    store.close()


def test_a_check_fails_for_5_s_or_until_a_plant_is_stored(garden: Garden, clock: Clock, store: PlantStore) -> None:
    for recovers in (True, False):
        garden.error = StoreUnavailable("a malformed page")
        assert add(store, 1) == "unavailable"
        garden.error = None  # A check does not see what only a row fails for.
        clock.now += 4.9
        assert reason(store) == "a malformed page"
        if recovers:
            assert add(store, 2) == "added"
        else:
            clock.now += 0.2
        assert not reason(store)


@pytest.mark.parametrize("error", [PlantRefused("a CHECK"), PlantIdInUse(1)], ids=["refused", "in use"])
def test_a_refused_plant_or_an_id_in_use_says_nothing(garden: Garden, store: PlantStore, error: Exception) -> None:
    garden.error = error
    assert add(store, 1) in {"rejected", "in use"}
    garden.error = None
    assert not reason(store)
    assert garden.checks == 1


def test_checks_share_a_success_for_half_a_second(garden: Garden, clock: Clock, store: PlantStore) -> None:
    garden.error = StoreUnavailable("snow")
    assert [reason(store), reason(store)] == ["snow"] * 2
    garden.error = None
    assert [reason(store), reason(store)] == [""] * 2
    assert garden.checks == 3
    clock.now += 0.6
    store.check()
    assert garden.checks == 4
