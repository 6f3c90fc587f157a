"""The queue of the threads; this test looks at private attributes of the server."""

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
    queues = [threads.queued_jobs for threads in (driver.loop._threads, driver.loop._large_body_thread)]
    assert sum(map(len, queues)) <= 1
    gated.gate.set()
    driver.run_until(lambda: not driver.loop.pending_request_count() and not any(queues))
    assert len(gated.paths) == 1
    driver.end()
