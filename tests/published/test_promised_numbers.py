"""The numbers that the documents promise: a test fails if one is doubled or halved.

Other tests try what happens at a limit, with a limit that suits them. These ask for the limits that are in force.
"""

import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from pkgutil import resolve_name

import pytest

from plants import Plant, StoreUnavailable, open_store
from plants.server.poll import Poll
from tests.contract import TOKEN
from tests.support.hosted import SERVE, Service
from tests.support.process import free_port, wait_until

# Gunicorn calls this in the worker before it serves.
CONFIGURATION = """
import json
from dataclasses import fields
from pathlib import Path

def post_worker_init(worker):
    config = worker.loop.shared.config
    numbers = {field.name: getattr(config, field.name) for field in fields(config)}
    numbers["connections"] = worker.cfg.worker_connections  # The limit of descriptors may allow fewer.
    numbers["graceful_timeout"] = worker.cfg.graceful_timeout
    numbers["reserved_for_metrics"] = worker.loop.listeners[-1].reserved_connections
    Path("numbers.json").write_text(json.dumps(numbers, default=repr))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """A service whose only settings are a token and an address for the metrics."""
    (folder / "configuration.py").write_text(CONFIGURATION)
    env = {"PLANTS_TOKENS": TOKEN, "PLANTS_METRICS_BIND": f"127.0.0.1:{free_port()}"}
    with Service([*SERVE, "--bind=127.0.0.1:0", "--config=configuration.py"], folder, env) as service:
        service.wait_until_it_serves()
        yield service


DEFAULTS = {
    "request_seconds": 10,
    "response_seconds": 4.5,
    "keepalive_seconds": 650,
    "graceful_timeout": 30,
    "connections": 1000,
    "public_connections": 8,
    "reserved_for_metrics": 8,
    "slots": 64,
    "body_bytes": 1_048_576,
    "line_bytes": 4094,
    "field_bytes": 8190,
    "max_fields": 100,
}
LIMITS_WITHOUT_A_SETTING = {
    "plants:MAX_BODY_BYTES": 1_048_576,
    "plants.server.request:HEAD_BYTES": 16_384,
    "plants.server.config:SMALL_BODY_BYTES": 16_384,
    "plants.server.config:SMALL_RESPONSE_BYTES": 65_536,
    "plants.server.tls:HANDSHAKE_BYTES": 16_384,
    "plants.server.tls:HANDSHAKE_BYTES_WITH_CERTIFICATE": 49_152,
    "plants.hosting.logs:MAX_WAITING_BYTES": 1_048_576,
    "plants.hosting.cli:CHECK_SECONDS": 2,
    "plants.tokens:CHECK_SECONDS": 1,  # A change of the token file takes effect within 2 s.
}


@pytest.mark.usefixtures("service")
def test_a_service_has_the_documented_defaults_and_limits(folder: Path) -> None:
    numbers = json.loads((folder / "numbers.json").read_text())
    assert {name: numbers[name] for name in DEFAULTS} == DEFAULTS
    assert {name: resolve_name(name) for name in LIMITS_WITHOUT_A_SETTING} == LIMITS_WITHOUT_A_SETTING


@pytest.mark.parametrize(
    ("method", "status"), [("AB", 400), ("ABC", 401), ("A" * 20, 401), ("A" * 21, 400)], ids=["2", "3", "20", "21"]
)
def test_a_method_has_3_to_20_characters(service: Service, method: str, status: int) -> None:
    assert service.send(method=method, headers=[]).status == status


def test_a_request_id_of_the_client_has_at_most_128_characters(service: Service) -> None:
    for size, is_kept in ((128, True), (129, False)):
        response = service.send(method="GET", path="/livez", headers=[("X-Request-ID", "x" * size)])
        assert (response.headers["x-request-id"] == "x" * size) == is_kept


def test_poll_waits_for_seconds_where_there_is_no_epoll() -> None:
    before = time.monotonic()
    assert Poll().poll(0.2, 1) == []
    assert time.monotonic() - before > 0.15


def test_each_outage_counts_only_its_own_failures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, moved = tmp_path / "plants.db", tmp_path / "moved.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.add(Plant(0, "oak"))
        for plant_id in (1, 2):
            file.rename(moved)
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    store.add(Plant(plant_id, "oak"))
            moved.rename(file)
            wait_until(lambda: "available again" in caplog.text)
            assert "requests rejected meanwhile: 3" in caplog.text
            caplog.clear()


def test_everybody_may_read_a_new_sqlite_file_and_only_its_owner_may_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_store(f"sqlite:///{tmp_path}/plants.db").prepare()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plants.db").stat().st_mode) == 0o644
