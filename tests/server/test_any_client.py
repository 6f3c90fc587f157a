"""Random clients of one event loop, in random packets and order, against a model of the responses that each gets."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.loop_driver import Driver, Recorder
from tests.support.tls_client import TLSClient, make_certificate, server_context, trusting

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
    """What a client does: send the items, cut at these positions, and end."""

    items: list[Item]
    cuts: list[int]

    def packets(self) -> list[bytes]:
        data = b"".join(item.data for item in self.items)
        ends = sorted({0, len(data), *(cut for cut in self.cuts if cut < len(data))})
        return [data[start:end] for start, end in pairwise(ends)]


plans = st.builds(
    Plan, st.lists(items, max_size=4), st.lists(st.integers(1, 200) | st.integers(1, 100_000), max_size=8)
)


def expected(plan: Plan) -> list[Item]:
    """Return the model's responses: one for each item, until one of them ends the connection."""
    end = next((number for number, item in enumerate(plan.items, 1) if item.status != 200), None)
    return plan.items[:end]


class Client:
    """A client that follows its plan, one packet at a time."""

    def __init__(self, driver: Driver, plan: Plan, context: ssl.SSLContext | None) -> None:
        self.driver = driver
        self.plan = plan
        self.packets = plan.packets()
        self.received = b""
        self.ended = False
        self.sock, _ = driver.connect()
        self.sock.setblocking(False)
        self.tls = TLSClient(context) if context else None
        while self.tls and (sent := self.tls.step(self._receive())):
            self.sock.sendall(sent)
            driver.run_once()

    def _receive(self) -> bytes:
        with suppress(BlockingIOError, ConnectionError):
            return self.sock.recv(1_000_000)
        return b""

    def read(self) -> None:
        data = self._receive()
        self.received += self.tls.decrypt(data) if self.tls else data

    def act(self) -> None:
        """Send the next packet; after all packets, end."""
        packet = self.packets.pop(0) if self.packets else b""
        self.ended = not packet
        unsent = self.tls.encrypt(packet) if self.tls and packet else packet
        while unsent:
            try:
                unsent = unsent[self.sock.send(unsent) :]
            except BlockingIOError:
                pass
            except ConnectionError:  # The server has rejected what came before.
                unsent = b""
                self.packets.clear()
            self.driver.run_once()
        if self.ended:
            self.sock.shutdown(socket.SHUT_WR)
        self.driver.run_once()
        self.read()


@pytest.fixture(scope="module", params=["in-the-event-loop", "in-threads", "tls"])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    is_tls = request.param == "tls"
    context = server_context(make_certificate(tmp_path_factory.mktemp("certificate"))) if is_tls else None
    recorder = Recorder()
    threads = 2 if request.param == "in-threads" else 0
    driver = Driver(app=recorder, threads=threads, body_bytes=LIMIT, places=8, tls=context)
    yield driver, recorder, trusting() if is_tls else None
    driver.end()


@settings(max_examples=60, deadline=None)
@given(plans=st.lists(plans, min_size=1, max_size=4), order=st.lists(st.integers(0, 3), max_size=30))
def test_every_client_gets_what_the_model_says(setup: Any, plans: list[Plan], order: list[int]) -> None:
    driver, recorder, context = setup
    recorder.clear()
    clients = [Client(driver, plan, context) for plan in plans]
    for number in order:  # Any order, and then one after the other.
        if number < len(clients) and not clients[number].ended:
            clients[number].act()
    for client in clients:
        while not client.ended:
            client.act()

    def is_done() -> bool:
        for client in clients:
            client.read()
        return not driver.loop.shared.connections

    driver.run_until(is_done)
    driver.run_once()
    driver.assert_nothing_is_held()
    for client in clients:
        client.read()
        client.sock.close()
        statuses = [int(part[:3]) for part in client.received.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [item.status for item in expected(client.plan)]
    called = [item.body for client in clients for item in expected(client.plan) if item.status == 200]
    assert sorted(body for _, body in recorder) == sorted(called)
