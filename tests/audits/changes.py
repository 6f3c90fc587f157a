"""Change a service under load, as operators do, and check that no client notices.

    python -m tests.audits.changes
    python -m tests.audits.changes --times 100 --only hup --only usr2

Clients create plants, and retry a create only if its connection was closed without a response. A change passes if each
request got its response in time, and if every acknowledged plant is in the SQLite store afterwards.
"""

import itertools
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Self

from plants import Plant, open_store
from tests.audits.bystander import exchange, http_client, new_id, plant
from tests.audits.clients import Target, running_service
from tests.audits.deployment import ID_IN_USE, read_plant
from tests.audits.report import Verdict, add_only_option, audit_parser, report
from tests.support.process import comes_true, resident_bytes, wait_for_workers

WORKERS = 2
# The service promises a response within RESPONSE_SECONDS. It may close an idle connection just as a client sends a
# request, but a close more than CLOSE_SECONDS after the request is a fault of the service.
RESPONSE_SECONDS = 5.0
CLOSE_SECONDS = 0.5
CLOSED = ("RemoteDisconnected", "ConnectionResetError", "BrokenPipeError")


class Load:
    """Clients that create plants one after the other until the ``with`` block ends. ``faults`` has what they noticed.

    If the service refuses a connection, that is a fault. With ``service_may_stop``, the load ends instead.
    """

    def __init__(self, service: Target, clients: int = 8, *, service_may_stop: bool = False) -> None:
        self.service = service
        self.faults: list[str] = []
        self.slowest = 0.0
        self._acknowledged: list[int] = []
        self._unanswered: list[int] = []
        self._service_may_stop = service_may_stop
        self._ids = itertools.count(new_id())
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for_creates(self, number: int = 100) -> None:
        """Wait until ``number`` more plants are acknowledged."""
        number += len(self._acknowledged)
        comes_true(lambda: len(self._acknowledged) >= number or self._over.is_set())

    def verdict(self, database: str, *more_faults: str) -> Verdict:
        """Return what the clients noticed; also check what the database has stored."""
        with closing(open_store(database)) as store:
            lost = [found for found in self._acknowledged if read_plant(store, found) != Plant(found, f"plant {found}")]
            unanswered = [found for found in self._unanswered if read_plant(store, found)]
        faults = [*self.faults, *more_faults]
        faults += [f"{len(lost)} acknowledged plants are lost"] * bool(lost)
        faults += [f"{len(unanswered)} plants were stored, but got no response"] * bool(unanswered)
        summary = f"{len(self._acknowledged):,} creates, slowest {self.slowest * 1000:.0f} ms"
        return Verdict(not faults, ", ".join([summary, *faults[:5]]))

    def _work(self) -> None:
        while not self._over.is_set():
            target = self.service
            with closing(http_client("http", target.host, target.port)) as client:
                while target is self.service and not self._over.wait(0.01):
                    self._create(client, target.token, next(self._ids))

    def _create(self, client: HTTPConnection, token: str, plant_id: int) -> None:
        was_sent = False
        while True:
            response = exchange(client, "POST", "/plants", token, plant(plant_id))
            elapsed = response.ended - response.began
            self.slowest = max(self.slowest, elapsed)
            if not response.reason.startswith(CLOSED) or elapsed > CLOSE_SECONDS:
                break
            was_sent = True
        if response.status == 200 and elapsed < RESPONSE_SECONDS:
            self._acknowledged.append(plant_id)
            return
        self._unanswered += [plant_id] * was_sent
        if self._service_may_stop and response.reason.startswith("ConnectionRefusedError"):
            self._over.set()
        elif not (response.error == ID_IN_USE and was_sent):
            self.faults.append(f"{response.error or response.reason or response.status} after {elapsed:.1f} s")


