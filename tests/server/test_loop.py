"""The worker's loop, run by hand: what one connection does ends no other, and what all of them hold is bounded."""

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config

from plants.server.answer import Answer
from plants.server.calls import Calls
from plants.server.connection import ANSWERING, CLOSED, CLOSING, IDLE, RECEIVING, STOPPING_SECONDS, WRITING, Connection
from plants.server.request import Refused, Request
from plants.server.worker import Worker
from tests.support.worker_app import app

GET = b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n"


class RunByHand(Worker):
    max_body_bytes = 1000
    threads = 1

    def __init__(self, *sockets: socket.socket, app: Callable[..., Any] = app) -> None:
        cfg = Config()
        cfg.set("threads", self.threads)
        log = logging.getLogger("tests.server")
        listeners = [SimpleNamespace(sock=sock) for sock in sockets]
        super().__init__(1, os.getppid(), listeners, SimpleNamespace(wsgi=lambda: app), 30, cfg, log)
        self.PIPE = list(os.pipe())
        self.load_wsgi()

    def connect(self) -> tuple[socket.socket, Connection]:
        """Give a client, and what the worker has of it."""
        client, served = socket.socketpair()
        client.settimeout(10)
        served.setblocking(False)
        connection = Connection(self, served, self._environ)
        self.connections.add(connection)
        self._step(connection, connection.watch)
        return client, connection

    def run_once(self) -> None:
        self._sweep_at = min(self._sweep_at, time.monotonic() + 0.01)
        self._run_once()

    def end(self) -> None:
        for connection in list(self.connections):
            connection.close()
        self._selector.close()
        # A thread whose answer has just been sent is still about to write to the pipe.
        for descriptor in () if self._has_threads else self.PIPE:
            os.close(descriptor)
        self.tmp.close()


@pytest.fixture
def worker() -> Iterator[RunByHand]:
    worker = RunByHand()
    yield worker
    worker.end()


