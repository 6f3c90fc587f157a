"""A dictionary in the process: lives as long as the process, and is shared with no other."""

import threading
from typing import Self

from plants.stores import Plant, PlantIdInUse, PlantStore


class MemoryStore(PlantStore):
    """Plants in a dictionary. An acknowledged plant survives nothing: it is gone with the store."""

    def __init__(self) -> None:
        self._plants: dict[int, tuple[str, str | None]] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Give a new, empty store for ``memory:``.

        :raises ValueError: there is more to the URL.
        """
        if url != "memory:":
            raise ValueError("the dictionary store takes no path and no options: its URL is memory:")
        return cls()

    def add(self, plant: Plant) -> None:
        with self._lock:
            if plant.id in self._plants:
                raise PlantIdInUse(plant.id)
            # The garbage collector stops visiting a plain tuple of strings; a Plant it would visit for good.
            self._plants[plant.id] = (plant.name, plant.tag)

    def get(self, plant_id: int) -> Plant | None:
        kept = self._plants.get(plant_id)
        return kept and Plant(plant_id, *kept)

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
