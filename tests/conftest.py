import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from plants import MemoryStore, PlantStore
from tests.calls import sender
from tests.contract import Send


@pytest.fixture
def store() -> PlantStore:
    return MemoryStore()


@pytest.fixture
def send(store: PlantStore) -> Send:
    return sender(store)


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
