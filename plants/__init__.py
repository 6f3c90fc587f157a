"""The Plant Store Service: a plant store interface over HTTP with JSON bodies."""

from plants.app import create_app
from plants.stores import Plant, PlantIdInUse, PlantStore, StoreUnavailable, open_store
from plants.stores.memory import MemoryStore

__all__ = [
    "MemoryStore",
    "Plant",
    "PlantIdInUse",
    "PlantStore",
    "StoreUnavailable",
    "create_app",
    "open_store",
]
