"""A dictionary in the process: lives as long as the process, and is shared with no other."""

import threading

from plants.stores import Plant, PlantIdInUse, PlantStore

# A dictionary that grows copies itself while everybody waits: 0.1 s at three million plants. Small ones copy less.
_PARTS = 1024


class MemoryStore(PlantStore):
    """Plants in dictionaries. An acknowledged plant survives nothing: it is gone with the store."""

    worker_threads = 1  # It never blocks.
    max_batch = 1
    multiprocess = False

    def __init__(self) -> None:
        self._parts: list[dict[int, str]] = [{} for _ in range(_PARTS)]
        self._lock = threading.Lock()

    def add(self, plant: Plant) -> None:
        plant_id, name, tag = plant
        part = self._part_of(plant_id)
        with self._lock:
            if plant_id in part:
                raise PlantIdInUse(plant_id)
            # One string, which no plant's text can have U+0000 in: the garbage collector never visits a dictionary of
            # strings, and the plant takes half the memory of a tuple.
            part[plant_id] = name if tag is None else f"{name}\0{tag}"

    def get(self, plant_id: int) -> Plant | None:
        kept = self._part_of(plant_id).get(plant_id)
        return None if kept is None else Plant(plant_id, *kept.split("\0"))

    def _part_of(self, plant_id: int) -> dict[int, str]:
        # A tuple's hash mixes the bits, so that ids in steps are spread as well.
        return self._parts[hash((plant_id,)) % _PARTS]

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
