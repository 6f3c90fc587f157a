"""Undocumented behavior of libraries and the standard library on which the package relies."""

import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config

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
