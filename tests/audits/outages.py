"""Stall, stop or fail over a store under load, and measure what clients and a probe see.

    python -m tests.audits.outages
    python -m tests.audits.outages --only file_held --only stopped

To fill a disk, the audit mounts a small one, which needs root. An outage passes if all of this is true:

- Each request gets a 200, or an Error 50300 with Retry-After, and no request takes 5 s. An id may be in use (40003) by
  an earlier attempt of the same client, or by a rival.
- Some client gets a 200 within 5 s after the outage.
- All conditions of tests.audits.kills hold.
- Each probe (/livez) gets a 200. The slowest one takes at most 0.1 s longer than the slowest one of an idle service,
  which shows the delay of the machine.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.audits.bystander import Response
from tests.audits.clients import Bystander
from tests.audits.deployment import Deployment
from tests.audits.kills import ID_IN_USE, adding_plants, audit_journal
from tests.audits.report import Verdict, run_checks, together, verdict_on
from tests.stores.test_sqlite import locked
from tests.support.postgres_server import PostgresServer, server_directory
from tests.support.process import wait_until

CLIENTS = 64
PAUSE_SECONDS = 0.02  # of a client between a response and its next request
RESPONSE_SECONDS = 5.0  # what the service promises
OUTAGE_SECONDS = 10.0
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


def table_locked(place: Place) -> AbstractContextManager[None]:
    return place.server.transaction("LOCK TABLE plants")


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


def file_held(place: Place) -> AbstractContextManager[None]:
    return locked(place.file)


@contextmanager
def disk_full(place: Place) -> Iterator[None]:
    filler = place.directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1):
            with suppress(OSError):
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


def run(name: str) -> Verdict:
    with server_directory() as directory, ExitStack() as stack:
        if name.endswith("disk_full"):
            stack.enter_context(small_disk(directory))
        place = Place(directory, PostgresServer(directory / "postgres"), PostgresServer(directory / "standby"))
        stack.callback(place.server.kill)
        stack.callback(place.standby.kill)
        url = prepare(name, place)
        with (
            Deployment(url, "--workers 2") as service,
            Deployment("memory:") as idle_service,
            Bystander(service.url) as probes,
            Bystander(idle_service.url) as idle_probes,
            adding_plants(service.url, clients=CLIENTS, pause=PAUSE_SECONDS) as journal,
        ):
            time.sleep(WARM_UP_SECONDS)
            with OUTAGES[name](place):
                time.sleep(OUTAGE_SECONDS)
            ended = time.monotonic()
            time.sleep(RESPONSE_SECONDS)
        findings = audit_journal(url, journal)
    findings.update(faults_of([response for _, response in journal], ended))
    return together(verdict_on(findings), probes.verdict(idle_probes.slowest + MAX_PROBE_DELAY_SECONDS))


def faults_of(responses: Sequence[Response], outage_ended: float) -> Iterator[str]:
    """Yield a finding for each response that is no 200, or late, and one if there is no 200 soon after the outage."""
    for response in responses:
        if response.ended - response.began > RESPONSE_SECONDS:
            yield "! responses too late"
        if response.error == 50300 and response.retry_after:
            yield "responses 50300"
        elif response.status != 200 and response.error != ID_IN_USE:
            yield f"! responses {response.error or response.status} {response.reason}"
    limit = outage_ended + RESPONSE_SECONDS
    if not any(response.status == 200 and outage_ended < response.began < limit for response in responses):
        yield f"! no 200 within {RESPONSE_SECONDS} s after the outage"


if __name__ == "__main__":
    sys.exit(run_checks(__doc__, {name: partial(run, name) for name in OUTAGES}))
