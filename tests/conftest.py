from typing import Any

import pytest

import plants
from plants import MemoryStore, PlantStore
from tests.calls import sender
from tests.contract import LIMIT, TOKEN, Send


@pytest.fixture
def store() -> PlantStore:
    return MemoryStore()


@pytest.fixture
def app(store: PlantStore) -> Any:
    return plants.create_app(store, tokens=[TOKEN], max_body_bytes=LIMIT)


@pytest.fixture
def send(app: Any) -> Send:
    return sender(app)
