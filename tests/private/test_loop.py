"""The queues of the threads; these tests look at private attributes of the server."""

import pytest

from plants.server.connection import RESPONDING
from plants.server.request import HTTPError
from tests.support.loop_driver import GET, Driver, GatedApp, post


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
    loop = driver.loop
    queues = [loop._threads.queued_jobs, loop._large_body_thread.queued_jobs, loop._large_body_jobs]
    assert sum(map(len, queues)) <= 1
    gated.gate.set()
    driver.run_until(lambda: not driver.loop.pending_request_count() and not any(queues))
    assert len(gated.paths) == 1
    driver.end()


def test_the_thread_for_large_bodies_gets_one_at_a_time_from_the_loop() -> None:
    """If it always had another one to parse, it would compete with the loop for the interpreter."""
    gated = GatedApp()
    driver = Driver(app=gated, body_bytes=10**6)
    clients = [driver.connect(post("/large", 40_000)) for _ in range(4)]
    for _, connection in clients:
        driver.run_until_state(connection, RESPONDING)
    driver.run_until(lambda: gated.paths)
    driver.run_once()
    driver.run_once()
    assert (len(driver.loop._large_body_thread.queued_jobs), len(driver.loop._large_body_jobs)) == (1, 2)
    gated.gate.set()
    driver.run_until_readable(*[client for client, _ in clients])
    driver.end()
