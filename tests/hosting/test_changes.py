"""Clients notice nothing while an operator changes a service on SQLite under load."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.audits.bystander import Response
from tests.audits.deployment import Deployment
from tests.audits.kills import ID_IN_USE, adding_plants, audit_journal
from tests.support.process import wait_for_workers, wait_until

WORKERS = 2
# The service may close an idle connection just as a client sends a request, but a close that comes late is a fault.
CLOSE_SECONDS = 3.0
RESPONSE_SECONDS = 20.0
CLOSED = ("RemoteDisconnected", "ConnectionResetError", "BrokenPipeError")


def hup(service: Deployment) -> None:
    """Let the master replace the workers."""
    old = service.workers()
    service.master.send_signal(signal.SIGHUP)
    wait_for_workers(service.master.pid, WORKERS, after=old)


def workers_more_and_fewer(service: Deployment) -> None:
    for number, workers in ((signal.SIGTTIN, WORKERS + 1), (signal.SIGTTOU, WORKERS)):
        service.master.send_signal(number)
        wait_for_workers(service.master.pid, workers)


def is_expected(response: Response) -> bool:
    seconds = response.ended - response.began
    was_served = response.status == 200 or response.error == ID_IN_USE  # A rival was faster.
    was_closed = response.reason.startswith(CLOSED) and seconds < CLOSE_SECONDS
    return was_closed or (was_served and seconds < RESPONSE_SECONDS)


@pytest.mark.parametrize("change", [hup, workers_more_and_fewer])
def test_no_request_is_lost_during_a_change(tmp_path: Path, change: Callable[[Deployment], None]) -> None:
    url = f"sqlite:///{tmp_path}/plants.db"
    with Deployment(url, f"--workers {WORKERS}") as service:
        wait_for_workers(service.master.pid, WORKERS)
        with adding_plants(service.url, clients=4, pause=0.01) as journal:
            wait_until(lambda: sum(response.status == 200 for _, response in journal) >= 100)
            change(service)
    assert [response for _, response in journal if not is_expected(response)] == []
    assert audit_journal(url, journal).keys() <= {"acknowledged and stored", "not acknowledged, absent"}
