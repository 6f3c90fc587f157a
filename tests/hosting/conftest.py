from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosted import Service, serving
from tests.support.process import free_port


@pytest.fixture(scope="session")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "plants.db"


@pytest.fixture(scope="session")
def service(metrics_port: int, database: Path) -> Iterator[Service]:
    """A service that tests share, so each uses request ids and plants of its own, and leaves it as it was."""
    metrics = f"0.0.0.0:{metrics_port}"
    with serving(workers=2, PLANTS_STORE=f"sqlite:///{database}", PLANTS_METRICS_BIND=metrics, TZ="JST-9") as service:
        yield service
