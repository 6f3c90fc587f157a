"""A dictionary that lives as long as its process. Other processes cannot use it."""

import threading
from typing import Any

from plants.stores import OwnerProcess, Plant, PlantIdInUse, PlantStore


class MemoryStore(PlantStore):
    """Plants in a dictionary. They are lost when the process ends."""

    worker_threads = 0
    multiprocess = False

    def __init__(self) -> None:
        # A dictionary of strings or numbers for each member, because the garbage collector visits none of them, however
        # large they are. The first has the names: every plant has one.
        members: list[dict[int, Any]] = [{} for _ in Plant._fields[1:]]
        self._names, *self._others = members
        self._lock = threading.Lock()
        self._owner = OwnerProcess()

    def add(self, plant: Plant) -> None:
        self._owner.check()
        plant_id, name = plant[:2]
        with self._lock:
            if plant_id in self._names:
                raise PlantIdInUse(plant_id)
            for values, value in zip(self._others, plant[2:], strict=True):
                if value is not None:
                    values[plant_id] = value
            self._names[plant_id] = name  # From now on, other threads find the plant.

    def get(self, plant_id: int) -> Plant | None:
        self._owner.check()
        name = self._names.get(plant_id)
        return None if name is None else Plant(plant_id, name, *(values.get(plant_id) for values in self._others))

    def check(self) -> None:
        self._owner.check()