@contextmanager
def _service(*options: str) -> Iterator[tuple[Target, str]]:
    """Run a service on an SQLite file, and yield it and the URL of the file."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/plants.db"
        words = [option.replace("FOLDER", folder) for option in options]
        with running_service("sqlite", WORKERS, *words, environ={"PLANTS_STORE": database}) as service:
            yield service, database


def hup(times: int) -> Verdict:
    """Reload the configuration and replace the workers (``HUP``)."""
    with _service() as (service, database):
        with Load(service) as load:
            for _ in range(times):
                load.wait_for_creates()
                old = set(service.workers())
                os.kill(service.master, signal.SIGHUP)
                comes_true(partial(_are_replaced, old, service))
                wait_for_workers(service.master, WORKERS)
        return load.verdict(database, *service.new_log_errors())


def _are_replaced(workers: set[int], service: Target) -> bool:
    return workers.isdisjoint(service.workers())


def usr2(times: int) -> Verdict:
    """Start a new master beside the old one, and stop the old one (``USR2``, then ``TERM``)."""
    with _service("--pid=FOLDER/pid") as (service, database):
        pid_file = Path(database.removeprefix("sqlite:///")).with_name("pid")
        new_file = pid_file.with_name("pid.2")
        masters = [service.master]
        with Load(service) as load:
            for _ in range(times):
                load.wait_for_creates()
                os.kill(masters[-1], signal.SIGUSR2)
                comes_true(lambda: new_file.exists() and new_file.read_text().endswith("\n"))
                masters.append(int(new_file.read_text()))
                wait_for_workers(masters[-1], WORKERS)
                os.kill(masters[-2], signal.SIGTERM)
                comes_true(lambda: pid_file.exists() and pid_file.read_text() == f"{masters[-1]}\n")
        os.kill(masters[-1], signal.SIGTERM)
        comes_true(lambda: not resident_bytes(masters[-1]))
        return load.verdict(database, *service.new_log_errors())


def workers_more_and_fewer(times: int) -> Verdict:
    """Change the number of workers (``TTIN``, ``TTOU``)."""
    with _service() as (service, database):
        with Load(service) as load:
            for _ in range(times):
                for number, workers in ((signal.SIGTTIN, WORKERS + 1), (signal.SIGTTOU, WORKERS)):
                    load.wait_for_creates()
                    os.kill(service.master, number)
                    wait_for_workers(service.master, workers)
        return load.verdict(database, *service.new_log_errors())


def term(times: int) -> Verdict:
    """Stop a service, and start it again on the same file."""
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/plants.db"
        for _ in range(times):
            with running_service("sqlite", WORKERS, environ={"PLANTS_STORE": database}) as service:
                with Load(service, service_may_stop=True) as load:
                    load.wait_for_creates()
                    errors = service.stop()
                verdicts.append(load.verdict(database, *errors))
    return min(verdicts)


def term_of_one_of_two(times: int) -> Verdict:
    """Drain one of two services on the same file, as a load balancer does, and then stop it."""
    faults = []
    with _service() as (last, database):
        with Load(last) as load:
            for _ in range(times):
                with running_service("sqlite", WORKERS, environ={"PLANTS_STORE": database}) as first:
                    load.service = first
                    load.wait_for_creates()
                    load.service = last
                    comes_true(partial(_is_idle, first))
                    faults += first.stop()
        return load.verdict(database, *faults, *last.new_log_errors())


def _is_idle(service: Target) -> bool:
    return not service.connections()


CHANGES: tuple[Callable[[int], Verdict], ...] = (hup, usr2, workers_more_and_fewer, term, term_of_one_of_two)


def main() -> int:
    parser = audit_parser(__doc__)
    parser.add_argument("--times", type=int, default=20, help="how often to repeat each change (%(default)s)")
    add_only_option(parser, [change.__name__ for change in CHANGES])
    options = parser.parse_args()
    chosen = [change for change in CHANGES if not options.only or change.__name__ in options.only]
    holds = [report(change.__name__, change(options.times)) for change in chosen]
    return int(not all(holds))


if __name__ == "__main__":
    sys.exit(main())
