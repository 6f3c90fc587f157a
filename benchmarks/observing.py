"""Measure the CPU time of a log line (to a file) and of the metrics in a loaded service.

    python -m benchmarks.observing [--rounds 15] [--seconds 3]

Wrk loads four services over 16 connections: one without log and metrics, one with the
log, one with the metrics, and one with both. wrk must be on the PATH.
"""

import argparse
import itertools
import statistics
import sys
import tempfile

from benchmarks.hosted_stores import Figures, measure
from benchmarks.measure import TOKEN, median_ratio
from tests.audits.deployment import Deployment
from tests.support.process import free_port

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
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    measure_over_http(options.rounds, options.seconds)


if __name__ == "__main__":
    main()
