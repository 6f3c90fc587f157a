"""The event loop, iteration by iteration: a failure closes one connection, and the buffered bytes are bounded."""

import asyncio
import errno
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import groupby
from typing import Any

import pytest

from plants.server.connection import CLOSED, CLOSING, IDLE, OPEN, RECEIVING, RESPONDING, STOPPING_SECONDS, WRITING
from plants.server.loop import _MAX_EXPIRED_PER_ITERATION, _SWEEP_SECONDS, _allow_descriptors
from plants.server.request import HTTPError, Request
from plants.server.response import Response
from plants.server.service import Service
from plants.server.threads import current_request
from tests.support.loop_driver import Driver

GET = b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n"


def is_readable(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.end()


class GatedApp:
    """An application that records the path of each call, and does not respond before ``gate`` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls = threading.Semaphore(0)
        self.paths: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        self.paths.append(environ["PATH_INFO"])
        self.calls.release()
        self.gate.wait(60)
        start_response("200 OK", [])
        return [b"late"]


class Failing(Service):
    """A service that raises an exception before each response to /unlogged, and instead of each error response."""

    def before_response(self, request: Request, response: Response) -> None:
        if request.path == "/unlogged":
            raise RuntimeError("no log", response.status)

    def error_response(self, error: HTTPError, request: Request) -> Response:
        raise RuntimeError("no error response", error, request)


@pytest.mark.parametrize(("path", "logged"), [(b"/unlogged", "no log"), (b"/fail", "no error response")])
def test_a_failure_closes_one_connection_only(path: bytes, logged: str, caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(service=Failing())
    clients = [driver.connect()[0] for _ in range(3)]
    for client, target in zip(clients, (b"/late", path, b"/late"), strict=True):
        client.sendall(GET.replace(b"/late", target))
    driver.run_until(lambda: all(is_readable(client) for client in clients))
    assert [client.recv(1000)[:12] for client in clients] == [b"HTTP/1.1 200", b"", b"HTTP/1.1 200"]
    assert logged in caplog.text
    for client in clients:
        client.close()
    driver.end()


def test_a_closed_socket_ends_only_its_own_connection(driver: Driver) -> None:
    (lost, connection), (other, _) = driver.connect(), driver.connect()
    with lost, other:
        lost.sendall(GET)
        other.sendall(GET)
        connection.sock.close()
        driver.run_until(lambda: is_readable(other))
        driver.step(connection, connection.expire)
        assert connection.state == CLOSED
        assert other.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_late_response_to_a_rejected_request_is_dropped(driver: Driver) -> None:
    client, connection = driver.connect()
    with client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n")
        driver.run_once()
        request = connection.request
        assert request
        connection.reject(HTTPError(503))
        connection.respond(request, driver.service.error_response(HTTPError(500), request))
        assert client.recv(1000).startswith(b"HTTP/1.1 503")
        assert client.recv(1000) == b""


def test_memory_is_freed_however_a_connection_ends(driver: Driver) -> None:
    for end in ("close", "reject", "respond", "disconnect"):
        client, connection = driver.connect()
        with client:
            client.sendall(b"POST /limit HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n" + b"x" * 899)
            driver.run_once()
            assert driver.loop._buffered_bytes == connection.counted_bytes == 899
            if end == "respond":
                client.sendall(b"x")
                driver.run_once()
                assert client.recv(1000).startswith(b"HTTP/1.1 200")
            elif end == "reject":
                driver.step(connection, connection.reject, HTTPError(408))
            elif end == "close":
                driver.step(connection, connection.close)
            else:
                client.close()
                driver.run_once()
            assert driver.loop._buffered_bytes == 0
            assert connection.buffered_bytes() == 0


def test_clients_that_do_not_read_are_closed_to_free_memory(driver: Driver) -> None:
    non_reader, connection = driver.connect()
    small, _ = driver.connect()
    with non_reader, small:
        non_reader.sendall(GET.replace(b"/late", b"/large"))
        driver.run_once()
        driver.run_once()
        assert connection.state == CLOSED
        small.sendall(GET)
        driver.run_once()
        assert small.recv(1000).startswith(b"HTTP/1.1 200")


def test_only_the_largest_uploads_are_rejected_to_free_memory(driver: Driver) -> None:
    driver.loop._max_buffered_bytes = 5000
    sizes = [100 + 5 * number for number in range(100)]
    clients = [driver.connect() for _ in sizes]
    for (client, _), size in zip(clients, sizes, strict=True):
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n" + b"x" * size)
    driver.run_once()
    remaining = [size for (_, connection), size in zip(clients, sizes, strict=True) if connection.request]
    assert remaining == sizes[: len(remaining)]
    assert driver.loop._buffered_bytes == sum(remaining) <= 5000 < sum(remaining) + remaining[-1] + 5
    assert b"receiving as much as it can hold" in clients[-1][0].recv(1000)
    for client, _ in clients:
        client.close()


class HeaderPerCall(Service):
    """A service that adds a header in each call of after_head."""

    def after_head(self, request: Request) -> None:
        request.extra_headers += b"X-Request-ID: 1\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (GET, b"200"),
        (b"malformed\r\n\r\n", b"400"),
        (b"GET /unfinished", b"408"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n", b"408"),
    ],
)
def test_the_hook_after_head_is_called_once_per_request(data: bytes, status: bytes) -> None:
    driver = Driver(service=HeaderPerCall())
    client, connection = driver.connect()
    with client:
        client.sendall(data)
        driver.run_once()
        if connection.state == RECEIVING:
            driver.step(connection, connection.expire)
        response = client.recv(1000)
        assert (response[9:12], response.count(b"X-Request-ID: 1\r\n")) == (status, 1)
    driver.end()


class ShortOfDescriptors(socket.socket):
    """A listening socket whose process has no free descriptors while ``short`` is set.

    Once ``short`` is cleared, the first accepted connection fails, as if its client had already disconnected.
    """

    short = True
    clients_gone = 1

    def accept(self) -> Any:
        if self.short:
            raise OSError(errno.EMFILE, "Too many open files")
        sock, peer = super().accept()
        if self.clients_gone:
            self.clients_gone -= 1
            sock.close()  # Using it then raises OSError, as if the client had disconnected.
        return sock, peer


def test_an_iteration_accepts_a_limited_number_of_connections() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    driver = Driver(listener)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(20)]
    while not driver.loop.connection_count():
        driver.run_once()
    assert driver.loop.connection_count() == 16
    driver.run_once()
    assert driver.loop.connection_count() == 20
    for client in clients:
        client.close()
    driver.end()


def test_an_iteration_expires_a_limited_number_of_connections(driver: Driver) -> None:
    clients = [driver.connect() for _ in range(200)]
    for _, connection in clients:
        connection.deadline = 0.0
    driver.run_once()
    assert sum(connection.state != OPEN for _, connection in clients) == _MAX_EXPIRED_PER_ITERATION
    driver.run_until(lambda: all(connection.state == CLOSED for _, connection in clients))
    for client, _ in clients:
        client.close()


def test_accepting_pauses_while_descriptors_are_exhausted(caplog: pytest.LogCaptureFixture) -> None:
    listener = ShortOfDescriptors(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    driver = Driver(listener)
    with (
        closing(socket.create_connection(listener.getsockname())),
        closing(socket.create_connection(listener.getsockname())) as client,
    ):
        client.settimeout(60)
        driver.run_once()
        driver.loop._sweep_at = time.monotonic() + 60  # Only a sweep resumes accepting.
        driver.loop.run_once()
        assert listener.fileno() not in driver.loop.shared.handlers
        assert caplog.text.count("cannot accept connections for now: [Errno 24] Too many open files") == 1
        listener.short = False
        client.sendall(GET)
        while not driver.loop.shared.connections:
            driver.run_once()
        driver.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    driver.end()


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "new_soft", "possible"),
    [
        (1024, 4096, 100, 1024, 100),
        (1024, resource.RLIM_INFINITY, 2000, 2100, 2000),
        (1024, 1500, 2000, 1500, 1400),
        (50, 100, 2000, 100, 1),
    ],
    ids=["enough", "no hard limit", "hard limit", "too low"],
)
def test_the_hard_limit_of_descriptors_limits_the_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, connections: int, new_soft: int, possible: int
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert _allow_descriptors(connections) == possible
    assert limits == [(new_soft, hard)]


# A full event loop

POST = b"POST /limit HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n"


class FullDriver(Driver):
    """An event loop with room for three connections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(socket.create_server(("127.0.0.1", 0)), max_connections=3, **options)
        self.clients: list[socket.socket] = []

    def accept(self, sent: bytes = b"") -> socket.socket:
        """Connect a client, send ``sent``, run two iterations, and return the client."""
        client = socket.create_connection(self.listener.sock.getsockname())
        client.settimeout(60)
        self.clients.append(client)
        client.sendall(sent)
        self.run_once()
        self.run_once()
        return client

    def end(self) -> None:
        super().end()
        for client in self.clients:
            client.close()


@pytest.fixture
def full() -> Iterator[FullDriver]:
    driver = FullDriver()
    driver.run_once()
    yield driver
    driver.end()


def test_a_full_loop_closes_the_oldest_incomplete_head(full: FullDriver) -> None:
    silent, byte, half = full.accept(), full.accept(b"P"), full.accept(POST[:-2])
    byte.sendall(b"O")  # A part of a head does not count as activity.
    for closed in (silent, byte, half):
        assert full.accept(GET).recv(1000).startswith(b"HTTP/1.1 200")
        assert closed.recv(1) == b""


def test_a_full_loop_closes_the_longest_idle_connection(full: FullDriver) -> None:
    clients = [full.accept(GET) for _ in range(3)]
    for client in clients:
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    first, *others = clients
    first.sendall(GET)
    full.run_once()
    for closed in others:
        full.accept()
        assert closed.recv(1) == b""
    assert first.recv(1000).startswith(b"HTTP/1.1 200")
    first.sendall(GET)
    full.run_once()
    assert first.recv(1000).startswith(b"HTTP/1.1 200")


def test_closing_a_connection_to_make_room_logs_nothing(full: FullDriver, caplog: pytest.LogCaptureFixture) -> None:
    closed = full.accept()
    for _ in range(3):
        full.accept()
    assert closed.recv(1) == b""
    assert caplog.messages == []


def test_a_full_loop_closes_a_stalled_upload_not_an_active_one(full: FullDriver) -> None:
    stalled, upload, _ = full.accept(POST + b"x"), full.accept(POST + b"x"), full.accept()
    for _ in range(3):
        upload.sendall(b"x")
        full.run_once()
        full.accept()
    assert stalled.recv(1) == b""
    upload.sendall(b"x" * 896)
    full.run_once()
    assert upload.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_full_loop_closes_clients_that_do_not_read(full: FullDriver) -> None:
    full.loop._max_buffered_bytes = 10**9
    non_reader = full.accept(GET.replace(b"/late", b"/large"))
    for _ in range(3):
        full.accept()
    with non_reader.makefile("rb") as received:
        assert len(received.read()) < 8_000_000


def test_new_clients_get_503_while_all_others_wait_for_responses() -> None:
    gated = GatedApp()
    full = FullDriver(app=gated, threads=3)
    full.run_once()
    served = [full.accept(GET) for _ in range(3)]
    assert full.accept().recv(1000).startswith(b"HTTP/1.1 503")
    full.listener.reserved_connections = 1
    reserved = full.accept(GET)
    assert full.accept().recv(1000).startswith(b"HTTP/1.1 503")
    gated.gate.set()
    while full.loop.pending_request_count():
        full.run_once()
    for client in (*served, reserved):
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    full.end()


def test_a_client_that_gets_503_is_not_logged_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    gated = GatedApp()
    full = FullDriver(app=gated, threads=1)
    full.run_once()
    for _ in range(3):
        full.accept(GET)
    assert full.accept().recv(1000).startswith(b"HTTP/1.1 503")
    assert caplog.messages == []
    gated.gate.set()
    while full.loop.pending_request_count():
        full.run_once()
    full.end()


def test_input_after_a_last_response_extends_the_linger_deadline(driver: Driver) -> None:
    client, connection = driver.connect()
    with client:
        client.sendall(POST.replace(b"900", b"1000000") + b"x")
        driver.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 413")
        first_deadline = connection.deadline
        while connection.deadline < first_deadline + 0.1:
            client.sendall(b"x")
            driver.run_once()
        assert connection.state == CLOSING
        connection._linger_until = connection.deadline
        client.sendall(b"x")
        driver.run_once()
        assert connection.deadline == connection._linger_until
        assert connection.buffered_bytes() == 0


def test_an_empty_line_after_a_request_starts_no_new_request(driver: Driver) -> None:
    client, connection = driver.connect()
    with client:
        client.sendall(GET + b"\r\n")
        driver.run_once()
        driver.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert connection.state is IDLE
        client.sendall(GET)
        driver.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.sendall(b"\r")
        driver.run_once()
        assert connection.state is IDLE


def test_a_body_may_begin_with_a_line_feed(driver: Driver) -> None:
    client, _ = driver.connect()
    with client:
        client.sendall(b"POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\n{}")
        driver.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_stopping_worker_waits_briefly_for_a_first_request(driver: Driver) -> None:
    driver.loop.stop()
    client, connection = driver.connect()
    assert connection.deadline == driver.loop.shared.now + STOPPING_SECONDS
    client.close()


def test_a_stopping_loop_serves_the_whole_backlog() -> None:
    driver = Driver(socket.create_server(("127.0.0.1", 0)))
    driver.run_once()
    # An iteration accepts 16 connections.
    clients = [socket.create_connection(driver.listener.sock.getsockname()) for _ in range(20)]
    for client in clients:
        client.sendall(GET)
    driver.loop.stop()
    driver.loop.run(60, lambda: None)
    for client in clients:
        with client:
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
    driver.end()


def test_a_stopping_worker_waits_briefly_for_a_client_to_close(driver: Driver) -> None:
    driver.loop.stop()
    client, connection = driver.connect()
    with client:
        client.sendall(GET)
        driver.run_until(lambda: connection.state == CLOSING)
        assert connection.deadline <= driver.loop.shared.now + STOPPING_SECONDS


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "after-a-request"])
def test_half_an_empty_line_does_not_delay_a_stop(driver: Driver, before: bytes) -> None:
    client, connection = driver.connect()
    with client:
        client.sendall(before)
        driver.run_once()
        client.sendall(b"\r")
        driver.run_once()
        driver.loop.stop()
        driver.loop._sweep()
        assert connection.deadline == driver.loop.shared.now + STOPPING_SECONDS


