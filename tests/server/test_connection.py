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


@pytest.mark.parametrize(("threads", "number"), [(1, signal.SIGTERM), (2, signal.SIGQUIT)])
def test_a_signal_finishes_requests_and_closes_idle_clients(
    tmp_path: Path, threads: int, number: signal.Signals
) -> None:
    with running_worker(tmp_path, f"--threads={threads}", "--keep-alive=300", "--graceful-timeout=300") as server:
        idle, unused, begun, pipelined, lingering = (server.client() for _ in range(5))
        assert idle.send(GET).response().status == 200
        assert lingering.send(CLOSING_GET).response().status == 200  # The worker waits for this client to close.
        begun.send(POST[:-1])
        pipelined.send(GET + POST[:-1])
        assert pipelined.response().status == 200
        server.signal(number)
        assert idle.is_closed()
        os.kill(children(server.process.pid)[0], number)  # A second signal changes nothing.
        assert unused.is_closed()
        for client in (begun, pipelined):
            (response,) = client.send(POST[-1:]).responses()
            assert (response.status, response.headers["connection"]) == (200, "close")
            assert b'"server.stopping": true' in response.body
        assert server.wait_for_exit() == 0


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_signal_term_waits_for_responses_from_threads(tmp_path: Path) -> None:
    with running_worker(tmp_path, "--threads=2", "--keep-alive=60") as server:
        idle = server.client().send(GET)
        assert idle.response().status == 200
        client = server.client().send(get(f"/wait?{tmp_path}/gate") + GET)
        alone = server.client().send(get(f"/wait?{tmp_path}/gate"))
        server.wait_for("waiting for the file", times=2)
        server.signal(signal.SIGTERM)
        assert idle.is_closed()  # The worker has received the signal.
        (tmp_path / "gate").touch()
        first, second = client.responses()
        assert (first.status, second.status) == (200, 200)
        assert second.headers["connection"] == "close"
        (response,) = alone.responses()
        assert response.headers["connection"] == "close"
        assert server.wait_for_exit() == 0


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_signal_term_gives_up_after_the_graceful_timeout(tmp_path: Path) -> None:
    with running_worker(tmp_path, "--threads=2", "--graceful-timeout=1") as server:
        client = server.client().send(get(f"/wait?{tmp_path}/gate"))
        server.wait_for("waiting for the file")
        server.signal(signal.SIGTERM)
        with pytest.raises((ConnectionResetError, EOFError)):
            client.response()
        assert server.wait_for_exit() == 0
        (tmp_path / "gate").touch()


def test_a_worker_ends_when_its_master_has_gone(tmp_path: Path) -> None:
    with running_worker(tmp_path) as server:
        [pid] = children(server.process.pid)
        assert server.client().send(GET).response().status == 200
        server.signal(signal.SIGKILL)
        server.wait_for_exit()
        wait_until(lambda: not resident_bytes(pid))


def test_a_worker_is_replaced_after_max_requests(tmp_path: Path) -> None:
    with running_worker(tmp_path, "--max-requests=2", "--keep-alive=60") as server:
        client = server.client()
        assert "connection" not in client.send(GET).response().headers
        assert client.send(GET).response().headers["connection"] == "close"
        server.wait_for("Autorestarting worker")
        server.wait_for("Booting worker", times=2)
        assert server.client().send(GET).response().status == 200
