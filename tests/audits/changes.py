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
from functools import partial

from tests.audits.bystander import Response
from tests.audits.deployment import Deployment
from tests.audits.kills import ID_IN_USE, Attempts, adding_plants, audit_journal
from tests.audits.report import Verdict, run_checks, verdict_on
from tests.support.process import wait_for_workers, wait_until

WORKERS = 2
CLIENTS = 4
PAUSE_SECONDS = 0.0  # between a response and the client's next request
CREATES_BETWEEN_CHANGES = 100
# The service promises a response within RESPONSE_SECONDS. It may close an idle connection just as a client sends a
# request, but a close more than CLOSE_SECONDS after the request is a fault of the service.
RESPONSE_SECONDS = 5.0
CLOSE_SECONDS = 0.5
CLOSED = ("RemoteDisconnected", "ConnectionResetError", "BrokenPipeError")
HARMLESS = {"acknowledged and stored", "not acknowledged, absent"}


def repeat(change: Callable[[Deployment], None], times: int = 20) -> Verdict:
    """Repeat a change under load."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/plants.db"
        with Deployment(database, f"--workers {WORKERS}") as service:
            wait_for_workers(service.master.pid, WORKERS)
            with adding_plants(service.url, clients=CLIENTS, pause=PAUSE_SECONDS) as journal:
                for _ in range(times):
                    wait_for_creates(journal)
                    change(service)
        findings = audit_journal(database, journal)
    responses = [response for _, response in journal]
    findings.update(filter(None, (fault_of(response, CHANGES[change]) for response in responses)))
    slowest = max(response.ended - response.began for response in responses)
    summary = f"{verdict_on(findings).summary}, slowest {slowest * 1000:.0f} ms"
    return Verdict(findings.keys() <= HARMLESS, summary)


def wait_for_creates(journal: Attempts) -> None:
    before = len(journal)
    wait_until(lambda: sum(response.status == 200 for _, response in journal[before:]) >= CREATES_BETWEEN_CHANGES)


def fault_of(response: Response, accepted: tuple[str, ...]) -> str:
    seconds = response.ended - response.began
    was_closed = response.reason.startswith(accepted) and seconds < CLOSE_SECONDS
    was_served = response.status == 200 or response.error == ID_IN_USE
    if was_closed or (was_served and seconds < RESPONSE_SECONDS):
        return ""
    return f"{response.error or response.reason or response.status} after {seconds:.1f} s"


def hup(service: Deployment) -> None:
    """Send ``HUP`` to the master and to each worker, as to a process group; the master replaces the workers."""
    old = service.workers()
    for process in (*old, service.master.pid):
        os.kill(process, signal.SIGHUP)
    wait_until(lambda: set(old).isdisjoint(service.workers()))
    wait_for_workers(service.master.pid, WORKERS)


def workers_more_and_fewer(service: Deployment) -> None:
    """Start one more worker, and stop one."""
    for number, workers in ((signal.SIGTTIN, WORKERS + 1), (signal.SIGTTOU, WORKERS)):
        service.master.send_signal(number)
        wait_for_workers(service.master.pid, workers)


def term(service: Deployment) -> None:
    """Stop the service, and start it again."""
    service.master.terminate()
    service.master.wait()
    service.start()


# The changes, and the reasons for which a request may get no response.
CHANGES: dict[Callable[[Deployment], None], tuple[str, ...]] = {
    hup: CLOSED,
    workers_more_and_fewer: CLOSED,
    term: (*CLOSED, "ConnectionRefusedError"),
}


if __name__ == "__main__":
    sys.exit(run_checks(__doc__, {change.__name__: partial(repeat, change) for change in CHANGES}))
