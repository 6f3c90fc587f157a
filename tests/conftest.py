import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import plants
from plants import MemoryStore, PlantStore
from tests.contract import LIMIT, TOKEN, Contract, Send
from tests.support.calls import sender
from tests.support.postgres_server import PostgresServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the rows of the contract that a class does not ask for."""
    items[:] = [item for item in items if not _is_left_out(item)]


def _is_left_out(item: pytest.Item) -> bool:
    suite = getattr(item, "cls", None)
    is_of_the_contract = hasattr(Contract, getattr(item, "originalname", ""))
    return getattr(suite, "only_host_rows", False) and is_of_the_contract and not item.get_closest_marker("host")


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure no coverage of the processes that a test starts: it costs half of a start, and others cover the same."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


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
