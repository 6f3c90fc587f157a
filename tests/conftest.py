import pytest

from plants import MemoryStore, PlantStore
from tests.calls import sender
from tests.contract import Send


@pytest.fixture
def store() -> PlantStore:
    return MemoryStore()


@pytest.fixture
def send(store: PlantStore) -> Send:
    return sender(store)
