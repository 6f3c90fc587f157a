"""A dictionary that lives as long as its process. Other processes cannot use it."""

import os
import threading

from plants.stores import Plant, PlantIdInUse, PlantStore

# The dictionary is sharded, because resizing a single one with three million plants blocks all threads for 0.1 s.
_SHARDS = 1024

# All dictionaries share this lock. A fork waits for it, because a child that inherits it locked would wait forever.
fork_safe_lock = threading.RLock()
os.register_at_fork(
    before=fork_safe_lock.acquire, after_in_parent=fork_safe_lock.release, after_in_child=fork_safe_lock.release
)


class MemoryStore(PlantStore):
    """Plants in dictionaries. They are lost when the process ends."""

    worker_threads = 1  # The store never blocks.
    max_batch = 1
    multiprocess = False

    def __init__(self) -> None:
        self._shards: list[dict[int, str]] = [{} for _ in range(_SHARDS)]

    def add(self, plant: Plant) -> None:
        plant_id, name, tag = plant
        # A plant is one string, which takes half the memory of a tuple. Also, the garbage collector never visits a
        # dictionary of strings.
        text = name if tag is None else name + "\0" + tag
        if str.count(text, "\0") != (tag is not None):
            raise ValueError("the name or the tag contains U+0000")
        shard = self._shard_of(plant_id)
        with fork_safe_lock:
            if plant_id in shard:
                raise PlantIdInUse(plant_id)
            shard[plant_id] = text

    def get(self, plant_id: int) -> Plant | None:
        text = self._shard_of(plant_id).get(plant_id)
        return None if text is None else Plant(plant_id, *text.split("\0"))

    def _shard_of(self, plant_id: int) -> dict[int, str]:
        # A tuple's hash mixes the bits, so that ids with a common stride are also spread evenly.
        return self._shards[hash((plant_id,)) % _SHARDS]

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
