"""The metrics of the service, for Prometheus: ``GET /metrics`` on an address of its own, the sum of all workers."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import falcon

from plants.framework import json_app
from plants.hosting.service import settings
from plants.server.answer import Answer
from plants.server.request import Environ

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
_METHODS = {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@cache
def listener() -> socket.socket | None:
    """Give the socket at which the metrics are asked for, if that is set; Gunicorn's master calls this first.

    :raises ImportError: the extra ``metrics`` is not installed.
    :raises OSError: there can be no listening at this address.
    """
    if settings.metrics_bind is None:
        return None
    if not find_spec("prometheus_client"):
        raise ImportError("PLANTS_METRICS_BIND needs a package that is not there: pip install 'plants[metrics]'")
    host, port = settings.metrics_bind
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # A master that takes over (USR2) listens beside the one that it takes over from.
    found = socket.create_server((host, port), family=family, reuse_port=True)
    # The client library keeps what the workers count in files there. It reads the name when it is imported, so only
    # workers import it; a master that takes over makes a new folder.
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # a new, private folder in it
    os.environ[_DIRECTORY] = tempfile.mkdtemp(prefix="plants-metrics-", dir=shared_memory)
    return found


def forget_worker(pid: int) -> None:
    """Take what a worker that has ended said of its connections out of the sum."""
    if listener():
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(pid)


def remove_files() -> None:
    """Remove the files of the metrics."""
    if listener():
        shutil.rmtree(os.environ[_DIRECTORY], ignore_errors=True)


class Metrics:
    """What one worker counts."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self._seconds = Histogram(
            "http_server_request_duration_seconds",
            "Time from a request's first byte to its answer.",
            ("method", "route", "status", "error"),
            buckets=_BUCKETS,
            registry=None,
        )
        self._created = Counter("plants_created", "Plants that were added.", registry=None)
        self._failures = Counter("plants_store_failures", "Requests that the store could not take.", registry=None)
        self._connections = Gauge("plants_connections", "Open connections.", registry=None, multiprocess_mode="livesum")
        self._waiting = Gauge(
            "plants_requests_waiting",
            "Requests that wait for the application or the store.",
            registry=None,
            multiprocess_mode="livesum",
        )
        build = Gauge(
            "plants_build_info", "The version.", ("version",), registry=None, multiprocess_mode="livemostrecent"
        )
        build.labels(version("plants")).set(1)
        self._by_labels: dict[tuple[str, str, str, str], Any] = {}

    def count_answer(self, environ: Environ, answer: Answer, seconds: float) -> None:
        """Count an answer, and the seconds that it took."""
        method = environ.get("REQUEST_METHOD", "other")
        route = "/plants" if environ.get("PATH_INFO") == "/plants" else "other"
        # An Error body starts with its code.
        error = answer.body[10:15].decode() if answer.body.startswith(b'{"error"') else ""
        labels = (method if method in _METHODS else "other", route, answer.status[:3], error)
        histogram = self._by_labels.get(labels)
        if not histogram:
            histogram = self._by_labels[labels] = self._seconds.labels(*labels)
        histogram.observe(seconds)
        if labels == ("POST", "/plants", "200", ""):
            self._created.inc()
        elif error == "50300":
            self._failures.inc()

    def gauge(self, connections: int, waiting: int) -> None:
        """Say how many connections there are, and how many requests wait."""
        self._connections.set(connections)
        self._waiting.set(waiting)


class Exposition:
    """``/metrics``: the sum over all workers, in the text format of Prometheus."""

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with the metrics."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        resp.data = generate_latest(registry)
        resp.content_type = CONTENT_TYPE_LATEST

    on_head = on_get


class WithMetrics:
    """A WSGI application that answers ``/metrics``, and nothing else, at the address of the metrics."""

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app
        self._metrics = json_app()
        self._metrics.add_route("/metrics", Exposition())
        host, port = settings.metrics_bind or ("", None)
        self._host = None if host in {"0.0.0.0", "::"} else host  # noqa: S104  # It is compared, not listened at.
        self._port = str(port)

    def __call__(self, environ: dict[str, Any], start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request (PEP 3333)."""
        is_for_metrics = environ["SERVER_PORT"] == self._port and self._host in {None, environ["SERVER_NAME"]}
        return (self._metrics if is_for_metrics else self._app)(environ, start_response)
