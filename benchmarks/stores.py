"""Measure each store without HTTP: its speed, its memory per plant, and the highest CPU time of a single add.

python -m benchmarks.stores speed       creates/s and p99 latency at 1, 4, 16 and 64 threads, rounds interleaved
python -m benchmarks.stores million     add one million plants with distinct short names to each store
"""

import argparse
import gc
import itertools
import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from plants import Plant, PlantStore, open_store
from tests.support.postgres_server import running_postgres, server_directory
from tests.support.process import resident_bytes


@contextmanager
def stores() -> Iterator[dict[str, PlantStore]]:
    with server_directory() as directory, running_postgres(directory) as server:
        urls = {"memory": "memory:", "SQLite": f"sqlite:///{directory}/plants.db", "PostgreSQL": server.url}
        opened = {name: open_store(url) for name, url in urls.items()}
        try:
            yield opened
        finally:
            for store in opened.values():
                store.close()


def speed(rounds: int, seconds: float) -> None:
    numbers = [1, 4, 16, 64]
    ids = itertools.count()
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with stores() as opened:
        for _, threads, (name, store) in itertools.product(range(rounds), numbers, opened.items()):
            found.setdefault((name, threads), []).append(add_for(store, threads, seconds, ids))
    print(f"creates/s and p99 in ms at {numbers} threads, medians of {rounds} rounds of {seconds} s")
    for name in opened:
        medians = [map(statistics.median, zip(*found[name, threads], strict=True)) for threads in numbers]
        print(f"{name:10}", *(f"{rate:9,.0f} {wait * 1000:6.2f}" for rate, wait in medians))


def add_for(store: PlantStore, threads: int, seconds: float, ids: Iterator[int]) -> tuple[float, float]:
    """Return creates per second, and the 99th percentile of the latency."""

    def add(_: int) -> list[float]:
        waits = []
        together.wait()
        while (began := time.perf_counter()) < until:
            plant_id = next(ids)
            store.add(Plant(plant_id, f"plant {plant_id}", "tree"))
            waits.append(time.perf_counter() - began)
        return waits

    together = threading.Barrier(threads)
    began = time.perf_counter()
    until = began + seconds
    with ThreadPoolExecutor(threads) as executor:
        waits = [wait for part in executor.map(add, range(threads)) for wait in part]
    return len(waits) / (time.perf_counter() - began), statistics.quantiles(waits, n=100)[98]


def million(plants: int) -> None:
    print(f"{plants:,} plants; seconds for each tenth, and the speed of the last tenth divided by that of the first")
    with stores() as opened:
        for name, store in opened.items():
            threads = 1 if name == "memory" else 16
            tenths = []
            longest = 0.0
            gc.collect()
            before = resident_bytes(os.getpid())
            for tenth in range(10):
                ids = range(tenth * plants // 10, (tenth + 1) * plants // 10)
                began = time.perf_counter()
                longest = max(longest, add_all(store, threads, ids))
                tenths.append(time.perf_counter() - began)
            grown = (resident_bytes(os.getpid()) - before) / plants
            print(f"{name:10}", *(f"{seconds:.2f}" for seconds in tenths), f"{tenths[0] / tenths[-1]:.2f}")
            print(f"{name:10} {grown:.0f} bytes a plant in this process; highest CPU of an add {longest * 1e3:.1f} ms")


def add_all(store: PlantStore, threads: int, ids: range) -> float:
    """Return the highest CPU time of a single add, in seconds; its wall time would include other processes."""

    def add(first: int) -> float:
        longest = 0.0
        for plant_id in ids[first::threads]:
            plant = Plant(plant_id, f"plant {plant_id}")
            began = time.thread_time()
            store.add(plant)
            longest = max(longest, time.thread_time() - began)
        return longest

    with ThreadPoolExecutor(threads) as executor:
        return max(executor.map(add, range(threads)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "million"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--plants", type=int, default=1_000_000)
    options = parser.parse_args()
    if options.what == "speed":
        speed(options.rounds, options.seconds)
    else:
        million(options.plants)


if __name__ == "__main__":
    main()
