"""A dictionary that lives as long as its process. Other processes cannot use it."""

import threading

from plants.stores import OwnerProcess, Plant, PlantIdInUse, PlantStore


class MemoryStore(PlantStore):
    """Plants in a dictionary. They are lost when the process ends."""

    worker_threads = 1  # The store never blocks.
    max_batch = 1
    multiprocess = False

    def __init__(self) -> None:
        # Dictionaries of strings, because the garbage collector visits neither of them, however large they are.
        self._names: dict[int, str] = {}
        self._tags: dict[int, str] = {}
        self._lock = threading.Lock()
        self._owner = OwnerProcess()

    def add(self, plant: Plant) -> None:
        self._owner.check()
        plant_id, name, tag = plant
        with self._lock:
            if plant_id in self._names:
                raise PlantIdInUse(plant_id)
            if tag is not None:
                self._tags[plant_id] = tag
            self._names[plant_id] = name

    def get(self, plant_id: int) -> Plant | None:
        self._owner.check()
        name = self._names.get(plant_id)
        return None if name is None else Plant(plant_id, name, self._tags.get(plant_id))

    def check(self) -> None:
        self._owner.check()

    def close(self) -> None:
        pass
