"""The shutdown of a worker, and its end."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.loop_driver import GET, get, post
from tests.support.process import children, resident_bytes, wait_until
from tests.support.worker_server import running_worker

POST = post("/", 4)
CLOSING_GET = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_requests_and_closes_idle_clients(tmp_path: Path, number: signal.Signals) -> None:
    options = ["--threads=2", "--keep-alive=300", "--graceful-timeout=300", "--max-requests-jitter=99999999"]
    with running_worker(tmp_path, *options, "--max-requests=1") as server:
        idle, unused, begun, pipelined, lingering, called = (server.client() for _ in range(6))
        assert idle.send(GET).response().status == 200
        assert lingering.send(CLOSING_GET).response().status == 200  # The worker waits for this client to close.
        begun.send(POST[:-1])
        pipelined.send(GET + POST[:-1])
        assert pipelined.response().status == 200
        called.send(get(f"/wait?{tmp_path}/gate"))
        server.wait_for(r"\[ERROR\] waiting for the file")
        server.signal(number)
        assert idle.is_closed()
        os.kill(children(server.process.pid)[0], number)  # A second signal changes nothing.
        assert unused.is_closed()
        (tmp_path / "gate").touch()
        responses = [*called.responses(), *begun.send(POST[-1:]).responses(), *pipelined.send(POST[-1:]).responses()]
        assert [(response.status, response.headers["connection"]) for response in responses] == [(200, "close")] * 3
        assert [b'"server.stopping": true' in response.body for response in responses] == [False, True, True]
        assert server.wait_for_exit() == 0


def test_a_worker_that_stops_gives_up_after_the_graceful_timeout(tmp_path: Path) -> None:
    with running_worker(tmp_path, "--threads=2", "--graceful-timeout=1") as server:
        client = server.client().send(get(f"/wait?{tmp_path}/gate"))
        server.wait_for(r"\[ERROR\] waiting for the file")
        server.signal(signal.SIGHUP)  # After TERM, the master would end the worker.
        client.sock.settimeout(25)
        with pytest.raises((ConnectionResetError, EOFError)):
            client.response()


def test_a_worker_ends_after_max_requests_or_with_its_master(tmp_path: Path) -> None:
    with running_worker(tmp_path, "--max-requests=2", "--keep-alive=60") as server:
        slow = server.client().send(POST[:-1])
        responses = server.client().send(GET * 3).responses()
        assert [response.headers.get("connection") for response in responses] == [None, None, "close"]
        (response,) = slow.responses()  # The next worker accepts clients when this one has ended.
        assert response.status == 408
        server.wait_for("Autorestarting worker")
        server.wait_for("Booting worker", times=2)
        assert server.client().send(GET).response().status == 200
        [pid] = children(server.process.pid)
        assert len([*Path(f"/proc/{pid}/task").iterdir()]) == 1  # By default, the event loop calls the application.
        server.signal(signal.SIGKILL)
        server.wait_for_exit()
        wait_until(lambda: not resident_bytes(pid))
