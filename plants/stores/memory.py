"""A dictionary in the process: lives as long as the process, and is shared with no other."""

import threading

from plants.stores import Plant, PlantIdInUse, PlantStore


def from_url(url: str) -> "MemoryStore":
    """Give a new, empty store for ``memory:``."""
    if url != "memory:":
        raise ValueError("the memory store takes no path or options; its URL is memory:")
    return MemoryStore()


class MemoryStore(PlantStore):
    """Plants in a dictionary. An acknowledged plant survives nothing: it is gone with the store."""

    def __init__(self) -> None:
        self._plants: dict[int, Plant] = {}
        self._lock = threading.Lock()

    def add(self, plant: Plant) -> None:
        with self._lock:
            if plant.id in self._plants:
                raise PlantIdInUse(plant.id)
            self._plants[plant.id] = plant

    def get(self, plant_id: int) -> Plant | None:
        return self._plants.get(plant_id)

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
