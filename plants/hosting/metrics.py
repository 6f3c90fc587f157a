"""The metrics of the service, for Prometheus: ``GET /metrics`` on a separate address, the sum of all workers."""

import atexit
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import falcon

import plants
from plants import server
from plants.app import PLANTS_PATH
from plants.falcon_defaults import json_app
from plants.server.request import Request, WSGIApplication
from plants.server.response import Response

# One socket, if PLANTS_METRICS_BIND is set and Gunicorn's master has opened it.
listening_sockets: Final[list[socket.socket]] = []

_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_DURATION_METRIC = "http_server_request_duration_seconds"
_METHODS = {"GET", "HEAD", "POST"}  # The label of any other method is "other", so that a scrape stays small.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def listen(address: tuple[str, int], cfg: Any) -> None:
    """Listen on the metrics' address. Gunicorn's master calls this once, before it starts workers.

    :raises OSError: it cannot listen on this address, or cannot create a folder for the files.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.create_server(address, family=family)
    listener.setblocking(False)
    listening_sockets.append(listener)
    # prometheus_client stores the workers' metrics in this folder, and reads the folder's name on import. Import the
    # library now, because older versions of Gunicorn call child_exit in a signal handler, which could interrupt a later
    # import.
    folder = os.environ[_FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="plants-metrics-", dir=cfg.worker_tmp_dir)
    import_module("prometheus_client.multiprocess")
    with suppress(PermissionError):  # A sandbox may forbid this, even if it changes nothing.
        os.chown(folder, cfg.uid, cfg.gid)
    at_exit_of_master(partial(shutil.rmtree, folder, ignore_errors=True))


def at_exit_of_master(call: Callable[[], object]) -> None:
    """Register ``call`` to run when this process exits, but not when one of its workers exits."""
    atexit.register(call)
    os.register_at_fork(after_in_child=partial(atexit.unregister, call))


def _folder() -> Path:
    return Path(os.environ[_FOLDER_VARIABLE])


class Metrics:
    """The metrics of one worker, in files of its slot.

    No two living workers have the same slot. A worker continues the counts of an earlier worker that had its slot, so
    the number of files does not grow.
    """

    def __init__(self, slot: int | str) -> None:
        """Open the files.

        :raises OSError: the files cannot be created.
        """
        from prometheus_client import Gauge, Histogram, values

        values.ValueClass = values.MultiProcessValue(lambda: slot)
        gauge = partial(Gauge, registry=None, multiprocess_mode="livesum")
        self._duration_histogram = Histogram(
            _DURATION_METRIC,
            "Time from a request's first byte to its response.",
            ("method", "route", "status", "error"),
            buckets=_BUCKETS,
            registry=None,
        )
        # The first labels() opens the file. If this waited, and the folder were missing then, a response would fail.
        self._duration_histogram.labels("POST", PLANTS_PATH, "200", "")
        self._connections_gauge = gauge("plants_connections", "Open connections.")
        self._waiting_gauge = gauge("plants_requests_waiting", "Requests that wait for the application or the store.")
        build = gauge("plants_build_info", "The version.", ("version", "server"), multiprocess_mode="livemostrecent")
        build.labels(plants.__version__, server.implementation()).set(1)
        self._observers: dict[tuple[str, bool, str, int], Callable[[float], None]] = {}

    def count_response(self, request: Request, response: Response, code: int, seconds: float) -> None:
        """Count a response and its duration, unless the request was one for the metrics."""
        if request.listener.sock in listening_sockets:
            return
        method = request.method if request.method in _METHODS else "other"
        key = (method, request.path == PLANTS_PATH, response.status, code)
        observe = self._observers.get(key)
        if not observe:
            labels = (key[0], PLANTS_PATH if key[1] else "other", key[2][:3], str(code or ""))
            observe = self._observers[key] = self._duration_histogram.labels(*labels).observe
        observe(seconds)

    def set_gauges(self, connections: int, waiting: int) -> None:
        """Set the number of open connections, and of requests without a response."""
        self._connections_gauge.set(connections)
        self._waiting_gauge.set(waiting)


class Exposition:
    """``/metrics``: the sum of the metrics of all workers, in Prometheus' format."""

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Respond with the metrics."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        resp.data = generate_latest(self)
        resp.content_type = CONTENT_TYPE_LATEST

    on_head = on_get

    def collect(self) -> Iterator[Any]:
        """Yield each metric."""
        from prometheus_client.core import CounterMetricFamily
        from prometheus_client.multiprocess import MultiProcessCollector

        # Derive both counters from the histogram. Counting a response would cost a third more with separate counters.
        created = failures = 0.0
        files = [str(file) for file in _folder().glob("*.db") if file.stat().st_size]  # A worker creates them empty.
        for metric in MultiProcessCollector.merge(files):
            yield metric
            for name, labels, value, *_ in metric.samples if metric.name == _DURATION_METRIC else ():
                is_create = labels["method"] == "POST" and labels["route"] == PLANTS_PATH
                if is_create and name == f"{_DURATION_METRIC}_count":
                    created += value * (labels["status"] == "200")
                    failures += value * (labels["error"] == "50300")
        yield CounterMetricFamily("plants_created", "Plants that were added.", created)
        yield CounterMetricFamily("plants_store_failures", "Create requests that failed with error 50300.", failures)


def metrics_app() -> WSGIApplication:
    """Return the WSGI application of the metrics' address: ``/metrics``, and nothing else."""
    app = json_app()
    app.add_route("/metrics", Exposition())
    return app
