import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import plants
from plants import MemoryStore, PlantStore
from tests.contract import LIMIT, TOKEN, Send
from tests.support.calls import sender
from tests.support.postgres_server import PostgresServer


@pytest.fixture
def store() -> PlantStore:
    return MemoryStore()


@pytest.fixture
def app(store: PlantStore) -> Any:
    return plants.create_app(store, tokens=[TOKEN], max_body_bytes=LIMIT)


@pytest.fixture
def send(app: Any) -> Send:
    return sender(app)


@pytest.fixture(scope="session")
def server_directory() -> Iterator[Path]:
    """Give a directory that another user can enter, unlike tmp_path: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="session")
def session_server(server_directory: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(server_directory / "postgres")
    server.create()
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(session_server: PostgresServer) -> PostgresServer:
    """Give a PostgreSQL server that has no table."""
    session_server.execute("DROP TABLE IF EXISTS plants")
    return session_server
