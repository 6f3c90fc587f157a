"""A test suite for stores of other projects. It needs pytest alone."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from plants.stores import COLUMNS, Plant, PlantIdInUse, PlantStore, StoreUnavailable

_TEXTS = {
    "empty": "",
    "white space": "  two \t\nlines\r\n\u2028 ",
    "like SQL": "'; DROP TABLE plants; -- %s %(name)s ? :name $1 {}",
    "like a number": "1.0",
    "backslash": "\\x41 \\u0000 \\",
    "control characters": "\x01\x1b\x7f\x80",
    "composed and decomposed": "caf\u00e9 cafe\u0301",
    "right to left after a byte order mark": "\ufeff\u202eشجرة",
    "noncharacters, and beyond the first plane": "\ufdd0\uffff🌵\U0010ffff",
    "two million characters": "né" * 1_000_000,
}
# Some are equal as 32-bit integers, as floating-point numbers, or without their signs.
_IDS = [-(2**63), 1 - 2**63, -(2**53) - 1, -(2**53), -1, 0, 1, 2**32, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1]


def _filled_with(text: str) -> Plant:
    """Return a plant in which every member has a value."""
    return Plant._make([1, *(text if column.type is str else _IDS[0] for column in COLUMNS[1:])])


class _SlowId(int):
    """An id that lets other threads run whenever a dictionary looks for it; otherwise most faulty stores would pass."""

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other)

    def __hash__(self) -> int:
        time.sleep(0.0001)
        return int.__hash__(self)


class StoreSuite:
    """The promises of every store. A subclass adds a fixture ``store``, which returns an empty store."""

    @pytest.mark.parametrize("text", _TEXTS.values(), ids=_TEXTS)
    def test_text_is_returned_exactly(self, store: PlantStore, text: str) -> None:
        store.add(_filled_with(text))
        assert store.get(1) == _filled_with(text)

    def test_no_tag_is_not_an_empty_tag(self, store: PlantStore) -> None:
        store.add(Plant(1, "oak"))
        store.add(Plant(2, "oak", ""))
        assert (store.get(1), store.get(2)) == (Plant(1, "oak", None), Plant(2, "oak", ""))

    def test_every_int64_is_an_id_of_its_own(self, store: PlantStore) -> None:
        plants = [Plant(plant_id, f"oak {plant_id}") for plant_id in _IDS]
        for plant in plants:
            store.add(plant)
        # repr() distinguishes a Plant from a tuple, and 1 from 1.0.
        assert repr([store.get(plant_id) for plant_id in _IDS]) == repr(plants)

    @pytest.mark.parametrize("text", ["oak\0tree", "\ud800"], ids=ascii)
    def test_disallowed_text_is_rejected_or_stored_unchanged(self, store: PlantStore, text: str) -> None:
        plant = _filled_with(text)
        stored: Plant | None = plant
        try:
            store.add(plant)
        except Exception:
            stored = None
        assert store.get(1) == stored

    def test_an_unknown_id_is_none(self, store: PlantStore) -> None:
        assert store.get(1) is None

    def test_an_id_in_use_is_rejected_and_its_plant_is_unchanged(self, store: PlantStore) -> None:
        store.add(Plant(1, "oak", "tree"))
        for again in (Plant(1, "fern", "herb"), Plant(1, "oak", "tree")):
            with pytest.raises(PlantIdInUse) as caught:
                store.add(again)
            assert caught.value.plant_id == 1
            assert store.get(1) == Plant(1, "oak", "tree")

    def test_exactly_one_of_concurrent_adds_of_an_id_succeeds(self, store: PlantStore) -> None:
        def compete(name: str) -> set[int]:
            won = set()
            for plant_id in range(100):
                together.wait()
                # A store may give up waiting for the winner's commit.
                with suppress(PlantIdInUse, StoreUnavailable):
                    store.add(Plant(_SlowId(plant_id), name))
                    won.add(plant_id)
            return won

        names = list("abcdefgh")
        together = threading.Barrier(len(names), timeout=30)
        with ThreadPoolExecutor(len(names)) as threads:
            won = dict(zip(names, threads.map(compete, names), strict=True))
        assert sorted(plant_id for ids in won.values() for plant_id in ids) == list(range(100))
        assert all(store.get(plant_id) == Plant(plant_id, name) for name, ids in won.items() for plant_id in ids)

    def test_a_working_store_passes_its_check(self, store: PlantStore) -> None:
        assert store.worker_threads >= 0
        assert isinstance(store.multiprocess, bool)
        store.prepare()
        for plant_id in (1, 2):
            checked: object = store.check()
            assert checked is None, "check() reports a failure by raising StoreUnavailable; what it returns is ignored"
            added: object = store.add(Plant(plant_id, "oak"))
            assert added is None, "add() reports a failure by raising an exception; what it returns becomes a 500"

    def test_a_store_may_be_closed_twice(self, store: PlantStore) -> None:
        store.close()
        store.close()
