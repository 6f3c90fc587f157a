"""Stall a store under 256 clients, and measure how long they and a probe wait for a response.

    python -m tests.audits.stalls
    python -m tests.audits.stalls --only sqlite:file_held --seconds 30

A stall locks the table in PostgreSQL, locks the SQLite file, suspends PostgreSQL's processes, or fills the disk. A
second, idle service runs beside the first and gets the same probes; its slowest response is the machine's own delay. To
fill a disk, the audit mounts a small one, which needs root. A stall passes if all of this is true:

- Each request during the stall gets a 200 or 503, and no request takes 5 s.
- Some client gets a 200 within 5 s after the stall.
- No acknowledged plant is lost.
- Each probe gets a 200. The slowest probe takes at most 0.1 s longer than the slowest one of the idle service.
"""

import contextlib
import heapq
import itertools
import os
import random
import selectors
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from plants import open_store
from tests.audits.bystander import plant
from tests.audits.deployment import TOKEN, Client, Deployment, read_plant
from tests.audits.outages import running
from tests.audits.report import Verdict, add_only_option, audit_parser, report
from tests.support.postgres_server import PostgresServer

RESPONSE_SECONDS = 5.0  # what the service promises
MAX_PROBE_DELAY_SECONDS = 0.1
WARM_UP_SECONDS = 3.0
DISK_MIB = 100  # An empty PostgreSQL fits, with some space left.
_REQUEST = (
    b"POST /plants HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
)


class Outcome(NamedTuple):
    """The result of a request, and its times. If no response arrived, the status is 0."""

    plant_id: int
    status: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def crowd(netloc: str, clients: int, pause: float, seconds: float) -> list[Outcome]:
    """Create plants on one connection per client; each client pauses between a response and its next request.

    It runs in one process at the lowest priority, so that it does not slow down the service.
    """
    os.nice(19)
    until = time.monotonic() + seconds
    ids = itertools.count(random.getrandbits(62))
    outcomes: list[Outcome] = []
    in_flight: dict[socket.socket, tuple[int, float]] = {}
    idle: list[tuple[float, int, socket.socket]] = []  # with the time of the next request
    selector = selectors.DefaultSelector()

    def connect() -> None:
        host, _, port = netloc.rpartition(":")
        sock = socket.create_connection((host, int(port)))
        selector.register(sock, selectors.EVENT_READ, sock)
        heapq.heappush(idle, (time.monotonic() + random.random() * pause, id(sock), sock))

    for _ in range(clients):
        connect()
    while (now := time.monotonic()) < until or (in_flight and now < until + 2 * RESPONSE_SECONDS):
        while idle and idle[0][0] < now < until:
            sock = heapq.heappop(idle)[2]
            if sock.fileno() < 0:  # The service has closed it.
                continue
            in_flight[sock] = next(ids), time.monotonic()
            body = plant(in_flight[sock][0])
            with contextlib.suppress(OSError):  # After a failure, recv() below gets no data, so the status is 0.
                sock.sendall(_REQUEST % (TOKEN.encode(), len(body), body))
        for key, _ in selector.select(0.01):
            sock = key.data
            data = b""
            with contextlib.suppress(OSError):
                data = sock.recv(65536)  # A response is small, and sent whole.
            if sock in in_flight:
                plant_id, began = in_flight.pop(sock)
                outcomes.append(Outcome(plant_id, int(data[9:12] or 0), began, time.monotonic()))
            if data:
                heapq.heappush(idle, (time.monotonic() + pause, id(sock), sock))
            else:
                selector.unregister(sock)
                sock.close()
                connect()
    return outcomes + [Outcome(plant_id, 0, began, time.monotonic()) for plant_id, began in in_flight.values()]


def probe(urls: list[str], seconds: float) -> list[list[Outcome]]:
    """Request /livez of each service at most 50 times a second, each on a new connection, as an orchestrator does."""
    clients = [Client(url, TOKEN) for url in urls]
    outcomes: list[list[Outcome]] = [[] for _ in urls]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for client, responses in zip(clients, outcomes, strict=True):
            response = client.request("GET", "/livez")
            responses.append(Outcome(0, response.status, response.began, response.ended))
            client.close()
        time.sleep(0.02)
    return outcomes


def waits(outcomes: list[Outcome]) -> str:
    seconds = [response.seconds for response in outcomes]
    p99 = statistics.quantiles(seconds, n=100)[98]
    return f"slowest {max(seconds) * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms"


