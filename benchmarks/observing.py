"""What a line of the log costs, to a file, and a request's place in the metrics: CPU time, without a server.

    python -m benchmarks.observing [--rounds 15] [--requests 20000] [--seconds 3]

Printed are the medians of all rounds. The requests differ in their ids and times, as they do in life. After that the
service is loaded with 16 connections, in turn without both, with each and with both; this needs wrk on the PATH.
"""

import argparse
import itertools
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.hosted_stores import Figures, measure
from benchmarks.measure import TOKEN, median_ratio
from tests.audits.deployment import Service
from tests.support.process import free_port

ANSWERS = {
    "a success": ("200 OK", b'{"name": "Monstera", "tag": "tropical"}'),
    "a failure": ("400 Bad Request", b'{"error": 40003, "message": "The id 17 is in use."}'),
}


def microseconds(step: Callable[[dict[str, Any], Any, float], None], answer: Any, requests: int) -> float:
    environs = [
        {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/plants",
            "REMOTE_ADDR": "127.0.0.1",
            "plants.request_id": f"0123456789ab-{number:x}",
        }
        for number in range(requests)
    ]
    seconds = [number % 1000 / 1e6 for number in range(requests)]
    began = time.process_time()
    for environ, taken in zip(environs, seconds, strict=True):
        step(environ, answer, taken)
    return (time.process_time() - began) / requests * 1e6


METRICS = "PLANTS_METRICS_BIND=127.0.0.1:29107"
# The level of the log, and what is set for the metrics.
SERVICES = {
    "neither": ("critical", ""),
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
            service = Service(
                "memory:", command=f"env {environ} sh -c 'exec {serve} > {log.name}'", url=url, token=TOKEN
            )
            service.start()
            try:
                measure(service, 16, 1, 10**9)
                found[name].append(measure(service, 16, seconds, 2 * 10**9))
            finally:
                service.kill()
    for name, figures in found.items():
        rate = median_ratio([own.load for own in figures], to=[other.load for other in found["neither"]])
        cost = statistics.median(own.cpu / other.cpu for own, other in zip(figures, found["neither"], strict=True))
        own = statistics.median(own.cpu for own in figures)
        print(f"{name:12} {rate:5.2f} of the creates/s, {cost:5.2f} of the processor time, {own:6.1f} us a create")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    # The results go to where standard output was, and the lines of the log to a file in its place.
    with (
        os.fdopen(os.dup(1), "w") as results,
        tempfile.TemporaryFile() as log,
        tempfile.TemporaryDirectory() as folder,
    ):
        os.dup2(log.fileno(), 1)
        os.environ |= {"PROMETHEUS_MULTIPROC_DIR": folder, "PLANTS_TOKENS": "benchmark", "PLANTS_LOG_FORMAT": "json"}
        from plants.hosting.logs import AccessLog
        from plants.hosting.metrics import Metrics
        from plants.server.answer import make_answer

        log_lines = AccessLog(logging.INFO)

        def write_at_once(environ: dict[str, Any], answer: Any, seconds: float) -> None:
            log_lines.write(environ, answer, seconds)
            log_lines.flush()

        steps = {
            "a line of the log, alone": write_at_once,
            "a line of the log, of many": log_lines.write,
            "a request counted": Metrics().count_answer,
        }
        for (step, call), (answer, parts) in itertools.product(steps.items(), ANSWERS.items()):
            whole = make_answer(parts[0], [], parts[1], is_head=False)
            rounds = [microseconds(call, whole, options.requests) for _ in range(options.rounds)]
            print(f"{step}, {answer:10} {statistics.median(rounds):6.2f} us", file=results, flush=True)
        os.dup2(results.fileno(), 1)
    for name in ("PROMETHEUS_MULTIPROC_DIR", "PLANTS_TOKENS", "PLANTS_LOG_FORMAT"):
        del os.environ[name]
    measure_over_http(options.rounds, options.seconds)


if __name__ == "__main__":
    main()
