"""A small HTTP service that stores plants."""

from typing import TYPE_CHECKING, Final

from plants.stores import Plant, PlantIdInUse, PlantStore, StoreUnavailable, open_store
from plants.stores.memory import MemoryStore

if TYPE_CHECKING:
    from plants.app import create_app

__version__ = "1.3.0"

MAX_BODY_BYTES: Final = 1_048_576  # the default limit of a request's body

__all__ = ["MemoryStore", "Plant", "PlantIdInUse", "PlantStore", "StoreUnavailable", "create_app", "open_store"]


def __getattr__(name: str) -> object:
    # Import it lazily, because pytest loads our plugin and this package in every session, and Falcon is slow to import.
    if name == "create_app":
        from plants.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