@pytest.mark.parametrize(("lines", "status"), [(0, b"200"), (1, b"200"), (2, b"400"), (3, b"400")])
def test_one_leading_empty_line_is_allowed_however_it_is_split(driver: Driver, lines: int, status: bytes) -> None:
    data = b"\r\n" * lines + GET
    for cut in range(1, 2 * lines + 2):
        client, _ = driver.connect()
        with client:
            for piece in (data[:cut], data[cut:]):
                client.sendall(piece)
                driver.run_once()
            assert client.recv(1000)[9:12] == status


TINY_CHUNKS = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100


@pytest.mark.parametrize("is_chunked", [False, True], ids=["sized", "chunked"])
@pytest.mark.parametrize(("size", "received"), [(1000, 1000), (1001, 0)])
def test_only_a_body_within_the_limit_reaches_the_application(
    driver: Driver, is_chunked: bool, size: int, received: int
) -> None:
    client, _ = driver.connect()
    with client:
        fields = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {size}"
        body = f"{size:x}\r\n{'x' * size}\r\n0\r\n\r\n" if is_chunked else "x" * size
        client.sendall(f"POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}".encode())
        driver.run_once()
        assert f'"body": "{"x" * received}"'.encode() in client.recv(10_000)


@pytest.mark.parametrize(
    ("version", "body_with_head"),
    [pytest.param(b"1.0", b"", id="HTTP/1.0"), pytest.param(b"1.1", b"b", id="body-has-begun")],
)
def test_no_100_continue_in_http_1_0_or_after_body_bytes(driver: Driver, version: bytes, body_with_head: bytes) -> None:
    client, connection = driver.connect()
    with client:
        fields = b"Host: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        client.sendall(b"POST / HTTP/%b\r\n%b%b" % (version, fields, body_with_head))
        driver.step(connection, connection.ready)
        assert connection.state == RECEIVING
        assert not is_readable(client)


