"""The health of a store of another package, and the log of its outages."""

from functools import partial
from types import SimpleNamespace

import pytest

from plants import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.stores import PlantRefused
from plants.stores.health import Health, LoggedStore
from plants.testing import FaultyStore
from tests.stores.test_every_store import outcome, reason


@pytest.fixture
def garden() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def store(garden: FaultyStore, clock: SimpleNamespace) -> PlantStore:
    return LoggedStore(garden, lambda: clock.now)


def add(store: PlantStore, plant_id: int) -> str:
    return outcome(partial(store.add, Plant(plant_id, "oak")))


def test_an_outage_logs_its_start_new_reasons_and_its_end(
    garden: FaultyStore, clock: SimpleNamespace, store: PlantStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert add(store, 1) == "added"
    for seconds, why in ((0, "closed\nfor lunch"), (6, "hail"), (5, "winter"), (9, "frost"), (2, "snow"), (12, "snow")):
        clock.now += seconds
        garden.fail(StoreUnavailable(why))
        assert add(store, 2) == "unavailable"
        assert reason(store) == why
    assert caplog.messages == [f"the store is unavailable: {why}" for why in ("closed for lunch", "winter", "snow")]
    caplog.clear()
    garden.fault = None
    assert add(store, 1) == "in use"
    clock.now += 0.9
    assert add(store, 2) == "added"  # It is too soon after a failure for the end of the outage.
    assert not caplog.messages
    clock.now += 0.6
    store.check()
    assert caplog.messages == ["the store is available again; requests rejected meanwhile: 6"]
    clock.now += 1.1
    garden.fail(StoreUnavailable("snow"))
    assert reason(store) == "snow"
    garden.fault = None
    clock.now += 1.1
    store.check()
    assert caplog.messages[1:] == [
        "the store is unavailable: snow",
        "the store is available again; requests rejected meanwhile: 0",
    ]
    assert store.get(2)


def test_a_check_fails_for_5_s_or_until_a_plant_is_stored(
    garden: FaultyStore, clock: SimpleNamespace, store: PlantStore
) -> None:
    for recovers in (True, False):
        garden.fail(StoreUnavailable("a malformed page"))
        assert add(store, 1) == "unavailable"
        garden.fault = None  # A check does not see what only a row fails for.
        clock.now += 4.9
        assert reason(store) == "a malformed page"
        if recovers:
            assert add(store, 2) == "added"
        else:
            clock.now += 0.2
        assert not reason(store)


def test_a_store_that_can_write_accepts_plants_although_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    health = Health(lambda: 1000.0)
    health.record([StoreUnavailable("a locked id"), None])
    assert health.is_fresh()  # One of the plants was stored.
    assert caplog.messages == ["the store is unavailable: a locked id"]
    health.record([StoreUnavailable("a malformed page")])
    health.down_reason = "a full disk"
    health.record([])
    health.raise_if_down(rejected=1)
    with pytest.raises(StoreUnavailable, match="a malformed page"):
        health.is_fresh()


def test_a_check_that_began_before_a_failure_does_not_hide_it(
    garden: FaultyStore, store: PlantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    garden.fail(StoreUnavailable("a malformed page"))
    monkeypatch.setattr(garden, "check", partial(add, store, 1))  # The plant fails during the check.
    store.check()
    assert reason(store) == "a malformed page"


@pytest.mark.parametrize("error", [PlantRefused("a CHECK"), PlantIdInUse(1)], ids=["refused", "in use"])
def test_a_refused_plant_or_an_id_in_use_says_nothing(garden: FaultyStore, store: PlantStore, error: Exception) -> None:
    garden.fail(error)
    assert add(store, 1) in {"rejected", "in use"}
    garden.fail(StoreUnavailable("snow"))
    assert reason(store) == "snow"
    garden.fault = None
    assert not reason(store)


def test_checks_share_a_success_for_half_a_second(
    garden: FaultyStore, clock: SimpleNamespace, store: PlantStore
) -> None:
    for share in (True, False):
        assert not reason(store)
        garden.fail(StoreUnavailable("snow"))
        clock.now += 0.4 if share else 0.6
        assert reason(store) == ("" if share else "snow")
        garden.fault = None
