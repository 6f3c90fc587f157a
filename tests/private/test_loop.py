"""Batches of the threads, and the limit of descriptors; these tests change private constants of the server."""

import asyncio
import resource
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

import pytest

from plants.server.connection import RESPONDING
from plants.server.loop import _allow_descriptors
from plants.server.request import HTTPError
from plants.server.threads import current
from tests.support.loop_driver import GET, Driver, GatedApp, get, post
from tests.support.process import wait_until


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


class DeferredApp:
    """An application with pending work for each response except that to /now, which records what happens."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        self.events.append(f"call {path}")
        if path == "/end":
            raise SystemExit
        if path != "/now":
            environ["server.pending"].append(lambda: self.events.append(f"wait {path}"))
        return self.read(path, start_response)

    def read(self, path: str, start_response: Callable[..., Any]) -> Iterator[bytes]:
        request = current.request
        assert request
        assert request.path == path
        self.events.append(f"read {path}")
        try:
            if path == "/cancel":
                raise asyncio.CancelledError
            start_response("200 OK", [])
            yield b"late"
        finally:
            self.events.append(f"close {path}")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow for a busy machine, which may take long for the calls of a batch."""
    monkeypatch.setattr("plants.server.threads._MAX_CALL_SECONDS", 60)


def events_of_a_batch(requests: Iterable[bytes], *, one_per_iteration: bool = False, **options: Any) -> Any:
    """Return the events of requests that one thread handles, and the start of each response.

    With ``one_per_iteration``, each request arrives in an iteration of its own; otherwise, all arrive in one iteration.
    """
    deferred = DeferredApp()
    driver = Driver(app=deferred, threads=1, **options)
    clients = [driver.connect(request) for request in requests]
    for _, connection in clients:
        driver.step(connection, connection.ready)
        if one_per_iteration:
            driver.run_once()
    driver.run_until(lambda: all(connection.state != RESPONDING for _, connection in clients))
    responses = [client.recv(1000)[:12] for client, _ in clients]
    driver.end()
    return deferred.events, responses


def test_requests_of_consecutive_iterations_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may take long between two iterations.
    monkeypatch.setattr("plants.server.threads._GATHER_SECONDS", 60)
    events, responses = events_of_a_batch(map(get, ("/1", "/now", "/3")), one_per_iteration=True)
    assert events[:5] == ["call /1", "call /now", "read /now", "close /now", "call /3"]
    assert events[5:] == ["wait /1", "read /1", "close /1", "wait /3", "read /3", "close /3"]
    assert responses == [b"HTTP/1.1 200"] * 3


def test_a_failed_call_does_not_fail_the_rest_of_its_batch(caplog: pytest.LogCaptureFixture) -> None:
    events, responses = events_of_a_batch(map(get, ("/end", "/cancel", "/3")))
    assert events[3:] == ["wait /cancel", "read /cancel", "close /cancel", "wait /3", "read /3", "close /3"]
    assert responses == [b"HTTP/1.1 500", b"HTTP/1.1 500", b"HTTP/1.1 200"]
    assert caplog.messages == ["the application failed"] * 2


def test_calls_left_over_by_a_batch_are_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plants.server.threads._MAX_CALL_SECONDS", -1)
    events, responses = events_of_a_batch(map(get, ("/1", "/2")))
    assert events == [f"{step} /{number}" for number in (1, 2) for step in ("call", "wait", "read", "close")]
    assert responses == [b"HTTP/1.1 200"] * 2


@pytest.mark.parametrize(
    ("data", "most_bytes", "most_requests"),
    [(post("/limit", 900), 1800, 10), (GET, 1800, 2)],
    ids=["bytes", "requests"],
)
def test_a_batch_ends_at_its_limits(
    monkeypatch: pytest.MonkeyPatch, data: bytes, most_bytes: int, most_requests: int
) -> None:
    monkeypatch.setattr("plants.server.threads._MAX_BATCH_BYTES", most_bytes)
    events, _ = events_of_a_batch([data] * 5, max_batch=most_requests)
    calls = groupby(event.startswith("call") for event in events)
    assert [len(list(batch)) for is_call, batch in calls if is_call] == [2, 2, 1]


def test_a_request_does_not_wait_for_an_endless_batch() -> None:
    gated = GatedApp()
    driver = Driver(app=gated, threads=2)
    driver.connect(GET)
    # In each iteration another request arrives, so the batch could grow without end.
    for _ in range(400):
        driver.connect(GET)
        driver.run_once()
    wait_until(lambda: gated.paths)
    gated.gate.set()
    driver.run_until(lambda: not driver.loop.pending_request_count())
    driver.end()


@pytest.mark.parametrize("data", [GET, post("/limit", 40_000)], ids=["small", "large"])
def test_the_queue_for_stuck_threads_drops_rejected_requests(data: bytes) -> None:
    gated = GatedApp()
    driver = Driver(app=gated, threads=1, max_batch=1, body_bytes=10**6)
    for number in range(60):
        _, connection = driver.connect(data)
        driver.run_until_state(connection, RESPONDING)
        if number:
            driver.step(connection, connection.reject, HTTPError(503))
            driver.run_once()
        else:
            driver.run_until(lambda: gated.paths)
    both = (driver.loop._threads, driver.loop._large_body_thread)
    assert not any(threads.can_start() for threads in both)  # The loop is idle meanwhile.
    queues = [threads.queued_jobs for threads in both]
    assert sum(map(len, queues)) <= 1
    gated.gate.set()
    driver.run_until(lambda: not driver.loop.pending_request_count() and not any(queues))
    assert len(gated.paths) == 1
    driver.end()
