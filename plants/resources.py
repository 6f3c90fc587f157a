"""The Falcon resource for ``/plants``."""

import sys
from collections.abc import AsyncGenerator, Awaitable, Generator
from concurrent.futures import Future

import falcon

from plants.media import read_json
from plants.schemas import NewPlantSchema, PlantSchema
from plants.stores import GroupCommitStore, PendingAdd, Plant, PlantStore

_new_plant_schema = NewPlantSchema()
_plant_schema = PlantSchema()


class PlantCollection:
    """``/plants``: the plants of one store."""

    def __init__(self, store: PlantStore, max_body_bytes: int) -> None:
        if type(max_body_bytes) is not int or not 0 < max_body_bytes < sys.maxsize:
            raise ValueError(f"max_body_bytes is not an integer from 1 to {sys.maxsize - 1}")
        self._store = store
        self._submit = None
        # submit() would bypass an add() that a subclass overrides or that an instrumentation replaces.
        if isinstance(store, GroupCommitStore) and getattr(store.add, "__func__", None) is GroupCommitStore.add:
            self._submit = store.submit
        self._max_body_bytes = max_body_bytes

    def _add(self, plant: Plant, pending_adds: list[PendingAdd] | None) -> None:
        """Add the plant. If the commit can be deferred, only submit the plant, and append the pending result."""
        if pending_adds is not None and self._submit:
            pending_adds.append(self._submit(plant))
            return
        added: object = self._store.add(plant)
        if added is not None and isinstance(added, Awaitable | AsyncGenerator | Generator | Future):
            raise TypeError("add() of the store is asynchronous, so the plant may not be stored")

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Add the plant in the body, and respond with it."""
        document = read_json(req, self._max_body_bytes)
        plant = Plant(**_new_plant_schema.load(document))
        self._add(plant, req.env.get("plants.pending_adds"))
        resp.data = _plant_schema.dumps(plant).encode()
