"""Random clients of one event loop, in random packets and order, against a model of the responses that each gets."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plants.server.tls import restricted
from tests.support.loop_driver import Driver
from tests.support.tls_client import TLSClient, make_certificate, trusting

LIMIT = 40_000


class Item(NamedTuple):
    """A part of what a client sends: its bytes, the status of the response, and the body that the application gets."""

    data: bytes
    status: int
    body: bytes = b""


def sized(body: bytes) -> Item:
    data = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    return Item(data, 200 if len(body) <= LIMIT else 413, body)


def chunked(body: bytes, size: int) -> Item:
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    data = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nX-A: b\r\n\r\n"
    return Item(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + data, 200, body)


bodies = st.binary(max_size=200) | st.sampled_from([b"x" * 17_000, b"y" * 33_000, b"z" * (LIMIT + 1)])
items = st.one_of(
    st.just(Item(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 200)),
    st.just(Item(b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 200)),
    bodies.map(sized),
    st.builds(chunked, st.binary(min_size=1, max_size=300), st.integers(3, 300)),
    st.sampled_from([b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 20 + b"\r\n\r\n"]).map(
        lambda data: Item(data, 400)
    ),
)


class Plan(NamedTuple):
    """What a client does: send the items in packets of these sizes, except for the last ``missing`` bytes, and end."""

    items: list[Item]
    packets: list[int]
    missing: int
    end: str


plans = st.builds(
    Plan,
    st.lists(items, max_size=4),
    st.lists(st.sampled_from([1, 2, 7, 100, 5000, 60_000]), min_size=1, max_size=6),
    st.sampled_from([0, 0, 0, 1, 3, 30]),
    st.sampled_from(["end", "end", "reset"]),
)


def expected(plan: Plan) -> list[Item]:
    """Return the model's responses: one for each item, until one of them ends the connection."""
    left = sum(len(item.data) for item in plan.items) - plan.missing
    responses: list[Item] = []
    for item in plan.items:
        is_complete = left >= len(item.data)
        if item.status == 413 and left > item.data.find(b"\r\n\r\n") + 3:
            return [*responses, item]
        if not is_complete:
            # A client that ends within a request gets 400; a line feed before it is no request.
            begun = item.data[: max(0, left)].lstrip(b"\r\n")
            return [*responses, Item(b"", 400)] if begun or left > 2 else responses
        responses.append(item)
        left -= len(item.data)
        if item.status != 200:
            break
    return responses


class Client:
    """A client that follows its plan, one packet at a time."""

    def __init__(self, driver: Driver, plan: Plan, context: ssl.SSLContext | None) -> None:
        self.plan = plan
        self.sock, _ = driver.connect()
        self.tls = TLSClient(context) if context else None
        self.received = b""
        while self.tls and (sent := self.tls.step(self._receive())):
            self.sock.sendall(sent)
            driver.run_once()
        data = b"".join(item.data for item in plan.items)
        self.left = data[: max(0, len(data) - plan.missing)]
        self.sizes = list(plan.packets)
        self.unsent = b""
        self.ended = False

    def _receive(self) -> bytes:
        self.sock.setblocking(False)
        with suppress(BlockingIOError, ConnectionError):
            return self.sock.recv(1_000_000)
        return b""

    def read(self) -> None:
        data = self._receive()
        self.received += self.tls.decrypt(data) if self.tls else data

    def act(self) -> None:
        """Send the next packet, or what the server has not accepted of the last one; after all packets, end."""
        if not self.unsent and self.left:
            size = self.sizes.pop(0)
            self.sizes.append(size)
            # Few packets of one byte, because there would be thousands of them.
            packet, self.left = self.left[:size], self.left[size:]
            if size < 100 and len(self.left) > 2000:
                packet, self.left = packet + self.left[:-2000], self.left[-2000:]
            self.unsent = self.tls.encrypt(packet) if self.tls else packet
        if self.unsent:
            self._send()
        elif self.plan.end == "end":
            self.ended = True
            self.sock.shutdown(socket.SHUT_WR)
        else:
            self.ended = True
            self.sock.close()

    def _send(self) -> None:
        self.sock.setblocking(False)
        try:
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
        except BlockingIOError:
            pass
        except ConnectionError:  # The server has rejected what came before.
            self.unsent = self.left = b""

    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.received.split(b"HTTP/1.1 ")[1:]]


class Recorder:
    """An application that records the bodies that it gets."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        with self.lock:
            self.bodies.append(environ["wsgi.input"].read())
        start_response("200 OK", [])
        return [b"done"]


@pytest.fixture(scope="module", params=["in-the-event-loop", "in-threads", "tls"])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    recorder = Recorder()
    context = None
    if request.param == "tls":
        pem: Path = make_certificate(tmp_path_factory.mktemp("certificate"))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pem)
        restricted(context)
    threads = 2 if request.param == "in-threads" else 0
    driver = Driver(app=recorder, threads=threads, body_bytes=LIMIT, places=8, tls=context)
    yield driver, recorder, trusting() if context else None
    driver.end()


@settings(max_examples=60, deadline=None)
@given(plans=st.lists(plans, min_size=1, max_size=4), order=st.lists(st.integers(0, 3), max_size=30))
def test_every_client_gets_what_the_model_says(setup: Any, plans: list[Plan], order: list[int]) -> None:
    driver, recorder, context = setup
    recorder.bodies.clear()
    clients = [Client(driver, plan, context) for plan in plans]
    for number in order:  # Any order, and then one after the other.
        if number < len(clients) and not clients[number].ended:
            clients[number].act()
            driver.run_once()
    for client in clients:
        while not client.ended:
            client.act()
            driver.run_once()
            if client.plan.end == "end":
                client.read()

    def is_done() -> bool:
        for client in clients:
            if client.plan.end == "end":
                client.read()
        return not driver.loop.shared.connections

    driver.run_until(is_done)
    driver.run_once()
    driver.assert_nothing_is_held()
    finished = [client for client in clients if client.plan.end == "end"]
    for client in finished:
        client.read()
        client.sock.close()
        assert client.statuses() == [item.status for item in expected(client.plan)]
    if len(finished) == len(clients):
        called = [item.body for client in clients for item in expected(client.plan) if item.status == 200]
        assert sorted(recorder.bodies) == sorted(called)
