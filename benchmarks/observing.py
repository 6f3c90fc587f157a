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
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import hosting

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


METRICS = {"PLANTS_METRICS_BIND": "127.0.0.1:29107"}
# Whether there is a log, and what is set for the metrics.
SERVICES: dict[str, tuple[bool, dict[str, str]]] = {
    "neither": (False, {}),
    "the log": (True, {}),
    "the metrics": (False, METRICS),
    "both": (True, METRICS),
}
NO_LOG = "def post_worker_init(worker): worker._access_log = None"


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def configuration(content: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(content)
        file.flush()
        yield file.name


def measure_over_http(rounds: int, seconds: int) -> None:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SERVICES}
    for _ in range(rounds):
        for name, (has_log, environ) in SERVICES.items():
            with (
                tempfile.TemporaryFile() as log,
                configuration("" if has_log else NO_LOG) as conf,
                hosting.serving([f"--config={conf}"], log.fileno(), **environ) as server,
            ):
                hosting.load(server.port, 16, 1, 10**9)
                before = processor_seconds(server.worker)
                result = hosting.load(server.port, 16, seconds, 2 * 10**9)
                taken = processor_seconds(server.worker) - before
                assert not result["failures"]
            found[name].append((result["creates"] / result["seconds"], taken / result["creates"] * 1e6))
    for name, figures in found.items():
        pairs = list(zip(figures, found["neither"], strict=True))
        rate = statistics.median(own[0] / other[0] for own, other in pairs)
        cost = statistics.median(own[1] / other[1] for own, other in pairs)
        median = statistics.median(own[1] for own in figures)
        print(f"{name:12} {rate:5.2f} of the creates/s, {cost:5.2f} of the processor time, {median:6.1f} us a create")


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
