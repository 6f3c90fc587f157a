"""The queue of the threads, and the limit of descriptors; these tests look at private attributes of the server."""

import resource

import pytest

from plants.server.connection import RESPONDING
from plants.server.loop import _allow_descriptors
from plants.server.request import HTTPError
from tests.support.loop_driver import GET, Driver, GatedApp, post


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "set_to", "possible"),
    [
        (1024, 4096, 100, [], 100),
        (1024, resource.RLIM_INFINITY, 2000, [2100], 2000),
        (1024, 1500, 2000, [1500], 1400),
        (50, 100, 2000, [100], 1),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 2000, [], 2000),
        (256, resource.RLIM_INFINITY, 20_000, [], 156),
    ],
    ids=["enough", "no hard limit", "hard limit", "too low", "no limit", "as on macOS"],
)
def test_the_hard_limit_of_descriptors_limits_the_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, connections: int, set_to: list[int], possible: int
) -> None:
    limits: list[int] = []

    def set_limit(_: int, limit: tuple[int, int]) -> None:
        if limit[0] > 10_240:  # as macOS does
            raise ValueError("current limit exceeds maximum limit")
        limits.append(limit[0])

    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert _allow_descriptors(connections) == possible
    assert limits == set_to


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