def test_a_connection_that_fails_is_closed_and_the_others_are_answered(
    worker: RunByHand, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [worker.connect() for _ in range(3)]
    for client, _ in clients:
        client.sendall(GET)
    monkeypatch.setattr(clients[1][1], "answer", lambda *_: 1 / 0)
    worker.run_once()
    assert [client.recv(1000)[:12] for client, _ in clients] == [b"HTTP/1.1 200", b"", b"HTTP/1.1 200"]
    assert clients[1][1].state == CLOSED
    assert "a connection failed and is closed" in caplog.text
    for client, _ in clients:
        client.close()


def test_a_refusal_that_fails_closes_its_connection_alone(
    worker: RunByHand, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "refusal", lambda *_: 1 / 0)
    (failing, _), (other, _) = worker.connect(), worker.connect()
    with failing, other:
        failing.sendall(GET.replace(b"/late", b"/fail"))
        other.sendall(GET)
        worker.run_once()
        assert failing.recv(1000) == b""
        assert other.recv(1000).startswith(b"HTTP/1.1 200")
    assert "ZeroDivisionError" in caplog.text


def test_a_socket_that_is_closed_under_a_connection_ends_that_one_alone(worker: RunByHand) -> None:
    (lost, connection), (other, _) = worker.connect(), worker.connect()
    with lost, other:
        lost.sendall(GET)
        other.sendall(GET)
        connection.sock.close()
        worker.run_once()
        worker._step(connection, connection.expire)
        assert connection.state == CLOSED
        assert other.recv(1000).startswith(b"HTTP/1.1 200")


def test_an_answer_that_comes_after_its_request_was_refused_is_dropped(worker: RunByHand) -> None:
    client, connection = worker.connect()
    with client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n")
        worker.run_once()
        request = connection.request
        assert request
        connection.refuse(Refused(503))
        connection.answer(request, worker.refusal(Refused(500), request))
        assert client.recv(1000).startswith(b"HTTP/1.1 503")
        assert client.recv(1000) == b""


def test_what_is_held_is_let_go_when_a_connection_ends_however_it_does(worker: RunByHand) -> None:
    for end in ("close", "refuse", "answer", "reset"):
        client, connection = worker.connect()
        with client:
            client.sendall(b"POST /judge HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n" + b"x" * 899)
            worker.run_once()
            assert worker._held == connection.counted == 899
            if end == "answer":
                client.sendall(b"x")
                worker.run_once()
                assert client.recv(1000).startswith(b"HTTP/1.1 200")
            elif end == "refuse":
                worker._step(connection, connection.refuse, Refused(408))
            elif end == "close":
                worker._step(connection, connection.close)
        worker.run_once()
        assert worker._held == 0
        assert connection.held() == 0


def test_clients_that_do_not_read_are_closed_when_all_hold_too_much(worker: RunByHand) -> None:
    hoarder, connection = worker.connect()
    small, _ = worker.connect()
    with hoarder, small:
        hoarder.sendall(GET.replace(b"/late", b"/large"))
        worker.run_once()
        worker.run_once()
        assert connection.state == CLOSED
        small.sendall(GET)
        worker.run_once()
        assert small.recv(1000).startswith(b"HTTP/1.1 200")


def test_the_largest_are_refused_first_and_only_as_many_as_must_be(worker: RunByHand) -> None:
    worker._most_held = 5000
    sizes = [100 + 5 * number for number in range(100)]
    clients = [worker.connect() for _ in sizes]
    for (client, _), size in zip(clients, sizes, strict=True):
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n" + b"x" * size)
    worker.run_once()
    kept = [size for (_, connection), size in zip(clients, sizes, strict=True) if connection.request]
    assert kept == sizes[: len(kept)]
    assert worker._held == sum(kept) <= 5000 < sum(kept) + kept[-1] + 5
    for client, _ in clients:
        client.close()


class Listener:
    """A listening socket of a system that has no descriptor left; then of one whose first client has gone."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_short = True
        self.gone = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)

    def accept(self) -> Any:
        if self.is_short:
            raise OSError(errno.EMFILE, "Too many open files")
        sock, peer = self.sock.accept()
        if self.gone:
            self.gone -= 1
            sock.close()
        return sock, peer


def test_without_a_descriptor_nothing_is_accepted_until_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        listener = Listener(sock)
        worker = RunByHand(listener)  # type: ignore[arg-type]  # it stands for a socket
        with (
            closing(socket.create_connection(sock.getsockname())),
            closing(socket.create_connection(sock.getsockname())) as client,
        ):
            client.settimeout(10)
            worker.run_once()
            worker.run_once()
            assert caplog.text.count("cannot accept connections for now: [Errno 24] Too many open files") == 1
            listener.is_short = False
            client.sendall(GET)
            while not worker.connections:
                worker.run_once()
            worker.run_once()
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        worker.end()


def test_an_empty_line_after_a_request_is_not_the_beginning_of_another(worker: RunByHand) -> None:
    client, connection = worker.connect()
    with client:
        client.sendall(GET + b"\r\n")
        worker.run_once()
        worker.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert connection.state is IDLE
        client.sendall(GET)
        worker.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.sendall(b"\r")
        worker.run_once()
        assert connection.state is IDLE
        worker.alive = False
        worker._sweep()
        assert connection.deadline <= worker.now + STOPPING_SECONDS


@pytest.mark.parametrize(("lines", "status"), [(0, b"200"), (1, b"200"), (2, b"400"), (3, b"400")])
def test_empty_lines_before_a_request_mean_the_same_however_they_are_cut(
    worker: RunByHand, lines: int, status: bytes
) -> None:
    data = b"\r\n" * lines + GET
    for cut in range(1, 2 * lines + 2):
        client, _ = worker.connect()
        with client:
            for piece in (data[:cut], data[cut:]):
                client.sendall(piece)
                worker.run_once()
            assert client.recv(1000)[9:12] == status


TINY_CHUNKS = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100


def test_many_tiny_chunks_are_read_a_few_at_a_time(worker: RunByHand) -> None:
    client, connection = worker.connect()
    with client:
        client.sendall(TINY_CHUNKS + b"0\r\n\r\n")
        worker._step(connection, connection.ready)
        assert connection.state == RECEIVING
        worker.run_once()
        assert b"x" * 100 in client.recv(10_000)


def test_a_request_that_was_refused_between_two_of_its_chunks_is_not_read_on(worker: RunByHand) -> None:
    client, connection = worker.connect()
    with client:
        client.sendall(TINY_CHUNKS)
        worker._step(connection, connection.ready)
        worker._step(connection, connection.refuse, Refused(408))
        worker.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 408")
        assert client.recv(1000) == b""


def test_a_socket_that_was_announced_as_readable_and_has_nothing_is_waited_for(worker: RunByHand) -> None:
    client, connection = worker.connect()
    with client:
        worker._step(connection, connection.ready)
        client.sendall(GET)
        worker.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_long_answers_leave_the_others_their_turn_and_those_that_never_wait_go_first() -> None:
    answered: list[str] = []

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        answered.append(environ["PATH_INFO"])
        if environ["PATH_INFO"] == "/long":
            time.sleep(0.11)
        start_response("200 OK", [])
        return []

    class WithProbe(RunByHand):
        def never_waits(self, request: Request) -> bool:
            return bool(request.environ["PATH_INFO"] == "/probe")

    busy = WithProbe(app=answer)
    clients = [busy.connect() for _ in range(4)]
    for client, _ in clients[:3]:
        client.sendall(GET.replace(b"/late", b"/long"))
    busy.run_once()
    assert answered == ["/long"]
    clients[3][0].sendall(GET.replace(b"/late", b"/probe"))
    busy._step(clients[1][1], clients[1][1].refuse, Refused(503))
    busy.run_once()
    busy.run_once()
    busy.run_once()
    assert answered == ["/long", "/probe", "/long"]
    for client, _ in clients:
        client.close()
    busy.end()


class WithThreads(RunByHand):
    threads = 2
    most_together = 10


class Failing(WithThreads):
    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        raise RuntimeError(f"no commit for {len(calls)}")


class Forgetful(WithThreads):
    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        return [call() for call in calls[1:]]


def test_an_answer_that_the_socket_does_not_take_at_all_is_sent_once_the_client_reads(worker: RunByHand) -> None:
    client, connection = worker.connect()
    with client:
        filled = 0
        with suppress(BlockingIOError):
            while True:
                filled += connection.sock.send(b"x" * 1000)
        client.sendall(GET)
        worker.run_once()
        worker._step(connection, connection.ready)  # It still takes nothing.
        assert connection.state == WRITING
        with client.makefile("rb") as received:
            assert received.read(filled) == b"x" * filled
            worker.run_once()
            assert received.readline() == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("kind", "logged"), [(Failing, "RuntimeError: no commit for 1"), (Forgetful, "there are 0 answers to 1 requests")]
)
def test_what_answers_many_together_and_fails_costs_each_of_them_a_500(
    kind: type[RunByHand], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = kind()
    client, connection = worker.connect()
    with client:
        client.sendall(GET)
        while connection.state != CLOSING:
            worker.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 500")
    assert logged in caplog.text
    os.read(worker.PIPE[0], 1)  # The thread has done all that it does for this answer.
    worker.end()


class Batching(WithThreads):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        self.batches.append(len(calls))
        return super().together(calls)


def test_requests_that_come_one_right_after_the_other_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plants.server.calls._GATHER_SECONDS", 60)  # A busy machine may take longer between two turns.
    worker = Batching()
    clients = [worker.connect() for _ in range(3)]
    for client, _ in clients:
        client.sendall(GET)
        worker.run_once()
    for client, connection in clients:
        with client:
            while connection.state == ANSWERING:
                worker.run_once()
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
    assert worker.batches == [3]
    worker.end()


def test_a_request_does_not_wait_for_a_batch_while_ever_more_come() -> None:
    worker = Batching()
    (first, connection), later = worker.connect(), []
    first.sendall(GET)
    worker.run_once()
    while connection.state == ANSWERING:
        later.append(worker.connect()[0])
        later[-1].sendall(GET)
        worker.run_once()
        assert len(later) < 10_000
    assert first.recv(1000).startswith(b"HTTP/1.1 200")
    for client in (first, *later):
        client.close()
    worker.end()


def test_a_request_that_takes_too_long_is_answered_503_and_its_own_answer_is_dropped() -> None:
    gate = threading.Event()

    def wait(_environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        gate.wait(10)
        start_response("200 OK", [])
        return [b"late"]

    worker = WithThreads(app=wait)
    client, connection = worker.connect()
    with client:
        client.sendall(GET)
        worker.run_once()
        connection.deadline = worker.now
        while connection.state == ANSWERING:
            worker.run_once()
        gate.set()
        os.read(worker.PIPE[0], 1)
        worker.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 503")
        assert client.recv(1000) == b""
    worker.end()


def test_requests_that_were_refused_while_all_threads_were_stuck_leave_nothing_behind() -> None:
    gate, stuck = threading.Event(), threading.Semaphore(0)

    def wait(_environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        stuck.release()
        gate.wait(20)
        start_response("200 OK", [])
        return []

    worker = WithThreads(app=wait)
    worker.most_together = 1
    for number in range(60):
        client, connection = worker.connect()
        with client:
            client.sendall(GET)
            worker.run_once()
            worker.run_once()  # Nothing more has come, so the request goes to a thread.
            if number < worker.threads:
                assert stuck.acquire(timeout=10)
            else:
                worker._step(connection, connection.refuse, Refused(503))
    assert len(worker._calls.waiting) <= 1
    gate.set()
    while worker._calls._free < worker.threads:
        worker.run_once()
    assert not worker._calls.waiting
    worker.end()


def test_a_request_that_was_refused_while_it_waited_is_not_carried_out() -> None:
    called: list[str] = []

    def note(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        called.append(environ["PATH_INFO"])
        start_response("200 OK", [])
        return []

    worker = RunByHand(app=note)
    (client, gone), (other, kept) = worker.connect(), worker.connect()
    request = kept.request = Request({"PATH_INFO": "/kept"}, 0)
    worker.most_together = 10
    calls = Calls(worker, worker.PIPE[1])
    calls.waiting.extend([(gone, Request({"PATH_INFO": "/gone"}, 0)), (kept, request)])
    calls.start(1)
    calls.start_batches(worker.now)
    os.read(worker.PIPE[0], 1)  # until a thread has an answer
    outcomes = list(calls.outcomes())
    assert called == ["/kept"]
    assert [(connection, asked) for connection, asked, _ in outcomes] == [(kept, request)]
    worker.end()
    client.close()
    other.close()
