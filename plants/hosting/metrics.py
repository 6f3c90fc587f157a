"""The metrics of the service, for Prometheus: ``GET /metrics`` on a separate address, the sum of all workers.

The master creates a file in memory, which the workers inherit. Each worker counts in a row of its own, and the worker
that responds to a scrape adds up the rows. The labels are a fixed set, so a row has a fixed size, and its memory is
allocated before the first request. No two living workers have the same row. A worker continues the counts of an earlier
one that had its row, so the number of rows does not grow.
"""

import mmap
import os
import socket
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from itertools import accumulate, product
from typing import Any, Final

import falcon

import plants
from plants import server
from plants.app import OPERATIONS, PLANTS_PATH
from plants.errors import ErrorCode
from plants.falcon_defaults import App
from plants.server.request import Request, WSGIApplication
from plants.server.response import Response

# One socket, if PLANTS_METRICS_BIND is set and Gunicorn's master has opened it, and the descriptor of the rows.
listening_sockets: Final[list[socket.socket]] = []
_row_files: Final[list[int]] = []

METRICS_PATH: Final = "/metrics"
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BOUNDS = (*map(str, _BUCKETS), "+Inf")
_STORE_FAILURE = (int(ErrorCode.UNAVAILABLE), ErrorCode.UNAVAILABLE.message)  # The server's own 503 has other messages.

# The labels, a fixed set: anything else is "other". The server's own errors have the status times 100 as their code.
_OTHER = "other"
_RESPONDERS = [name for resource in OPERATIONS.values() for name in dir(resource) if name.startswith("on_")]
_METHODS = dict.fromkeys(["GET", "HEAD", *(name.removeprefix("on_").upper() for name in _RESPONDERS), _OTHER])
_ROUTES = (*OPERATIONS, _OTHER)
_STATUSES = [str(int(status)) for status in HTTPStatus if status >= HTTPStatus.OK]
_CODES = dict.fromkeys([*(str(int(code)) for code in ErrorCode), *(f"{status}00" for status in _STATUSES)])
_OUTCOMES = [(_OTHER, ""), *((status, "") for status in _STATUSES), *((code[:3], code) for code in _CODES)]

# The cells of a row, each a double: two gauges, a counter, and for each combination of labels the total duration and
# the number of requests in each bucket.
_CONNECTIONS, _WAITING, _STORE_FAILURES, _FIRST = range(4)
_WIDTH = 1 + len(_BOUNDS)
_CELLS = {
    (method, route, *outcome): _FIRST + number * _WIDTH
    for number, (method, route, outcome) in enumerate(product(_METHODS, _ROUTES, _OUTCOMES))
}
_CELL_BYTES = 8
_PAGE = mmap.ALLOCATIONGRANULARITY
ROW_BYTES = ((_FIRST + len(_CELLS) * _WIDTH) * _CELL_BYTES // _PAGE + 1) * _PAGE


def listen(address: tuple[str, int]) -> None:
    """Listen on the metrics' address. Gunicorn's master calls this once, before it starts workers.

    :raises OSError: it cannot listen on this address.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    listener = socket.create_server(address, family=family)
    listener.setblocking(False)
    listening_sockets.append(listener)
    _row_files.append(os.memfd_create("plants-metrics"))


class Metrics:
    """The metrics of one worker."""

    def __init__(self, slot: int) -> None:
        """Allocate the worker's row.

        :raises OSError: there is no memory for it.
        """
        # Without its pages, the row would be sparse, and a write could end the process with SIGBUS.
        os.posix_fallocate(_row_files[0], slot * ROW_BYTES, ROW_BYTES)
        self._cells = memoryview(mmap.mmap(_row_files[0], ROW_BYTES, offset=slot * ROW_BYTES)).cast("d")

    def count_response(self, request: Request, response: Response, error: tuple[int, str], seconds: float) -> None:
        """Count a response and its duration, unless the request was one for the metrics.

        :param error: the code and the message of the Error body, or zero and an empty string.
        """
        if request.listener.sock in listening_sockets:
            return
        method = request.method if request.method in _METHODS else _OTHER
        route = request.environ["plants.route"]
        route = route if route in _ROUTES else _OTHER
        cell = (
            _CELLS.get((method, route, response.status[:3], str(error[0] or ""))) or _CELLS[method, route, _OTHER, ""]
        )
        self._cells[cell] += seconds
        self._cells[cell + 1 + bisect_left(_BUCKETS, seconds)] += 1
        if error == _STORE_FAILURE and (method, route) == ("POST", PLANTS_PATH):
            self._cells[_STORE_FAILURES] += 1

    def set_gauges(self, connections: int, waiting: int) -> None:
        """Set the number of open connections, and of requests without a response."""
        self._cells[_CONNECTIONS] = connections
        self._cells[_WAITING] = waiting


def reset_gauges(slot: int) -> None:
    """Set the gauges of a worker that has ended to zero."""
    with suppress(OSError):  # If there was no memory for a row, there may still be none.
        os.pwrite(_row_files[0], bytes(2 * _CELL_BYTES), slot * ROW_BYTES)


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
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        totals = _sum_of_rows()
        labels = ("method", "route", "status", "error")
        description = "Time from a request's first byte to its response."
        durations = HistogramMetricFamily("http_server_request_duration_seconds", description, labels=labels)
        for values, cell in _CELLS.items():
            seconds, *counts = totals[cell : cell + _WIDTH]
            if any(counts):
                durations.add_metric(values, list(zip(_BOUNDS, accumulate(counts), strict=True)), seconds)
        yield durations
        cell = _CELLS["POST", PLANTS_PATH, "200", ""]
        yield CounterMetricFamily("plants_created", "Plants that were added.", sum(totals[cell + 1 : cell + _WIDTH]))
        description = "Create requests that failed because the store was unavailable."
        yield CounterMetricFamily("plants_store_failures", description, totals[_STORE_FAILURES])
        yield GaugeMetricFamily("plants_connections", "Open connections.", totals[_CONNECTIONS])
        description = "Requests that wait for the application or the store."
        yield GaugeMetricFamily("plants_requests_waiting", description, totals[_WAITING])
        build = GaugeMetricFamily("plants_build_info", "The version.", labels=("version", "server"))
        build.add_metric((plants.__version__, server.implementation()), 1)
        yield build


def _sum_of_rows() -> list[float]:
    count = os.fstat(_row_files[0]).st_size // ROW_BYTES
    data = memoryview(os.pread(_row_files[0], count * ROW_BYTES, 0)).cast("d")
    length = ROW_BYTES // _CELL_BYTES
    rows = [data[start : start + length] for start in range(0, len(data), length)]
    return [sum(cells) for cells in zip([0.0] * length, *rows, strict=True)]


def metrics_app() -> WSGIApplication:
    """Return the WSGI application of the metrics' address: ``/metrics``, and nothing else."""
    app = App()
    app.add_route(METRICS_PATH, Exposition())
    return app
