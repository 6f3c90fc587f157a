"""Stall, stop or fail over a store under load, and measure what clients and a probe see.

    python -m tests.audits.outages
    python -m tests.audits.outages --only file_held --seconds 30

A second, idle service runs beside the first and gets the same probes; its slowest response is the machine's own delay.
To fill a disk, the audit mounts a small one, which needs root. An outage passes if all of this is true:

- Each request gets a 200, or an Error 50300 with Retry-After, and no request takes 5 s. An id may be in use (40003) by
  an earlier attempt of the same client.
- Some client gets a 200 within 5 s after the outage.
- All conditions of tests.audits.kills hold.
- Each probe (/livez) gets a 200. The slowest one takes at most 0.1 s longer than the slowest one of the idle service.

The last scenario is no outage: in ``race``, 64 clients add the same 1,000 ids to a service with two workers.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from plants import open_store
from tests.audits.clients import Bystander
from tests.audits.deployment import ID_IN_USE, Deployment
from tests.audits.kills import JournaledLoad, audit_load, audit_race, compete
from tests.audits.report import Verdict, add_only_option, audit_parser, report, report_findings
from tests.support.postgres_server import PostgresServer
from tests.support.process import wait_until

CLIENTS = 64
PAUSE_SECONDS = 0.02  # of a client between a response and its next request
RESPONSE_SECONDS = 5.0  # what the service promises
MAX_PROBE_DELAY_SECONDS = 0.1
WARM_UP_SECONDS = 3.0
DISK_MIB = 100  # An empty PostgreSQL fits, with some space left.


class Place(NamedTuple):
    """The location of the store: ``directory`` has the SQLite file and the folders of the PostgreSQL servers."""

    directory: Path
    server: PostgresServer
    standby: PostgresServer

    @property
    def file(self) -> Path:
        return self.directory / "plants.db"


@contextmanager
def stopped(place: Place) -> Iterator[None]:
    """Shut the database down, and start it again."""
    place.server.stop()
    yield
    place.server.start()


@contextmanager
def failed_over(place: Place) -> Iterator[None]:
    """Kill the primary, and promote its synchronous standby."""
    place.server.kill()
    yield
    place.standby.execute("SELECT pg_promote()")


@contextmanager
def table_locked(place: Place) -> Iterator[None]:
    import psycopg

    with psycopg.connect(place.server.url) as other:
        other.execute("LOCK TABLE plants")
        yield


@contextmanager
def server_suspended(place: Place) -> Iterator[None]:
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


Outage = Callable[[Place], AbstractContextManager[None]]
# The outages of PostgreSQL, and those of SQLite, whose names begin with "file".
OUTAGES: dict[str, Outage] = {
    "stopped": stopped,
    "failed_over": failed_over,
    "table_locked": table_locked,
    "server_suspended": server_suspended,
    "disk_full": disk_full,
    "file_held": file_held,
    "file_disk_full": disk_full,
}


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "tmpfs", directory], check=True)
    try:
        yield
    finally:
        # Killed processes take a moment to end, and until then, the disk is busy.
        wait_until(lambda: subprocess.run(["umount", directory], check=False).returncode == 0)


def prepare(name: str, place: Place) -> str:
    """Start what the outage of this name needs, and return the URL of the store."""
    if name.startswith("file"):
        return f"sqlite:///{place.file}"
    place.server.create()
    if name != "failed_over":
        place.server.start()
        return place.server.url
    place.standby.follow(place.server)
    place.server.start(synchronous_standby_names="standby")
    place.standby.start()
    return f"postgresql://postgres@127.0.0.1:{place.server.port},127.0.0.1:{place.standby.port}/postgres"


def run(name: str, place: Place, seconds: float) -> Verdict:
    url = prepare(name, place)
    with (
        Deployment(url, "--workers 2") as service,
        Deployment("memory:") as idle_service,
        Bystander(service, probe=True, pause=PAUSE_SECONDS) as probes,
        Bystander(idle_service, probe=True, pause=PAUSE_SECONDS) as idle_probes,
        JournaledLoad(service, CLIENTS, PAUSE_SECONDS) as load,
    ):
        time.sleep(WARM_UP_SECONDS)
        began = time.monotonic()
        with OUTAGES[name](place):
            time.sleep(seconds)
        ended = time.monotonic()
        time.sleep(RESPONSE_SECONDS)
    responses = load.responses()
    unexpected = Counter(
        response.error or response.status
        for response in responses
        if response.status != 200
        and response.error != ID_IN_USE
        and not (response.error == 50300 and response.retry_after)
    )
    meanwhile = Counter(response.status for response in responses if began < response.began and response.ended < ended)
    recovered_at = min(
        (response.ended for response in responses if response.status == 200 and response.began > ended),
        default=float("inf"),
    )
    slowest = max(response.ended - response.began for response in responses)
    holds = (
        audit_load(url, load)
        and not unexpected
        and slowest < RESPONSE_SECONDS
        and recovered_at < ended + RESPONSE_SECONDS
        and probes.verdict(MAX_PROBE_DELAY_SECONDS + idle_probes.slowest).holds
    )
    return Verdict(
        holds,
        f"{dict(meanwhile)} in {ended - began:.0f} s, first 200 after {recovered_at - ended:.2f} s, "
        f"other failures {dict(unexpected)}\n      slowest create {slowest:.2f} s, "
        f"/livez {probes.slowest * 1000:.0f} ms, of an idle service {idle_probes.slowest * 1000:.0f} ms",
    )


def race(place: Place) -> Verdict:
    place.server.create()
    place.server.start()
    holds = []
    for url in (f"sqlite:///{place.file}", place.server.url):
        with Deployment(url, "--workers 2") as service, closing(open_store(url)) as store:
            holds.append(report_findings(audit_race(store, compete([service], clients=64, ids=1000))))
    return Verdict(all(holds), "1,000 ids on each store")


def main() -> int:
    parser = audit_parser(__doc__)
    add_only_option(parser, [*OUTAGES, "race"])
    parser.add_argument("--seconds", type=float, default=10, help="the duration of an outage, in seconds (%(default)s)")
    options = parser.parse_args()
    holds = []
    for name in options.only or [*OUTAGES, "race"]:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            directory = Path(folder)
            directory.chmod(0o755)
            if name.endswith("disk_full"):
                stack.enter_context(small_disk(directory))
            place = Place(directory, PostgresServer(directory / "postgres"), PostgresServer(directory / "standby"))
            stack.callback(place.server.kill)
            stack.callback(place.standby.kill)
            verdict = race(place) if name == "race" else run(name, place, options.seconds)
            holds.append(report(name, verdict))
    return int(not all(holds))


if __name__ == "__main__":
    sys.exit(main())
