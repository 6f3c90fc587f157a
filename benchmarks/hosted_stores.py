"""Measure each store over HTTP with the packaged configuration: creates per second, and the CPU of the workers.

    python -m benchmarks.hosted_stores [--rounds 5] [--seconds 3] [--connections 16 64] [--workers 1]

The rounds are interleaved: each measures every store in turn, with each number of connections.
"""

import argparse
import itertools
import statistics
from collections import defaultdict
from contextlib import ExitStack
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.measure import TOKEN, Load, cpu_seconds, load, measured_with, median, median_ratio
from tests.audits.deployment import Deployment
from tests.support.postgres_server import running_postgres, server_directory


class Figures(NamedTuple):
    """A load, and the CPU of the workers in microseconds per create."""

    load: Load
    cpu: float


def measure(service: Deployment, connections: int, seconds: int, first_id: int) -> Figures:
    before = sum(map(cpu_seconds, service.workers()))
    seen = load(urlsplit(service.url).port or 80, connections, seconds, first_id)
    used = sum(map(cpu_seconds, service.workers())) - before
    return Figures(seen, used / (seen.rate * seconds) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--workers", type=int, default=1, help="for SQLite and PostgreSQL (default: %(default)s)")
    parser.add_argument("--gunicorn-options", default="", help="for the services with SQLite and PostgreSQL")
    args = parser.parse_args()
    first_ids = itertools.count(10**9, 2 * 10**7)
    found: dict[tuple[str, int], list[Figures]] = defaultdict(list)
    with server_directory() as directory, running_postgres(directory) as server, ExitStack() as stack:
        urls = {"memory": "memory:", "SQLite": f"sqlite:///{directory}/plants.db", "PostgreSQL": server.url}
        services = {}
        for store, url in urls.items():
            options = "" if store == "memory" else f"--workers {args.workers} {args.gunicorn_options}"
            services[store] = Deployment(url, options, token=TOKEN)
            stack.callback(services[store].kill)
            services[store].start()
        for _, count, store in itertools.product(range(args.rounds), args.connections, urls):
            found[store, count].append(measure(services[store], count, args.seconds, next(first_ids)))
    print(f"{measured_with()}; medians of {args.rounds} rounds; CPU in microseconds per create\n")
    print(
        "| connections | store | creates/s | ratio to `memory:` | p99 ms | CPU | CPU above `memory:` | failures |\n"
        + "|---" * 8
        + "|"
    )
    for count, store in itertools.product(args.connections, urls):
        figures, memory = found[store, count], found["memory", count]
        rate, p99, failures, *_ = median(f.load for f in figures)
        ratio = median_ratio([f.load for f in figures], to=[m.load for m in memory])
        cpu = statistics.median(f.cpu for f in figures)
        beyond = statistics.median(f.cpu - m.cpu for f, m in zip(figures, memory, strict=True))
        print(f"| {count} | {store} | {rate:.0f} | {ratio:.2f} | {p99:.1f} | {cpu:.0f} | {beyond:.0f} | {failures} |")


if __name__ == "__main__":
    main()
