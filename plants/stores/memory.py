"""A dictionary that lives as long as its process. Other processes cannot use it."""

import threading

from plants.stores import OwnerProcess, Plant, PlantIdInUse, PlantStore


class MemoryStore(PlantStore):
    """Plants in a dictionary. They are lost when the process ends."""

    worker_threads = 1  # The store never blocks.
    max_batch = 1
    multiprocess = False

    def __init__(self) -> None:
        self._plants: dict[int, tuple[str, str | None]] = {}
        self._lock = threading.Lock()
        self._owner = OwnerProcess()

    def add(self, plant: Plant) -> None:
        self._owner.check()
        plant_id, name, tag = plant
        with self._lock:
            if plant_id in self._plants:
                raise PlantIdInUse(plant_id)
            # The garbage collector stops visiting a plain tuple of strings, but would visit each Plant for ever.
            self._plants[plant_id] = name, tag

    def get(self, plant_id: int) -> Plant | None:
        self._owner.check()
        found = self._plants.get(plant_id)
        return found and Plant(plant_id, *found)

    def check(self) -> None:
        self._owner.check()

    def close(self) -> None:
        pass
