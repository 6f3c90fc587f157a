"""Change a service on SQLite under load, as operators do, and check that no client notices.

    python -m tests.audits.changes
    python -m tests.audits.changes --only hup --only term

A change passes if each request got a 200 in time (or a 40003, if a rival was faster), or its connection was closed at
once and the plant was not stored, and if every acknowledged plant is stored.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.audits.bystander import Response
from tests.audits.deployment import Deployment
from tests.audits.kills import ID_IN_USE, JournaledLoad, audit_load
from tests.audits.report import Verdict, run_checks, verdict_on
from tests.support.process import children, text_of, wait_for_workers, wait_until

WORKERS = 2
CLIENTS = 4
PAUSE_SECONDS = 0.0  # between a response and the client's next request
CREATES_BETWEEN_CHANGES = 100
# The service promises a response within RESPONSE_SECONDS. It may close an idle connection just as a client sends a
# request, but a close more than CLOSE_SECONDS after the request is a fault of the service.
RESPONSE_SECONDS = 5.0
CLOSE_SECONDS = 0.5
CLOSED = ("RemoteDisconnected", "ConnectionResetError", "BrokenPipeError")
REFUSED = ("ConnectionRefusedError",)
HARMLESS = {"acknowledged and stored", "not acknowledged, absent"}


def repeat(change: Callable[[Deployment, Path], None], times: int, accepted: tuple[str, ...] = CLOSED) -> Verdict:
    """Repeat a change under load. It gets the service and the file with the process id of its master.

    ``accepted`` are the reasons for which a request may get no response.
    """
    with tempfile.TemporaryDirectory() as folder:
        database, pid_file = f"sqlite:///{folder}/plants.db", Path(folder, "pid")
        with Deployment(database, f"--workers {WORKERS} --pid {pid_file}") as service:
            wait_for_workers(process_id(pid_file), WORKERS)
            with JournaledLoad(service, clients=CLIENTS, pause=PAUSE_SECONDS) as load:
                for _ in range(times):
                    wait_for_creates(load)
                    change(service, pid_file)
        findings = audit_load(database, load)
    responses = [response for _, response in load.journal]
    findings.update(filter(None, (fault_of(response, accepted) for response in responses)))
    slowest = max(response.ended - response.began for response in responses)
    summary = f"{verdict_on(findings).summary}, slowest {slowest * 1000:.0f} ms"
    return Verdict(findings.keys() <= HARMLESS, summary)


def wait_for_creates(load: JournaledLoad) -> None:
    before = len(load.journal)
    wait_until(lambda: sum(response.status == 200 for _, response in load.journal[before:]) >= CREATES_BETWEEN_CHANGES)


def process_id(file: Path) -> int:
    wait_until(lambda: text_of(file).endswith("\n"))
    return int(file.read_text())


def fault_of(response: Response, accepted: tuple[str, ...]) -> str:
    seconds = response.ended - response.began
    was_closed = response.reason.startswith(accepted) and seconds < CLOSE_SECONDS
    was_served = response.status == 200 or response.error == ID_IN_USE
    if was_closed or (was_served and seconds < RESPONSE_SECONDS):
        return ""
    return f"{response.error or response.reason or response.status} after {seconds:.1f} s"


def hup(times: int = 20) -> Verdict:
    """Send ``HUP`` to the master and to each worker, as to a process group; the master replaces the workers."""

    def change(_service: Deployment, pid_file: Path) -> None:
        master = process_id(pid_file)
        old = set(children(master))
        for process in (*old, master):
            os.kill(process, signal.SIGHUP)
        wait_until(lambda: old.isdisjoint(children(master)))
        wait_for_workers(master, WORKERS)

    return repeat(change, times)


def workers_more_and_fewer(times: int = 20) -> Verdict:
    """Start one more worker, and stop one."""

    def change(_service: Deployment, pid_file: Path) -> None:
        for number, workers in ((signal.SIGTTIN, WORKERS + 1), (signal.SIGTTOU, WORKERS)):
            os.kill(process_id(pid_file), number)
            wait_for_workers(process_id(pid_file), workers)

    return repeat(change, times)


def term(times: int = 20) -> Verdict:
    """Stop the service, and start it again."""

    def change(service: Deployment, pid_file: Path) -> None:
        os.kill(process_id(pid_file), signal.SIGTERM)
        wait_until(lambda: not pid_file.exists())
        service.start()

    return repeat(change, times, CLOSED + REFUSED)


CHANGES: tuple[Callable[..., Verdict], ...] = (hup, workers_more_and_fewer, term)


if __name__ == "__main__":
    sys.exit(run_checks(__doc__, {change.__name__: change for change in CHANGES}))