def run_stall(stall: AbstractContextManager[None], url: str, seconds: float, clients: int, pause: float) -> Verdict:
    duration = WARM_UP_SECONDS + seconds + 3
    with (
        running(Deployment(url)) as service,
        running(Deployment("memory:")) as idle_service,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool,
    ):
        probed = pool.submit(probe, [service.url, idle_service.url], duration)
        crowded = pool.submit(crowd, urlsplit(service.url).netloc, clients, pause, duration)
        time.sleep(WARM_UP_SECONDS)
        began = time.monotonic()
        with stall:
            time.sleep(seconds)
        ended = time.monotonic()
        outcomes = crowded.result()
        live, idle = ([response for response in part if response.began > began] for part in probed.result())
    with closing(open_store(url)) as store:
        lost = [
            response.plant_id
            for response in outcomes
            if response.status == 200 and not read_plant(store, response.plant_id)
        ]
    during_stall = [response for response in outcomes if response.ended > began and response.began < ended]
    statuses = dict(Counter(response.status for response in during_stall))
    recovered_at = min(
        (response.ended for response in outcomes if response.status == 200 and response.began > ended),
        default=float("inf"),
    )
    slowest_probe, slowest_idle = (max(response.seconds for response in part) for part in (live, idle))
    holds = (
        not lost
        and statuses.keys() <= {200, 503}
        and max(response.seconds for response in outcomes) < RESPONSE_SECONDS
        and recovered_at < ended + RESPONSE_SECONDS
        and {response.status for response in live} == {200}
        and slowest_probe < MAX_PROBE_DELAY_SECONDS + slowest_idle
    )
    acknowledged = sum(response.status == 200 for response in outcomes)
    return Verdict(
        holds,
        f"{statuses} in {seconds:.0f} s, first 200 after {recovered_at - ended:.2f} s\n"
        f"      creates: {waits(during_stall)}; acknowledged {acknowledged:,}, lost {len(lost)}\n"
        f"      /livez: {waits(live)}; of an idle service: {waits(idle)}",
    )


class Place(NamedTuple):
    """The location of the store: ``directory`` has the SQLite file and the folder of the PostgreSQL server."""

    directory: Path
    server: PostgresServer

    @property
    def file(self) -> Path:
        return self.directory / "plants.db"


@contextmanager
def table_locked(place: Place) -> Iterator[None]:
    import psycopg

    with psycopg.connect(place.server.url) as other:
        other.execute("LOCK TABLE plants")
        yield


@contextmanager
def server_stopped(place: Place) -> Iterator[None]:
    pids = place.server.processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def file_held(place: Place) -> Iterator[None]:
    with closing(sqlite3.connect(place.file, isolation_level=None, timeout=10)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def disk_full(place: Place) -> Iterator[None]:
    filler = place.directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
    yield
    filler.unlink()


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "tmpfs", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


Stall = Callable[[Place], AbstractContextManager[None]]
POSTGRESQL_STALLS: tuple[Stall, ...] = (table_locked, server_stopped, disk_full)
SQLITE_STALLS: tuple[Stall, ...] = (file_held, disk_full)
STALLS = {
    f"{kind}:{stall.__name__}": (kind, stall)
    for kind, stalls in {"postgresql": POSTGRESQL_STALLS, "sqlite": SQLITE_STALLS}.items()
    for stall in stalls
}


def main() -> int:
    parser = audit_parser(__doc__)
    add_only_option(parser, STALLS)
    parser.add_argument("--seconds", type=float, default=10, help="the duration of a stall, in seconds (%(default)s)")
    parser.add_argument("--clients", type=int, default=256, help="(%(default)s)")
    parser.add_argument(
        "--pause",
        type=float,
        default=0.1,
        help="the pause of a client between a response and its next request, in seconds (%(default)s)",
    )
    options = parser.parse_args()
    holds = []
    for name in options.only or STALLS:
        kind, stall = STALLS[name]
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            directory = Path(folder)
            directory.chmod(0o755)
            if stall is disk_full:
                stack.enter_context(small_disk(directory))
            place = Place(directory, PostgresServer(directory / "postgres"))
            stack.callback(place.server.kill)
            if kind == "postgresql":
                place.server.create()
                place.server.start()
            url = place.server.url if kind == "postgresql" else f"sqlite:///{place.file}"
            verdict = run_stall(stall(place), url, options.seconds, options.clients, options.pause)
            holds.append(report(name, verdict))
    return int(not all(holds))


if __name__ == "__main__":
    sys.exit(main())
