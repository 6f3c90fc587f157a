"""Creates a second over HTTP for each store, hosted by the packaged configuration, with 64 connections.

The rounds are interleaved: memory, SQLite, PostgreSQL, and psycopg alone with as many connections and no HTTP. Needs
wrk (https://github.com/wg/wrk) on the PATH.
"""

import argparse
import itertools
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from benchmarks.hosting import TOKEN, load
from tests.support.deployment import Service
from tests.support.postgres_server import PostgresServer

INSERT = b"INSERT INTO plants (id, name, tag) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING RETURNING id"

Measure = Callable[[float], float]


def over_http(service: Service, connections: int, runs: Iterator[int], seconds: float) -> float:
    """Keep as many requests under way as there are connections; give the 200 a second."""
    result = load(urlsplit(service.url).port or 80, connections, seconds, 10**9 + 50_000_000 * next(runs))
    assert result["failures"] == 0
    return result["creates"] / result["seconds"]


def psycopg_alone(url: str, connections: int, ids: Iterator[int], seconds: float) -> float:
    def add(connection: psycopg.Connection) -> int:
        added = 0
        together.wait()
        while time.perf_counter() < until:
            plant_id = next(ids)
            connection.execute(INSERT, (plant_id, f"plant {plant_id}", "tree")).fetchone()
            added += 1
        return added

    together = threading.Barrier(connections)
    with ExitStack() as stack:
        opened = [stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(connections)]
        began = time.perf_counter()
        until = began + seconds
        with ThreadPoolExecutor(connections) as threads:
            return sum(threads.map(add, opened)) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1, help="of the stores that keep (%(default)s)")
    parser.add_argument("--serve", default="", help="options for Gunicorn")
    options = parser.parse_args()
    ids, runs = itertools.count(), itertools.count()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o755)
        server = PostgresServer(directory / "postgres")
        server.create()
        stack.callback(server.kill)
        server.start()
        urls = {"memory": "memory:", "SQLite": f"sqlite:///{directory}/plants.db", "PostgreSQL": server.url}
        measures: dict[str, Measure] = {}
        for store, url in urls.items():
            service = Service(
                url, token=TOKEN, options=f"--workers {1 if store == 'memory' else options.workers} {options.serve}"
            )
            stack.callback(service.kill)
            service.start()
            measures[store] = partial(over_http, service, options.connections, runs)
        measures["psycopg alone"] = partial(psycopg_alone, server.url, options.connections, ids)
        found: dict[str, list[float]] = {name: [] for name in measures}
        for _, (who, measure) in itertools.product(range(options.rounds), measures.items()):
            found[who].append(measure(options.seconds))
    print(f"{options.connections} connections, medians of {options.rounds} rounds of {options.seconds} s:")
    for name, rates in found.items():
        print(f"{name:14} {statistics.median(rates):8,.0f} creates/s, {min(rates):,.0f} to {max(rates):,.0f}")
    for one, other in (("SQLite", "memory"), ("PostgreSQL", "psycopg alone")):
        ratio = statistics.median(a / b for a, b in zip(found[one], found[other], strict=True))
        print(f"{one} / {other}: {ratio:.2f}")


if __name__ == "__main__":
    main()
