"""The metrics of the service, for Prometheus: ``GET /metrics`` on a separate address, the sum of all workers.

Gunicorn's master makes a table in shared memory before it forks. Each worker counts in a row of its own, and the worker
that responds to a scrape adds up the rows. The labels are a fixed set, so a row has a fixed size. A worker continues
the counts of an earlier one that had its row, so a service uses as many rows as it had workers at the same time.
"""

import mmap
import socket
from bisect import bisect_left
from collections.abc import Iterator
from http import HTTPStatus
from itertools import accumulate, product
from typing import Any

import falcon

import plants
from plants import server
from plants.app import OPERATIONS, PLANTS_PATH
from plants.errors import ErrorCode
from plants.falcon_defaults import App
from plants.server.exchange import Exchange
from plants.server.request import WSGIApplication
from plants.server.response import Response

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_BOUNDS = (*map(str, _BUCKETS), "+Inf")

# The labels, a fixed set: anything else is "other". The server's own errors have the status times 100 as their code.
_OTHER = "other"
_RESPONDERS = [name for resource in OPERATIONS.values() for name in dir(resource) if name.startswith("on_")]
_METHODS = dict.fromkeys(["GET", "HEAD", *(name.removeprefix("on_").upper() for name in _RESPONDERS), _OTHER])
_ROUTES = (*OPERATIONS, _OTHER)
_STATUSES = [str(int(status)) for status in HTTPStatus if status >= HTTPStatus.OK]
_CODES = dict.fromkeys([*(str(int(code)) for code in ErrorCode), *(f"{status}00" for status in _STATUSES)])
_OUTCOMES = [(_OTHER, ""), *((status, "") for status in _STATUSES), *((code[:3], code) for code in _CODES)]

# The cells of a row, each a double: in the first row the number of rows that are used, two gauges, a counter, and for
# each combination of labels, in the first row whether any worker has used it (adding up all cells would delay the event
# loop by 20 ms), the total duration, and the number of requests in each bucket.
_ROW_COUNT, _CONNECTIONS, _WAITING, _STORE_FAILURES, _FIRST = range(5)
_WIDTH = 2 + len(_BOUNDS)
_CELLS = {
    (method, route, *outcome): _FIRST + number * _WIDTH
    for number, (method, route, outcome) in enumerate(product(_METHODS, _ROUTES, _OUTCOMES))
}
_ROW_CELLS = _FIRST + len(_CELLS) * _WIDTH
# The table cannot grow after a fork. Unused rows take no memory. Only if more workers live at the same time, also while
# a reload replaces them, do two of them share a row, where they may lose a count.
_MAX_ROWS = 256


class Metrics:
    """The metrics' address, the table, and the row in which this process counts."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Listen on the address. Gunicorn's master calls this once, before it starts workers."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.listener = socket.create_server(address, family=family)
        table = memoryview(mmap.mmap(-1, 8 * _MAX_ROWS * _ROW_CELLS)).cast("d")
        self._rows = [table[start : start + _ROW_CELLS] for start in range(0, len(table), _ROW_CELLS)]
        self._workers = [0] * _MAX_ROWS  # the number of living workers of each row

    def add_worker(self) -> int:
        """Return the row of the worker that Gunicorn's master is about to fork, and count in this row from now on."""
        number = self._workers.index(min(self._workers))
        self._workers[number] += 1
        self._rows[0][_ROW_COUNT] = max(self._rows[0][_ROW_COUNT], number + 1)
        self._row = self._rows[number]
        return number

    def remove_worker(self, number: int) -> None:
        """Remove the gauges of a worker that has ended, in Gunicorn's master."""
        self._workers[number] -= 1
        self._rows[number][_CONNECTIONS] = self._rows[number][_WAITING] = 0

    def count_response(self, request: Exchange, response: Response, code: int, seconds: float) -> None:
        """Count a response, its duration, and the code of its error (or 0), unless the request was for the metrics."""
        if request.listener.sock is self.listener:
            return
        method = request.method if request.method in _METHODS else _OTHER
        route = request.route if request.route in _ROUTES else _OTHER
        outcome = (str(response.status), str(code or ""))
        cell = _CELLS.get((method, route, *outcome)) or _CELLS[method, route, _OTHER, ""]
        self._rows[0][cell] = True
        self._row[cell + 1] += seconds
        self._row[cell + 2 + bisect_left(_BUCKETS, seconds)] += 1
        # The server's own 503 is another response, and that of middleware has no error.
        is_of_store = code == ErrorCode.UNAVAILABLE and response is request.response and response.error
        if is_of_store and (method, route) == ("POST", PLANTS_PATH):
            self._row[_STORE_FAILURES] += 1

    def set_gauges(self, connections: int, waiting: int) -> None:
        """Set the number of open connections, and of requests without a response."""
        self._row[_CONNECTIONS] = connections
        self._row[_WAITING] = waiting

    def app(self) -> WSGIApplication:
        """Return the WSGI application of the metrics' address: ``/metrics``, and nothing else."""
        app = App()
        app.add_route("/metrics", self)
        return app

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Respond with the sum of the metrics of all workers, in Prometheus' format."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        resp.data = generate_latest(self)
        resp.content_type = CONTENT_TYPE_LATEST

    on_head = on_get

    def collect(self) -> Iterator[Any]:
        """Yield each metric."""
        from prometheus_client import core

        rows = self._rows[: int(self._rows[0][_ROW_COUNT])]

        def totals(first: int, count: int = 1) -> list[float]:
            return [sum(cells) for cells in zip(*(row[first : first + count] for row in rows), strict=True)]

        labels = ("method", "route", "status", "error")
        description = "Time from a request's first byte to its response."
        durations = core.HistogramMetricFamily("http_server_request_duration_seconds", description, labels=labels)
        for values, cell in _CELLS.items():
            if rows[0][cell]:
                seconds, *counts = totals(cell + 1, _WIDTH - 1)
                durations.add_metric(values, list(zip(_BOUNDS, accumulate(counts), strict=True)), seconds)
        yield durations
        created = sum(totals(_CELLS["POST", PLANTS_PATH, "200", ""] + 2, len(_BOUNDS)))
        yield core.CounterMetricFamily("plants_created", "Plants that were added.", created)
        failures = sum(totals(_STORE_FAILURES))
        yield core.CounterMetricFamily("plants_store_failures", "Creates while the store was unavailable.", failures)
        yield core.GaugeMetricFamily("plants_connections", "Open connections.", sum(totals(_CONNECTIONS)))
        yield core.GaugeMetricFamily("plants_requests_waiting", "Requests without a response.", sum(totals(_WAITING)))
        build = core.GaugeMetricFamily("plants_build_info", "The version.", labels=("version", "server"))
        build.add_metric((plants.__version__, server.implementation()), 1)
        yield build
