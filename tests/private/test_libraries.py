"""Undocumented behavior of libraries and the standard library on which the package relies."""

import json
import logging
import subprocess
import sys
import time
from contextlib import closing
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

import pytest
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.workers.base import Worker

from tests.support.postgres_server import PostgresServer

OBSERVED = """
import falcon
from falcon.testing import simulate_get

class Observed(falcon.App):
    __class_getitem__ = None

    def __init__(self, *args, **kwargs):
        kwargs["middleware"].insert(0, self)
        super().__init__(*args, **kwargs)

    def process_request(self, req, resp):
        print(req.method, req.path)

falcon.App = Observed
import plants
print(simulate_get(plants.create_app(tokens=["secret"]), "/plants").status_code)
"""


def test_a_monitoring_tool_may_replace_the_falcon_app() -> None:
    """OpenTelemetry replaces ``falcon.App`` with a class that is not generic, and requires a list of middleware."""
    result = subprocess.run([sys.executable, "-c", OBSERVED], capture_output=True, text=True, check=False)
    assert (result.stdout.splitlines(), result.stderr) == (["GET /plants", "401"], "")


def test_encode_basestring_ascii_accepts_only_strings() -> None:
    """``json.encoder.encode_basestring_ascii``: not documented."""
    for text in ("Fern", '"\\/\n', "\0\x7f\x80\u20ac\ud800\U0001f33f"):
        assert encode_basestring_ascii(text) == json.dumps(text)
    for value in (None, 1, b"Fern", ["Fern"]):
        with pytest.raises(TypeError):
            encode_basestring_ascii(value)  # type: ignore[arg-type]


def test_gunicorn_worker_attributes_and_heartbeat_file(tmp_path: Path) -> None:
    """``Worker`` and ``WorkerTmp``: documented as classes, but not their attributes."""
    cfg: Any = Config()  # type: ignore[no-untyped-call]  # Gunicorn has no types.
    cfg.set("worker_tmp_dir", str(tmp_path))
    worker: Any = Worker(1, 2, ["socket"], None, 30.0, cfg, logging.getLogger())  # type: ignore[no-untyped-call]
    assert (worker.cfg, worker.log, worker.alive) == (cfg, logging.getLogger(), True)
    assert (worker.ppid, worker.sockets, worker.PIPE) == (2, ["socket"], [])
    assert worker.max_requests > 2**31
    assert list(tmp_path.iterdir()) == []  # Other users cannot open the file, because it has no name.
    worker.notify()
    assert 0 <= time.monotonic() - worker.tmp.last_update() < 60
    worker.tmp.close()


def test_gunicorn_hook_may_reject_a_number_of_workers() -> None:
    """``Arbiter.num_workers``: a property, and ``nworkers_changed`` may set it."""
    calls = []

    def nworkers_changed(server: Any, new: int, old: int) -> None:
        calls.append((new, old))
        if new > 2:
            server.num_workers = old

    arbiter: Any = Arbiter.__new__(Arbiter)
    arbiter._num_workers = 2
    arbiter.cfg = Config()  # type: ignore[no-untyped-call]
    arbiter.cfg.set("nworkers_changed", nworkers_changed)
    arbiter.num_workers += 1
    assert arbiter.num_workers == 2
    assert calls == [(3, 2), (2, 3)]


def test_psycopg_waits_in_a_method_with_a_timeout(server: PostgresServer) -> None:
    """``Connection.wait``: each statement calls it, and its ``timeout`` came with psycopg 3.3.9."""
    import psycopg

    class Impatient(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:  # noqa: ARG002
            return super().wait(gen, interval, 0.2)

    with closing(Impatient.connect(server.url, autocommit=True)) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_sleep(60)")
