"""The resource of the interface."""

import sys

import falcon

from plants.media import read_json
from plants.schemas import NewPlantSchema, PlantSchema
from plants.stores import Plant, PlantStore

_new_plant_schema = NewPlantSchema()
_plant_schema = PlantSchema()


class PlantCollection:
    """``/plants``: the plants of one store."""

    def __init__(self, store: PlantStore, max_body_bytes: int) -> None:
        if type(max_body_bytes) is not int or not 0 < max_body_bytes < sys.maxsize:
            raise ValueError("max_body_bytes is not an integer above 0")
        self._store = store
        self._max_body_bytes = max_body_bytes

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Add the plant in the body, and answer with it."""
        document = read_json(req, self._max_body_bytes)
        plant = Plant(**_new_plant_schema.load(document))
        self._store.add(plant)
        resp.data = _plant_schema.dumps(plant).encode()
