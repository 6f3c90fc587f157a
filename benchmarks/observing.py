"""Measure the CPU time of a log line (to a file) and of the metrics: without a server, then in a loaded service.

    python -m benchmarks.observing [--rounds 15] [--requests 20000] [--seconds 3]

The first part calls the log and the metrics with requests that differ in their ids and times, and prints the medians of
all rounds. In the second part, wrk loads four services over 16 connections: one without log and metrics, one with the
log, one with the metrics, and one with both. wrk must be on the PATH.
"""

import argparse
import itertools
import logging
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.hosted_stores import Figures, measure
from benchmarks.measure import TOKEN, median_ratio
from plants.server.request import Limits, Listener, Request
from plants.server.response import Response, make_response
from tests.audits.deployment import Deployment
from tests.support.process import free_port

RESPONSES: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "a success": ("200 OK", b'{"name": "Monstera", "tag": "tropical"}', {}),
    "a failure": (
        "400 Bad Request",
        b'{"error": 40003, "message": "The id 17 is in use."}',
        {"plants.error": (40003, "The id 17 is in use.")},
    ),
}
HEAD = "POST /plants HTTP/1.1\r\nHost: a\r\n\r\n"


def microseconds(
    step: Callable[[Request, Response, float], None], response: Response, environ: dict[str, Any], count: int
) -> float:
    requests = []
    with socket.socket() as sock:
        listener = Listener(sock, lambda *_: [])
    for number in range(count):
        base = {"REMOTE_ADDR": "127.0.0.1", "plants.request_id": f"0123456789ab-{number:x}"} | environ
        requests.append(Request(listener, base, 0))
        requests[-1].parse_head(HEAD, Limits(8190, 8190, 100, 0))
    durations = [number % 1000 / 1e6 for number in range(count)]
    began = time.process_time()
    for request, duration in zip(requests, durations, strict=True):
        step(request, response, duration)
    return (time.process_time() - began) / count * 1e6


METRICS = "PLANTS_METRICS_BIND=127.0.0.1:29107"
# The level of the log, and the assignment that enables the metrics.
SERVICES = {
    "no log, no metrics": ("critical", ""),
    "the log": ("info", ""),
    "the metrics": ("critical", METRICS),
    "both": ("info", METRICS),
}


def measure_over_http(rounds: int, seconds: int) -> None:
    found: dict[str, list[Figures]] = {name: [] for name in SERVICES}
    for _, (name, (level, environ)) in itertools.product(range(rounds), SERVICES.items()):
        with tempfile.NamedTemporaryFile() as log:
            url = f"http://127.0.0.1:{free_port()}"
            serve = f"{sys.executable} -m plants serve --bind {url.removeprefix('http://')} --log-level {level}"
            service = Deployment(
                "memory:", command=f"env {environ} sh -c 'exec {serve} > {log.name}'", url=url, token=TOKEN
            )
            service.start()
            try:
                measure(service, 16, 1, 10**9)
                found[name].append(measure(service, 16, seconds, 2 * 10**9))
            finally:
                service.kill()
    baseline = found["no log, no metrics"]
    for name, figures in found.items():
        rate = median_ratio([own.load for own in figures], to=[other.load for other in baseline])
        cost = statistics.median(own.cpu / other.cpu for own, other in zip(figures, baseline, strict=True))
        cpu = statistics.median(own.cpu for own in figures)
        ratios = f"{rate:5.2f} times the creates/s of the first row, {cost:5.2f} times its CPU per create"
        print(f"{name:18} {ratios}, {cpu:6.1f} us CPU per create")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    # The access log writes to descriptor 1. Redirect this descriptor to a file, and print the results to a copy of the
    # original descriptor.
    with (
        os.fdopen(os.dup(1), "w") as results,
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryDirectory() as folder,
    ):
        os.dup2(log.fileno(), 1)
        os.environ |= {"PROMETHEUS_MULTIPROC_DIR": folder, "PLANTS_TOKENS": "benchmark", "PLANTS_LOG_FORMAT": "json"}
        from plants.hosting.logs import AccessLog
        from plants.hosting.metrics import Metrics

        log_lines = AccessLog(logging.INFO)

        def write_at_once(request: Request, response: Response, seconds: float) -> None:
            log_lines.write(request, response, seconds)
            log_lines.flush()

        steps = {
            "a log line, flushed at once": write_at_once,
            "a log line, buffered": log_lines.write,
            "a request counted": Metrics(1).count_response,
        }
        for (step, call), (kind, (status, body, environ)) in itertools.product(steps.items(), RESPONSES.items()):
            response = make_response(status, [], body, is_head=False)
            rounds = [microseconds(call, response, environ, options.requests) for _ in range(options.rounds)]
            print(f"{step}, {kind:10} {statistics.median(rounds):6.2f} us", file=results, flush=True)
        os.dup2(results.fileno(), 1)
    for name in ("PROMETHEUS_MULTIPROC_DIR", "PLANTS_TOKENS", "PLANTS_LOG_FORMAT"):
        del os.environ[name]
    measure_over_http(options.rounds, options.seconds)


if __name__ == "__main__":
    main()
