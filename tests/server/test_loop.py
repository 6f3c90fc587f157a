"""The event loop, iteration by iteration: what one connection does harms no other one, and nothing is left of it."""

import errno
import gc
import re
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from plants.server.config import SMALL_BODY_BYTES
from plants.server.exchange import Exchange, current
from plants.server.hooks import Hooks
from plants.server.loop import allow_descriptors
from plants.server.request import HTTPError
from plants.server.response import Response
from plants.server.state import CLOSED, CLOSING, IDLE, OPEN, RECEIVING, RESPONDING, WRITING, State, network_of
from tests.support.loop_driver import CONFIG, GET, PIPE, Driver, GatedApp, Make, get, is_readable, post


class Failing(Hooks):
    """Hooks that raise an exception before each response to /unlogged, and instead of each error response."""

    def before_response(self, exchange: Exchange, response: Response) -> None:
        if exchange.path == "/unlogged":
            raise RuntimeError("no log", response.status)

    def error_response(self, error: HTTPError, exchange: Exchange) -> Response:
        raise RuntimeError("no error response", error, exchange)


@pytest.mark.parametrize(
    ("path", "received", "logged"),
    [("/unlogged", b"HTTP/1.1 200", "no log"), ("/in_the_middle", b"", "a fault in the middle.*no error response")],
)
def test_a_log_that_fails_costs_no_response_and_other_failures_one(
    make: Make, path: str, received: bytes, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make(hooks=Failing())
    clients = [driver.connect(get(target))[0] for target in ("/late", path, "/late")]
    driver.run_until_readable(*clients)
    assert [client.recv(1000)[:12] for client in clients] == [b"HTTP/1.1 200", received, b"HTTP/1.1 200"]
    assert re.search(logged, caplog.text, re.DOTALL)


def test_a_state_that_cannot_follow_closes_the_connection(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    _, connection = driver.connect(b"GET\r\n\r\n")
    driver.run_until_state(connection, CLOSING)
    driver.step(connection, connection.reject, HTTPError(400))
    assert connection.state is CLOSED
    assert "a connection that is closing cannot become receiving" in caplog.text


@pytest.fixture
def gated() -> Iterator[GatedApp]:
    app = GatedApp()
    yield app
    app.gate.set()


LARGE_BODY = 2 * SMALL_BODY_BYTES

STATES = {
    "before the request": (b"\r\n", OPEN),
    "in the head": (GET[:-2], RECEIVING),
    "in a large body": (post("/trusted", LARGE_BODY)[:-1], RECEIVING),
    "idle": (GET, IDLE),
    "idle after a large body": (post("/trusted", LARGE_BODY), IDLE),
    "idle, with the next request": (GET + b"\r", IDLE),
    "not reading": (get("/trusted/large"), WRITING),
    "refused with a token": (post("/trusted/refused", 900)[:-1], CLOSING),
}


@pytest.mark.parametrize(("sent", "state"), STATES.values(), ids=STATES)
@pytest.mark.parametrize("end", ["close", "expire", "disconnect"])
def test_nothing_is_held_however_a_connection_ends(make: Make, sent: bytes, state: State, end: str) -> None:
    driver = make(body_bytes=10**6, response_seconds=6000)
    began = driver.loop.shared.now
    client, connection = driver.connect(sent)
    driver.run_until_state(connection, state)
    seconds = CONFIG.keepalive_seconds if state is IDLE else CONFIG.request_seconds
    assert began + seconds <= connection.deadline <= driver.loop.shared.now + seconds
    driver.run_once()
    if end == "expire":
        driver.step(connection, connection.expire)
        if state in (OPEN, RECEIVING):
            assert client.recv(1000)[9:12] == (b"408" if state == RECEIVING else b"")
    elif end == "close":
        driver.step(connection, connection.close)
        driver.step(connection, connection.close)  # Closing it again does nothing.
    client.close()
    driver.run_until(lambda: not driver.loop.shared.connections)
    driver.run_once()
    driver.assert_nothing_is_held()


def test_a_request_in_flight_holds_nothing_after_a_close(make: Make, gated: GatedApp) -> None:
    driver = make(app=gated, threads=1, body_bytes=10**6, response_seconds=6000)
    exchanges: list[Any] = []
    for sent in (GET, post("/waiting", 900), post("/large", LARGE_BODY)):
        connected = driver.loop.shared.now
        _, connection = driver.connect(sent)
        driver.run_until_state(connection, RESPONDING)
        assert connection.deadline == driver.loop.shared.now + 6000
        exchanges.append(connection.exchange)
        assert exchanges[-1].started > connected  # The duration in the log begins with the first byte.
    driver.run_until(lambda: gated.paths)
    driver.close_all()
    driver.assert_nothing_is_held()
    assert [len(exchange.body.content) for exchange in exchanges] == [0, 0, 0]


def turned_away(caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of clients that the log reports as turned away."""
    return sum(map(int, re.findall("full: ([0-9]+) clients were turned away", caplog.text)))


def test_a_large_body_without_a_slot_is_503_others_finish(make: Make) -> None:
    driver = make(body_bytes=10**6, slots=2)
    uploads = [driver.connect(post("/", LARGE_BODY)[:-1])[0] for _ in range(2)]
    driver.run_until(lambda: len(driver.loop.shared.slot_holders) == 2)
    rejected, _ = driver.connect(post("/", LARGE_BODY)[:-1])
    assert driver.status(rejected) == 503
    small, _ = driver.connect(post("/", 900))
    assert driver.status(small) == 200
    for client in uploads:
        client.sendall(b"x")
        assert driver.status(client) == 200
    assert not driver.loop.shared.slot_holders


def test_clients_that_do_not_read_are_closed_without_a_slot_and_the_log_warns_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make(slots=1)
    connections = [driver.connect(get("/trusted/large"))[1] for _ in range(3)]
    driver.run_until(lambda: turned_away(caplog) == 2)
    assert sorted(connection.state.name for connection in connections) == ["closed", "closed", "writing"]
    _, last = driver.connect(get("/trusted/large"))
    driver.run_until_state(last, CLOSED)
    driver.sweeps.clear()
    driver.run_until(lambda: len(driver.sweeps) > 1)
    assert (turned_away(caplog), driver.loop.shared.turned_away) == (2, 1)  # The next warning comes after 10 s.


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "possible"),
    [
        (1024, 4096, 2000, 2000),
        (1024, 1500, 2000, 1400),
        (256, 2**63 - 1, 20_000, 156),
        (64, 64, 1000, 0),
    ],
    ids=["raised", "hard limit", "as on macOS", "too low"],
)
def test_the_limit_of_descriptors_limits_the_connections(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    connections: int,
    possible: int,
) -> None:
    limits = [soft]

    def set_limit(_: int, limit: tuple[int, int]) -> None:
        if limit[0] > 10_240:  # as macOS does
            raise ValueError("current limit exceeds maximum limit")
        limits.append(limit[0])

    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    if not possible:
        with pytest.raises(ValueError, match="worker_connections=1000 and ulimit -n 64 allow no connections"):
            allow_descriptors(connections)
        return
    assert make(connections=connections).loop.shared.config.connections == possible
    assert limits[-1] >= possible + 100
    assert (f"(ulimit -n) allows only {possible} connections" in caplog.text) == (possible < connections)


@pytest.mark.parametrize(
    ("version", "framing", "size", "end"),
    [
        (b"1.1", b"Content-Length: 1000", b"", b""),
        (b"1.1", b"Transfer-Encoding: chunked", b"3e8\r\n", b"\r\n0\r\n\r\n"),
        (b"1.0", b"Content-Length: 1000", b"", b""),
    ],
)
def test_100_continue_is_sent_once(driver: Driver, version: bytes, framing: bytes, size: bytes, end: bytes) -> None:
    head = b"POST /trusted HTTP/%b\r\nHost: a\r\nExpect: 100-Continue\r\n%b\r\n\r\n" % (version, framing)
    client, _ = driver.connect(head)
    first = b"HTTP/1.1 100 Continue\r\n\r\n" if version == b"1.1" else b""
    for part, response in ((b"", first), (size + b"x", b""), (b"x" * 999 + end, b"HTTP/1.1 200")):
        client.sendall(part)
        driver.run_once()
        assert is_readable(client) == bool(response)
        received = client.recv(10_000) if response else b""
        assert received.startswith(response)
    assert b'"body": "%b"' % (b"x" * 1000) in received


class FullDriver(Driver):
    """An event loop with room for three connections, and for ``public_connections`` that have shown no token."""

    def __init__(self, public_connections: int = 0, **options: Any) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        super().__init__(listener, connections=3, public_connections=public_connections, **options)
        self.run_once()

    def accept(self, sent: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
        """Connect a client from this address, send ``sent``, run two iterations, and return the client."""
        address = self.listener.sock.getsockname()
        client = socket.create_connection(address, timeout=60, source_address=(host, 0))
        self.clients.append(client)
        client.sendall(sent)
        self.run_once()
        self.run_once()
        return client


@pytest.mark.parametrize(
    ("waiting", "new", "evicted"),
    [
        ("", "1.1.1.1", None),
        ("1.1.1.1 2.2.2.2 2.2.2.2", "1.1.1.1", 1),
        ("1.1.1.1 2.2.2.2", "2.2.2.2", 1),
        ("1.1.1.1 2.2.2.2", "3.3.3.3", 0),
        ("1.1.1.1 a:b:c:d:1:: a:b:c:d:2::%eth0 a:b:c:e::", "1.1.1.1", 1),
        ("a:: ::ffff:1.1.1.1 ::ffff:1.1.1.2 ::ffff:1.1.1.1", "b::", 1),
        ("token token 1.1.1.1", "2.2.2.2", 2),
        ("token token", "1.1.1.1", 0),
    ],
)
def test_eviction_is_from_the_network_with_most_connections(
    make: Make, waiting: str, new: str, evicted: int | None
) -> None:
    shared = make().loop.shared
    for number, host in enumerate(waiting.split()):
        (shared.idle_trusted if host == "token" else shared.strangers)[number] = network_of(host)
    assert shared.connection_to_evict(network_of(new)) == evicted
    shared.strangers.clear()
    shared.idle_trusted.clear()


def test_a_full_loop_reads_before_it_accepts_the_next_client(make: Make) -> None:
    full = make(kind=FullDriver)
    for number in range(3):
        full.accept(host=f"127.0.1.{number + 1}")  # As many addresses as there is room for, each with one connection.
    address = full.listener.sock.getsockname()
    clients = [socket.create_connection(address, timeout=60) for _ in range(3)]
    full.clients += clients
    for client in clients:
        client.sendall(GET)
    full.run_once()
    full.run_once()
    assert [client.recv(1000)[:12] for client in clients] == [b"HTTP/1.1 200"] * 3


def test_a_full_loop_evicts_the_longest_inactive_connection(make: Make) -> None:
    full = make(kind=FullDriver)
    silent, byte, unread = full.accept(), full.accept(b"P"), full.accept(get("/large"))
    byte.sendall(b"O")  # A part of a head does not count as activity.
    clients = []
    for closed in (silent, byte, unread):
        clients.append(full.accept(GET))
        while closed.recv(1_000_000):
            pass
    clients[0].sendall(GET)
    full.run_once()
    for closed in clients[1:]:
        full.accept()
        assert closed.recv(1000).count(b"HTTP/1.1 200") == 1
        assert closed.recv(1) == b""
    assert clients[0].recv(1000).count(b"HTTP/1.1 200") == 2


def test_a_full_loop_closes_idle_clients_with_a_token_last(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    full = make(kind=FullDriver)
    upload = full.accept(post("/trusted", 900)[:-1])
    honest, *crowd = [full.accept(host=f"127.0.0.{number}") for number in (2, 3, 3, 3, 3)]
    assert [bool(client.recv(1) == b"") for client in crowd[:3]] == [True] * 3
    assert not is_readable(honest)  # The only client of its address is not closed for another one of another address.
    upload.sendall(b"x")
    assert full.status(upload) == 200
    waiting, _ = full.accept(get("/trusted") + post("/trusted", 900)[:-1]), full.accept(get("/trusted/large"))
    assert waiting.recv(10_000).startswith(b"HTTP/1.1 200")
    newest = full.accept(post("/trusted", 900)[:-1])
    assert upload.recv(1) == b""  # Among clients with a token, only an idle one is closed.
    assert full.accept().recv(1000).startswith(b"HTTP/1.1 503")
    assert not any(is_readable(client) for client in (newest, waiting))
    full.run_until(lambda: turned_away(caplog) == 7)


@pytest.mark.parametrize("public_connections", [0, 1])
def test_a_full_loop_closes_the_longest_idle_client_with_a_token(make: Make, public_connections: int) -> None:
    full = make(public_connections, kind=FullDriver)
    first, second, third = (full.accept(get("/trusted")) for _ in range(3))
    first.sendall(get("/trusted"))
    full.run_once()
    full.accept(get("/trusted"))
    assert [client.recv(10_000).count(b"HTTP/1.1 200") for client in (first, second, third)] == [2, 1, 1]
    assert second.recv(1) == b""
    assert not is_readable(first)
    assert not is_readable(third)


CROWDS = {
    "wait for a probe": (get("/public"), RESPONDING),
    "do not close": (get("/trusted/free").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), CLOSING),
}


@pytest.mark.parametrize(("sent", "state"), CROWDS.values(), ids=CROWDS)
def test_a_full_loop_evicts_clients_that(make: Make, gated: GatedApp, sent: bytes, state: State) -> None:
    full = make(kind=FullDriver, app=gated, threads=1)
    for _ in range(3):
        full.accept(sent)
    full.run_until(lambda: all(connection.state is state for connection in full.loop.shared.connections))
    assert full.status(full.accept(get("/trusted/free"))) == 200


def test_new_clients_get_503_while_all_others_wait_for_responses(make: Make, gated: GatedApp) -> None:
    full = make(kind=FullDriver, app=gated, threads=3)
    served = [full.accept(get("/trusted")) for _ in range(3)]
    for _ in range(40):
        turned_away = full.accept()
        for _ in range(2):  # A reset after the first of them would make the second fail.
            turned_away.sendall(b"GET")
            full.run_once()
        assert turned_away.recv(1000).startswith(b"HTTP/1.1 503")
    assert len(full.loop.shared.connections) < 40
    full.listener.reserved_connections = 1
    reserved = full.accept(GET)
    assert full.accept().recv(1000).startswith(b"HTTP/1.1 503")
    gated.gate.set()
    full.run_until(lambda: not full.loop.pending_request_count())
    for client in (*served, reserved):
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


class ShortOfDescriptors(socket.socket):
    """A listening socket whose process has no free descriptors while ``short`` is set.

    Once ``short`` is cleared, the first accepted connection fails, as if its client had already disconnected.
    """

    short = True
    failures = 0
    clients_gone = 1

    def accept(self) -> Any:
        if self.short:
            self.failures += 1
            raise OSError(errno.EMFILE, "Too many open files")
        sock, peer = super().accept()
        if self.clients_gone:
            self.clients_gone -= 1
            sock.close()  # Using it then raises OSError, as if the client had disconnected.
        return sock, peer


def test_accepting_pauses_while_descriptors_are_exhausted(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    listener = ShortOfDescriptors(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    driver = make(listener)
    address = listener.getsockname()
    with closing(socket.create_connection(address)), closing(socket.create_connection(address, 60)) as client:
        driver.run_until(lambda: listener.failures > 2)
        assert listener.failures <= len(driver.sweeps)  # It tries again after a check of the deadlines, not at once.
        assert caplog.messages == ["cannot accept connections for now: [Errno 24] Too many open files"]
        listener.short = False
        client.sendall(GET)
        assert driver.status(client) == 200
        listener.short = True
        driver.loop.stop()
        driver.loop.run(0)  # It ends, although it cannot accept the backlog.


def test_the_event_of_a_connection_just_evicted_is_ignored(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    full = make(kind=FullDriver)
    clients = [full.accept() for _ in range(3)]
    # The event of the listener comes first. Accepting this client closes another one, whose event follows.
    with closing(socket.create_connection(full.listener.sock.getsockname(), 60)):
        for client in clients:
            client.sendall(GET)
        full.run_once()
        full.run_until_readable(*clients)
        closed, *others = clients
        with pytest.raises(ConnectionResetError):
            closed.recv(1000)
        assert [client.recv(1000)[9:12] for client in others] == [b"200", b"200"]
    assert not any("failed" in message for message in caplog.messages)


@pytest.mark.parametrize("missing", ["select.kqueue", "select.epoll"])
def test_a_loop_watches_both_directions_and_sleeps(make: Make, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delattr(missing, raising=False)
    driver = make()
    client, connection = driver.connect(get("/trusted/large"))
    driver.run_until_state(connection, WRITING)
    deadlines = set()
    while connection.state == WRITING:
        deadlines.add(connection.deadline)
        client.recv(100_000)
        driver.run_once()
    assert len(deadlines) == 1  # A client that reads slowly gets no more time.
    client.sendall(GET)
    driver.run_until_readable(client)
    driver.sweeps.clear()
    for _ in range(4):
        driver.loop.run_once()
    assert len(driver.sweeps) > 2  # Each iteration waits for an event, or for the next check of the deadlines.


def test_tiny_chunks_are_read_a_few_at_a_time_without_a_pause(make: Make) -> None:
    driver = make(body_bytes=10**6)
    start = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nxx\r\n" * 2300
    client, connection = driver.connect()
    driver.step(connection, connection.ready)  # A spurious wakeup is ignored.
    client.sendall(start + b"0\r\n\r\n")
    driver.step(connection, connection.ready)
    assert connection.state == RECEIVING
    while not is_readable(client):
        driver.loop.run_once()
    assert b"x" * 4600 in client.recv(100_000)
    assert len(driver.sweeps) < 18  # It does not wait between two of the 36 steps.


def test_an_iteration_expires_a_limited_number_of_connections(driver: Driver) -> None:
    clients = [driver.connect() for _ in range(200)]
    for _, connection in clients:
        connection.deadline = 0.0
    driver.run_until(lambda: any(connection.state == CLOSED for _, connection in clients))
    assert sum(connection.state == CLOSED for _, connection in clients) < 100
    driver.run_until(lambda: all(connection.state == CLOSED for _, connection in clients))


def test_an_iteration_limits_its_calls_and_probes_take_turns(make: Make) -> None:
    called: list[str] = []

    def slow(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        called.append(environ["PATH_INFO"])
        time.sleep(0.06)
        start_response("200 OK", [])
        return []

    driver = make(app=slow, max_requests=150)
    for number in range(200):
        driver.connect(get(f"/{number}"))
    driver.run_until(lambda: called)
    assert driver.loop.shared.stopping  # More requests than max_requests have arrived in one iteration.
    first = len(called)  # 2, or 1 if the machine is so busy that one call takes 0.1 s
    assert called == ["/0", "/1"][:first]
    for _ in range(2):
        driver.connect(get("/probe"))
    driver.run_until(lambda: len(called) > first)
    second = len(called) - first
    assert called[first:] == ["/probe", f"/{first}"][:second]


THREADS = pytest.mark.parametrize("threads", [0, 1], ids=["in-the-event-loop", "in-a-thread"])


def test_an_iteration_calls_small_requests_then_one_large_one(make: Make, gated: GatedApp) -> None:
    driver = make(app=gated, body_bytes=10**6)
    for path in ("/free/1", "/free/2"):
        driver.connect(post(path, LARGE_BODY))
    driver.run_until(lambda: gated.paths)
    driver.connect(get("/free/small"))
    driver.run_until(lambda: len(gated.paths) == 3)
    assert gated.paths == ["/free/1", "/free/small", "/free/2"]


def test_threads_call_small_requests_at_once_and_large_ones_in_turn(make: Make, gated: GatedApp) -> None:
    driver = make(app=gated, threads=2, body_bytes=10**6)
    clients = [driver.connect(data)[0] for data in [post("/large", LARGE_BODY)] * 2 + [get("/small")] * 3]
    driver.run_until(lambda: len(gated.paths) > 2 and len(driver.sweeps) > 1)
    assert sorted(gated.paths) == ["/large", "/small", "/small"]
    assert (len(driver.loop.shared.slot_holders), driver.loop.pending_request_count()) == (2, 5)
    gated.gate.set()
    driver.run_until_readable(*clients)


@pytest.mark.parametrize("data", [GET, post("/limit", 40_000)], ids=["small", "large"])
def test_the_queue_for_stuck_threads_drops_rejected_requests(make: Make, gated: GatedApp, data: bytes) -> None:
    driver = make(app=gated, threads=1, body_bytes=10**6)
    of_other_tests = sum(type(each) is Exchange for each in gc.get_objects())
    for number in range(60):
        _, connection = driver.connect(data)
        driver.run_until_state(connection, RESPONDING)
        if number:
            driver.step(connection, connection.reject, HTTPError(503))
        else:
            driver.run_until(lambda: gated.paths)
    assert sum(type(each) is Exchange for each in gc.get_objects()) < of_other_tests + 5
    gated.gate.set()
    assert driver.status(driver.clients[0]) == 200
    assert len(gated.paths) == 1


class PendingApp:
    """An application that leaves work for each part of the path; ``done`` has what completes it, once it has begun."""

    def __init__(self) -> None:
        self.done: dict[str, Any] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        for part in environ["PATH_INFO"].split("+"):
            environ["server.pending"].append((partial(self.begin, part), partial(self.fail, part)))
        start_response("200 OK" if part != "/rejected" else "400 Bad Request", [])
        return [b"late"]

    def begin(self, part: str, done: Any, key: Any) -> None:
        if part == "/down":
            raise SystemExit("down")
        self.report = done
        self.done[part] = lambda error: done([(key, error)])

    @staticmethod
    def fail(part: str, error: BaseException) -> tuple[int, list[tuple[str, str]], bytes]:
        assert current.request
        if part == "/worse":
            raise SystemExit("worse")
        return 503, [], str(error).encode()


@THREADS
def test_a_response_waits_for_pending_work_and_no_other_does(make: Make, threads: int) -> None:
    app = PendingApp()
    driver = make(app=app, threads=threads)
    (first, _), (second, _), (both, _) = (driver.connect(get(path)) for path in ("/first", "/second", "/third+/fourth"))
    driver.run_until(lambda: app.done.keys() == {"/first", "/second", "/third"})
    app.done["/second"](None)
    assert select.select([PIPE[0]], [], [], 60)[0]  # The outcome wakes the loop.
    assert driver.status(second) == 200
    assert not is_readable(first)
    app.done["/first"](RuntimeError("lost"))
    driver.run_until_readable(first)
    assert first.recv(1000).endswith(b"\r\n\r\nlost")
    app.done["/third"](None)
    driver.run_until(lambda: "/fourth" in app.done)
    app.done["/fourth"](None)
    assert driver.status(both) == 200


@THREADS
def test_a_failure_of_pending_work_ends_no_thread(make: Make, threads: int, caplog: pytest.LogCaptureFixture) -> None:
    app = PendingApp()
    driver = make(app=app, threads=threads)
    failures = {"/worse": SystemExit(), "/first": SystemExit(), "/second": None}
    statuses = {"/down": 503, "/worse": 500, "/rejected": 400, "/first+/third": 503, "/second+/down": 503}
    for path, status in statuses.items():
        client, _ = driver.connect(get(path))
        begun = path.partition("+")[0]
        if begun in failures:
            driver.run_until(lambda begun=begun: begun in app.done)
            app.done[begun](failures[begun])
        assert driver.status(client) == status
    assert app.done.keys() == failures.keys()
    assert caplog.messages == ["the response to a failure failed"]


@pytest.mark.parametrize("outcomes", [None, ["key"], [("key", None)]], ids=str)
def test_an_outcome_that_nobody_waits_for_fails_only_its_reporter(make: Make, outcomes: Any) -> None:
    app = PendingApp()
    driver = make(app=app)
    driver.connect(GET)
    driver.run_until(lambda: app.done)
    with pytest.raises((AttributeError, TypeError, ValueError)):
        app.report(outcomes)
    driver.run_once()


def test_after_a_timeout_and_its_503_no_call_and_no_pending_work_begins(make: Make, gated: GatedApp) -> None:
    app = PendingApp()
    driver = make(app=lambda *arguments: gated(*arguments) and app(*arguments), threads=2)
    clients = [driver.connect(get(path)) for path in ("/late", "/rejected", "/queued", "/last")]
    for _, connection in clients:
        driver.run_until_state(connection, RESPONDING)
    driver.run_until(lambda: len(gated.paths) == 2)
    for client, connection in clients[:3]:
        driver.step(connection, connection.expire)
        assert b"could not be answered in time" in client.recv(1000)
        assert client.recv(1000) == b""
    gated.gate.set()
    driver.run_until(lambda: app.done)
    assert (sorted(gated.paths), [*app.done]) == (["/last", "/late", "/rejected"], ["/last"])
    app.done["/last"](None)
    driver.run_until_readable(clients[3][0])
    assert driver.hooks.statuses == ["/late 503", "/rejected 503", "/queued 503", "/last 200"]


def test_the_end_of_a_call_wakes_the_loop_but_not_input_during_it(make: Make, gated: GatedApp) -> None:
    driver = make(app=gated, threads=1, body_bytes=10**6)
    for data in (GET, GET, post("/large", 40_000)):
        client, connection = driver.connect(data)
        driver.run_until_state(connection, RESPONDING)
        client.sendall(b"\r\n")
        driver.run_once()
        assert connection.sock.fileno() not in driver.loop.shared.handlers
        gated.gate.set()
        assert select.select([PIPE[0]], [], [], 60)[0]
        assert driver.status(client) == 200
        gated.gate.clear()


def test_only_after_max_requests_slow_clients_have_one_second(make: Make, gated: GatedApp) -> None:
    driver = make(app=gated, threads=1, max_requests=4)
    slow, reader, called, unused = (driver.connect(data)[1] for data in (GET[:-1], get("/free/long"), GET, b""))
    driver.run_until_state(reader, WRITING)
    driver.loop.stop()
    driver.run_until_state(unused, CLOSED)
    later = driver.loop.shared.now + 30
    assert min(slow.deadline, reader.deadline) > later
    for client in [driver.connect()[0] for _ in range(2)]:
        client.sendall(GET)  # Both are called in one iteration.
    driver.run_until(lambda: slow.deadline < later)
    assert slow.deadline == reader.deadline == driver.loop.shared.now + 1
    assert called.deadline > later  # The application may take its time.


def test_a_stopping_loop_serves_the_whole_backlog(make: Make) -> None:
    driver = make(socket.create_server(("127.0.0.1", 0), backlog=400))
    driver.run_once()
    # An iteration accepts fewer connections.
    clients = [socket.create_connection(driver.listener.sock.getsockname(), 60) for _ in range(300)]
    for client in clients:
        client.sendall(GET)
    driver.loop.stop()
    driver.loop.run(60)
    for client in clients:
        with client:
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
    driver.assert_nothing_is_held()
    assert driver.listener.sock.fileno() == -1  # Nobody accepts a later client, so it must be refused.