def test_many_tiny_chunks_are_read_a_few_at_a_time(driver: Driver) -> None:
    client, connection = driver.connect()
    with client:
        client.sendall(TINY_CHUNKS + b"0\r\n\r\n")
        driver.step(connection, connection.ready)
        assert connection.state == RECEIVING
        driver.run_once()
        assert b"x" * 100 in client.recv(10_000)


def test_a_request_rejected_between_chunks_is_read_no_further(driver: Driver) -> None:
    client, connection = driver.connect()
    with client:
        client.sendall(TINY_CHUNKS)
        driver.step(connection, connection.ready)
        driver.step(connection, connection.reject, HTTPError(408))
        driver.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 408")
        assert client.recv(1000) == b""


def test_a_request_that_arrived_before_its_timeout_is_served(driver: Driver) -> None:
    client, connection = driver.connect()
    with client:
        for _ in range(2):  # The state is OPEN the first time, and IDLE the second.
            client.sendall(GET)
            driver.step(connection, connection.expire)
            assert connection.state is RESPONDING
            driver.run_once()
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        driver.step(connection, connection.expire)
        assert connection.state is CLOSED
        driver.step(connection, connection.close)  # Closing it again does nothing.
        assert connection.state is CLOSED


def test_a_spurious_wakeup_of_a_socket_is_ignored(driver: Driver) -> None:
    client, connection = driver.connect()
    with client:
        driver.step(connection, connection.ready)
        client.sendall(GET)
        driver.run_once()
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_probes_overtake_slow_calls_in_the_loop() -> None:
    called: list[str] = []

    def response(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        called.append(environ["PATH_INFO"])
        if environ["PATH_INFO"] == "/long":
            time.sleep(1.1 * _SWEEP_SECONDS)
        start_response("200 OK", [])
        return []

    class WithProbe(Service):
        non_blocking_paths = frozenset({"/probe"})

    busy = Driver(app=response, service=WithProbe())
    clients = [busy.connect() for _ in range(4)]
    for client, _ in clients[:3]:
        client.sendall(GET.replace(b"/late", b"/long"))
    busy.run_once()
    assert called == ["/long"]
    clients[3][0].sendall(GET.replace(b"/late", b"/probe"))
    # The second request is rejected while it waits, so the application is not called for it.
    busy.step(clients[1][1], clients[1][1].reject, HTTPError(503))
    busy.run_once()
    busy.run_once()
    busy.run_once()
    assert called == ["/long", "/probe", "/long"]
    for client, _ in clients:
        client.close()
    busy.end()


@pytest.mark.parametrize("threads", [0, 1], ids=["in-the-event-loop", "in-a-thread"])
def test_small_requests_overtake_large_ones(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr("plants.server.threads._LARGE_BODY_BYTES", 899)
    sizes: list[str] = []

    def note(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        sizes.append(environ["CONTENT_LENGTH"])
        start_response("200 OK", [])
        return []

    driver = Driver(app=note, threads=threads)
    clients = [driver.connect() for _ in range(4)]
    for (client, connection), size in zip(clients, (900, 899, 900, 1), strict=True):
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (size, b"x" * size))
        driver.step(connection, connection.ready)
    driver.run_until(lambda: len(sizes) == 4)
    assert sizes == ["899", "1", "900", "900"]
    driver.run_until(lambda: all(is_readable(client) for client, _ in clients))
    for client, _ in clients:
        client.close()
    driver.end()


def test_a_response_waits_while_the_socket_buffer_is_full(driver: Driver) -> None:
    client, connection = driver.connect()
    with client:
        filled = 0
        with suppress(BlockingIOError):
            while True:
                filled += connection.sock.send(b"x" * 1000)
        client.sendall(GET)
        driver.run_once()
        driver.step(connection, connection.ready)  # The socket buffer is still full.
        assert connection.state == WRITING
        with client.makefile("rb") as received:
            assert received.read(filled) == b"x" * filled
            driver.run_once()
            assert received.readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_thread_survives_an_error_response_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(service=Failing(), threads=1)
    for count in (1, 2):
        client, connection = driver.connect()
        with client:
            client.sendall(GET.replace(b"/late", b"/fail"))
            while caplog.text.count("the error response failed") < count:
                driver.run_once()
            connection.deadline = driver.loop.shared.now
            while connection.state != CLOSED:
                driver.run_once()
    driver.end()


class DeferredApp:
    """An application that defers the start of its responses, and records what happens to each."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        self.events.append(f"call {path}")
        if path == "/end":
            raise SystemExit
        return DeferredResponse(self.events, path, start_response)


class DeferredResponse:
    def __init__(self, events: list[str], path: str, start_response: Callable[..., Any]) -> None:
        self.events = events
        self.path = path
        self.start_response = start_response

    def __iter__(self) -> Iterator[bytes]:
        self.events.append(f"read {self.path}")
        if self.path == "/cancel":
            raise asyncio.CancelledError
        self.start_response("200 OK", [])
        yield b"late"

    def close(self) -> None:
        self.events.append(f"close {self.path}")


def events_of_a_batch(paths: list[str], *, one_per_iteration: bool = False) -> tuple[list[str], list[bytes]]:
    """Return the events of requests that one thread handles, and the start of each response.

    With ``one_per_iteration``, each request arrives in an iteration of its own; otherwise, all arrive in one iteration.
    """
    deferred = DeferredApp()
    driver = Driver(app=deferred, threads=1)
    clients = [driver.connect() for _ in paths]
    for (client, connection), path in zip(clients, paths, strict=True):
        client.sendall(GET.replace(b"/late", path.encode()))
        driver.step(connection, connection.ready)
        if one_per_iteration:
            driver.run_once()
    responses = []
    for client, connection in clients:
        with client:
            while connection.state == RESPONDING:
                driver.run_once()
            responses.append(client.recv(1000)[:12])
    driver.end()
    return deferred.events, responses


def test_requests_of_consecutive_iterations_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may take long between two iterations.
    monkeypatch.setattr("plants.server.threads._GATHER_SECONDS", 60)
    events, responses = events_of_a_batch(["/1", "/2", "/3"], one_per_iteration=True)
    assert events[:3] == ["call /1", "call /2", "call /3"]
    assert events[3:] == ["read /1", "close /1", "read /2", "close /2", "read /3", "close /3"]
    assert responses == [b"HTTP/1.1 200"] * 3


def test_a_failed_call_does_not_fail_the_rest_of_its_batch(caplog: pytest.LogCaptureFixture) -> None:
    events, responses = events_of_a_batch(["/end", "/cancel", "/3"])
    assert events[3:] == ["read /cancel", "close /cancel", "read /3", "close /3"]
    assert responses == [b"HTTP/1.1 500", b"HTTP/1.1 500", b"HTTP/1.1 200"]
    assert caplog.messages == ["the application failed"] * 2


def test_the_current_request_is_the_one_whose_response_is_read() -> None:
    pairs: list[tuple[str, object]] = []

    def respond(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [])
        request = current_request.get()
        pairs.append((environ["PATH_INFO"], request and request.path))
        yield b""

    driver = Driver(app=respond, threads=1)
    clients = [driver.connect() for _ in range(2)]
    for path, (client, connection) in enumerate(clients):
        client.sendall(GET.replace(b"late", b"%d" % path))
        driver.step(connection, connection.ready)
    driver.run_until(lambda: all(connection.state != RESPONDING for _, connection in clients))
    assert pairs == [("/0", "/0"), ("/1", "/1")]
    for client, _ in clients:
        client.close()
    driver.end()


@pytest.mark.parametrize("large_body_bytes", [0, -1], ids=["small", "large"])
def test_calls_left_over_by_a_batch_are_the_next_batch(monkeypatch: pytest.MonkeyPatch, large_body_bytes: int) -> None:
    monkeypatch.setattr("plants.server.threads._LARGE_BODY_BYTES", large_body_bytes)
    monkeypatch.setattr("plants.server.threads._MAX_CALL_SECONDS", -1)
    events, responses = events_of_a_batch(["/1", "/2"])
    assert events == ["call /1", "read /1", "close /1", "call /2", "read /2", "close /2"]
    assert responses == [b"HTTP/1.1 200"] * 2


@pytest.mark.parametrize(
    ("size", "paths"), [(1, ["/1", "/2", "/3"]), (900, ["/1", "/3", "/2"])], ids=["small", "large"]
)
def test_small_requests_overtake_large_ones_that_a_batch_left(
    monkeypatch: pytest.MonkeyPatch, size: int, paths: list[str]
) -> None:
    monkeypatch.setattr("plants.server.threads._LARGE_BODY_BYTES", 899)
    monkeypatch.setattr("plants.server.threads._MAX_CALL_SECONDS", -1)
    gated = GatedApp()
    driver = Driver(app=gated, threads=1)
    clients = [driver.connect() for _ in range(3)]
    for path, (client, connection) in enumerate(clients, start=1):
        length = size if path < 3 else 1
        client.sendall(b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (path, length) + b"x" * length)
        driver.step(connection, connection.ready)
        if path == 2:
            driver.run_once()
            driver.run_once()  # No other request has arrived, so the thread gets the first two.
            assert gated.calls.acquire(timeout=60)
    driver.run_once()
    gated.gate.set()
    driver.run_until(lambda: all(connection.state == IDLE for _, connection in clients))
    assert gated.paths == paths
    for client, _ in clients:
        client.close()
    driver.end()


def test_a_request_rejected_during_its_batch_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plants.server.threads._MAX_CALL_SECONDS", -1)
    gated = GatedApp()
    driver = Driver(app=gated, threads=1)
    paths = (b"/first", b"/rejected", b"/last")
    clients = [driver.connect() for _ in paths]
    for (client, connection), path in zip(clients, paths, strict=True):
        client.sendall(GET.replace(b"/late", path))
        driver.step(connection, connection.ready)
    driver.run_until(lambda: gated.paths)
    driver.step(clients[1][1], clients[1][1].reject, HTTPError(503))
    gated.gate.set()
    driver.run_until(lambda: all(connection.state != RESPONDING for _, connection in clients))
    assert [client.recv(1000)[9:12] for client, _ in clients] == [b"200", b"503", b"200"]
    assert gated.paths == ["/first", "/last"]
    for client, _ in clients:
        client.close()
    driver.end()


def test_only_a_server_with_threads_accepts_deferred_responses() -> None:
    for threads in (0, 1):
        environs: list[dict[str, Any]] = []

        def note(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
            environs.append(environ)  # noqa: B023  # It is called before the next round.
            start_response("200 OK", [])
            return []

        driver = Driver(app=note, threads=threads)
        client, _ = driver.connect()
        with client:
            client.sendall(GET)
            while not environs:
                driver.run_once()
        assert environs[0]["server.deferred_response"] is bool(threads)
        assert environs[0]["wsgi.version"] == (1, 0)
        driver.end()


def batch_sizes(data: bytes, **options: Any) -> list[int]:
    """Return how many requests each batch of one thread has, if five clients send ``data`` in one iteration."""
    deferred = DeferredApp()
    driver = Driver(app=deferred, threads=1, **options)
    clients = [driver.connect() for _ in range(5)]
    for client, connection in clients:
        client.sendall(data)
        driver.step(connection, connection.ready)
    for client, connection in clients:
        with client:
            while connection.state == RESPONDING:
                driver.run_once()
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
    driver.end()
    calls = groupby(event.startswith("call") for event in deferred.events)
    return [len(list(batch)) for is_call, batch in calls if is_call]


def test_a_batch_ends_at_a_limit_of_body_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plants.server.threads._MAX_BATCH_BYTES", 1800)
    assert batch_sizes(POST + b"x" * 900) == [2, 2, 1]


def test_a_batch_ends_at_the_maximum_number_of_requests() -> None:
    assert batch_sizes(GET, max_batch=2) == [2, 2, 1]


def test_a_request_does_not_wait_for_an_endless_batch() -> None:
    driver = Driver(threads=2)
    (first, connection), later = driver.connect(), []
    first.sendall(GET)
    driver.run_once()
    # In each iteration another request arrives, so the batch could grow without end.
    while driver.loop._calls._free_threads == driver.threads:
        later.append(driver.connect()[0])
        later[-1].sendall(GET)
        driver.run_once()
        assert len(later) < 400
    driver.run_until(lambda: connection.state != RESPONDING)
    assert first.recv(1000).startswith(b"HTTP/1.1 200")
    for client in (first, *later):
        client.close()
    driver.end()


def test_the_loop_is_idle_while_requests_wait_for_a_busy_thread() -> None:
    gated = GatedApp()
    driver = Driver(app=gated, threads=1)
    calls = driver.loop._calls
    for _ in range(2):
        gated.gate.clear()
        (running, _), (waiting, _) = driver.connect(), driver.connect()
        assert not calls.can_start()
        running.sendall(GET)
        driver.run_once()
        assert calls.can_start()
        driver.run_once()
        waiting.sendall(GET)
        driver.run_once()
        driver.run_once()
        assert len(calls.queued_jobs) == 1
        assert not calls.can_start()
        gated.gate.set()
        for client in (running, waiting):
            while not is_readable(client):
                driver.run_once()
            client.close()
    driver.end()


def test_each_completed_batch_wakes_the_loop() -> None:
    driver = Driver(threads=1)
    client, connection = driver.connect()
    with client:
        for _ in range(2):
            client.sendall(GET)
            driver.run_once()
            driver.run_once()
            assert select.select([driver.pipe[0]], [], [], 60)[0]
            driver.run_until(lambda: connection.state == IDLE)
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            assert not select.select([driver.pipe[0]], [], [], 0)[0]
    driver.end()


class FakePoll:
    """A poll object for which these descriptors are readable, in this order."""

    def __init__(self, *descriptors: int) -> None:
        self.descriptors = descriptors
        self.timeouts: list[float] = []

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        self.timeouts.append(timeout)
        return [(descriptor, select.POLLIN) for descriptor in self.descriptors]

    def register(self, _descriptor: int, _events: int) -> None:
        pass

    def unregister(self, _descriptor: int) -> None:
        pass


def test_the_loop_sleeps_only_if_it_has_no_work(driver: Driver) -> None:
    loop = driver.loop
    client, connection = driver.connect()
    dropped = connection, Request(driver.listener, {}, 0.0)
    work: list[tuple[Any, object]] = [
        (loop.shared.unfinished_connections, connection),
        (loop._loop_jobs, dropped),
        (loop._large_loop_jobs, dropped),
    ]
    with client, pytest.MonkeyPatch.context() as patch:
        loop.run_once()
        assert loop._sweep_at > loop.shared.now
        loop._sweep_at = time.monotonic() + 60
        idle = FakePoll()
        patch.setattr(loop.shared, "poll", idle)
        for queue, item in work:
            queue.append(item)
            loop.run_once()
            loop.run_once()
    assert [timeout > 0 for timeout in idle.timeouts] == [False, True] * 3


def test_the_loop_needs_no_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("select.epoll")
    driver = Driver()
    client, connection = driver.connect()
    with client:
        client.sendall(GET)
        driver.run_until(lambda: connection.state == IDLE)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        idle = FakePoll()
        monkeypatch.setattr(driver.loop.shared, "poll", idle)
        driver.loop._sweep_at = time.monotonic() + 60
        driver.loop.run_once()
        assert 1000 < idle.timeouts[0] <= 60_000  # in milliseconds
        monkeypatch.undo()
    driver.end()


def test_the_event_of_a_connection_that_the_same_iteration_closed_is_ignored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    driver = Driver(listener, max_connections=1)
    client, connection = driver.connect()
    with client, closing(socket.create_connection(listener.getsockname())):
        client.sendall(GET)
        driver.loop._listen(True)
        assert select.select([listener], [], [], 60)[0]
        both = FakePoll(listener.fileno(), connection.sock.fileno())
        monkeypatch.setattr(driver.loop.shared, "poll", both)
        driver.loop.run_once()
        assert connection.state == CLOSED
        assert driver.loop.connection_count() == 1
    assert not caplog.text
    driver.end()


class Recording(Service):
    """A service that records the path and the status of each response."""

    def __init__(self) -> None:
        self.responses: list[tuple[str, str]] = []

    def before_response(self, request: Request, response: Response) -> None:
        self.responses.append((request.path, response.status))


def test_a_late_response_is_dropped_after_a_503() -> None:
    gated, service = GatedApp(), Recording()
    driver = Driver(app=gated, service=service, threads=2)
    client, connection = driver.connect()
    with client:
        client.sendall(GET)
        driver.run_once()
        connection.deadline = driver.loop.shared.now
        while connection.state == RESPONDING:
            driver.run_once()
        gated.gate.set()
        while driver.loop._calls._free_threads < driver.threads:
            driver.run_once()
        response = client.recv(1000)
        assert response.startswith(b"HTTP/1.1 503")
        assert b"could not be answered in time" in response
        assert client.recv(1000) == b""
    # A second response could not reach the client, because the server closed its sending side after the 503. So check
    # which responses the service has seen.
    assert service.responses == [("/late", "503 Service Unavailable")]
    driver.end()


def test_input_during_a_slow_call_does_not_keep_the_loop_busy() -> None:
    gated = GatedApp()
    driver = Driver(app=gated, threads=2)
    client, connection = driver.connect()
    with client:
        client.sendall(GET)
        driver.run_once()
        client.sendall(b"\r\n")
        driver.run_once()
        assert connection.sock.fileno() not in driver.loop.shared.handlers
        gated.gate.set()
        driver.run_until(lambda: connection.state == IDLE)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    driver.end()


def test_the_queue_for_stuck_threads_drops_rejected_requests() -> None:
    gated = GatedApp()
    driver = Driver(app=gated, threads=2, max_batch=1)
    for number in range(60):
        client, connection = driver.connect()
        with client:
            client.sendall(GET)
            driver.run_once()
            driver.run_once()  # No other request has arrived, so a free thread gets this one.
            if number < driver.threads:
                assert gated.calls.acquire(timeout=60)
            else:
                driver.step(connection, connection.reject, HTTPError(503))
    assert len(driver.loop._calls.queued_jobs) <= 1
    gated.gate.set()
    while driver.loop._calls._free_threads < driver.threads:
        driver.run_once()
    assert not driver.loop._calls.queued_jobs
    driver.end()


def test_a_waiting_request_that_was_rejected_is_not_run() -> None:
    gated = GatedApp()
    driver = Driver(app=gated, threads=1)
    paths = (b"/first", b"/rejected", b"/last", b"/rejected")
    clients = [driver.connect() for _ in paths]
    for (client, connection), path in zip(clients, paths, strict=True):
        client.sendall(GET.replace(b"/late", path))
        while connection.state != RESPONDING:
            driver.run_once()
        if path == b"/first":
            driver.run_once()
            assert gated.calls.acquire(timeout=60)
    for _, connection in clients[1::2]:
        driver.step(connection, connection.reject, HTTPError(503))
    gated.gate.set()
    while clients[2][1].state == RESPONDING:
        driver.run_once()
    assert gated.paths == ["/first", "/last"]
    for client, _ in clients:
        client.close()
    driver.end()
