"""The queue of the threads, and the limit of descriptors; these tests look at private attributes of the server."""

import resource

import pytest

from plants.server.connection import RESPONDING
from plants.server.loop import _allow_descriptors
from plants.server.request import HTTPError
from tests.support.loop_driver import GET, Driver, GatedApp, post


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "new_soft", "possible"),
    [
        (1024, 4096, 100, None, 100),
        (1024, resource.RLIM_INFINITY, 2000, 2100, 2000),
        (1024, 1500, 2000, 1500, 1400),
        (50, 100, 2000, 100, 1),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 2000, None, 2000),
    ],
    ids=["enough", "no hard limit", "hard limit", "too low", "no limit"],
)
def test_the_hard_limit_of_descriptors_limits_the_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, connections: int, new_soft: int | None, possible: int
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert _allow_descriptors(connections) == possible
    assert limits == [(new_soft, hard)] * (new_soft is not None)


def test_a_limit_that_the_system_rejects_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", reject)
    assert _allow_descriptors(20_000) == 156


def test_fewer_connections_than_configured_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (150, 150))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    Driver().end()
    assert "ulimit" in caplog.text
    assert "50 connections" in caplog.text


@pytest.mark.parametrize("data", [GET, post("/limit", 40_000)], ids=["small", "large"])
def test_the_queue_for_stuck_threads_drops_rejected_requests(data: bytes) -> None:
    gated = GatedApp()
    driver = Driver(app=gated, threads=1, body_bytes=10**6)
    for number in range(60):
        _, connection = driver.connect(data)
        driver.run_until_state(connection, RESPONDING)
        if number:
            driver.step(connection, connection.reject, HTTPError(503))
            driver.run_once()
        else:
            driver.run_until(lambda: gated.paths)
    queues = [threads.queued_jobs for threads in (driver.loop._threads, driver.loop._large_body_thread)]
    assert sum(map(len, queues)) <= 1
    gated.gate.set()
    driver.run_until(lambda: not driver.loop.pending_request_count() and not any(queues))
    assert len(gated.paths) == 1
    driver.end()
