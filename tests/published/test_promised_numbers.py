"""The numbers that the documents promise: a test fails if one is doubled or halved.

Other tests try what happens at a limit, with a limit that suits them. These ask for the limits that are in force.
"""

import json
import time
from pathlib import Path
from pkgutil import resolve_name

from plants.server.poll import Poll
from tests.contract import TOKEN
from tests.support.hosted import SERVE, Service
from tests.support.process import free_port

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


def test_a_service_has_the_documented_defaults_and_limits(tmp_path: Path) -> None:
    (tmp_path / "configuration.py").write_text(CONFIGURATION)
    env = {"PLANTS_TOKENS": TOKEN, "PLANTS_METRICS_BIND": f"127.0.0.1:{free_port()}"}
    with Service([*SERVE, "--bind=127.0.0.1:0", "--config=configuration.py"], tmp_path, env) as service:
        service.wait_until_it_serves()
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert {name: numbers[name] for name in DEFAULTS} == DEFAULTS
    assert {name: resolve_name(name) for name in LIMITS_WITHOUT_A_SETTING} == LIMITS_WITHOUT_A_SETTING


def test_poll_waits_for_seconds_where_there_is_no_epoll() -> None:
    before = time.monotonic()
    assert Poll().poll(0.2, 1) == []
    assert time.monotonic() - before > 0.15
