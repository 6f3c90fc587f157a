"""TLS in the event loop and in a worker. Some clients use OpenSSL; others encrypt records themselves."""

import random
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from plants.server.connection import Connection
from plants.server.request import HTTPError
from plants.server.state import CLOSED, CLOSING, OPEN, RECEIVING, RESPONDING, WRITING
from plants.server.tls import HANDSHAKE_BYTES, HANDSHAKE_BYTES_WITH_CERTIFICATE, restricted
from tests.support.loop_driver import GET, Driver, Make, get, is_readable, post
from tests.support.tls_client import Records13, TLSClient, make_certificate, trusting
from tests.support.worker_app import LARGE_BODY
from tests.support.worker_server import running_worker

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
VERSIONS = pytest.mark.parametrize("version", [TLS12, TLS13], ids=["1.2", "1.3"])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def context(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return restricted(context)


@pytest.mark.parametrize(("configured", "used"), [(ssl.TLSVersion.MINIMUM_SUPPORTED, TLS12), (TLS13, TLS13)])
def test_the_minimum_version_is_raised_but_not_lowered(configured: ssl.TLSVersion, used: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = configured
    options = context.options
    restricted(context)
    assert context.minimum_version == used
    assert context.options == options | ssl.OP_NO_RENEGOTIATION


POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
# The server parses these chunks in several steps.
TINY_CHUNKS = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"2\r\nxx\r\n" * 400 + b"0\r\n\r\n"


@pytest.fixture
def driver(make: Make, context: ssl.SSLContext) -> Any:
    return make(tls=context)


class Peer:
    """A TLS client of an event loop."""

    def __init__(self, driver: Driver, context: ssl.SSLContext | None = None, packet_bytes: int = 1_000_000) -> None:
        self.driver = driver
        self.packet_bytes = packet_bytes
        self.sock, self.connection = driver.connect()
        self.sock.setblocking(False)
        self.client = TLSClient(context or trusting())
        self.deadlines: set[float] = set()
        sent = self.client.step()
        while sent:
            sent = self.client.step(self.exchange(sent))

    def exchange(self, ciphertext: bytes) -> bytes:
        """Send ciphertext, run one iteration for each packet, and return the bytes that the server has sent, if any."""
        for start in range(0, len(ciphertext), self.packet_bytes):
            self.sock.sendall(ciphertext[start : start + self.packet_bytes])
            self.driver.run_once()
            self.deadlines.add(self.connection.deadline)
        self.driver.run_until(lambda: self.connection.state is not RESPONDING)
        return self.received()

    def received(self) -> bytes:
        with suppress(BlockingIOError):
            return self.sock.recv(1_000_000)
        return b""

    def request(self, data: bytes) -> bytes:
        return self.client.decrypt(self.exchange(self.client.encrypt(data)))


@pytest.fixture
def with_records(driver: Driver, tmp_path: Path) -> tuple[Peer, Records13]:
    """Return a client, and what makes records that its TLS object never sends."""
    context = trusting()
    context.keylog_filename = str(tmp_path / "keys")
    peer = Peer(driver, context)
    return peer, Records13(peer.client.ssl, tmp_path / "keys")


@VERSIONS
@pytest.mark.parametrize("packet_bytes", [1, 100, 16_384])
def test_http_1_1_data_arrives_in_both_directions(driver: Driver, version: ssl.TLSVersion, packet_bytes: int) -> None:
    context = trusting(version)
    context.set_alpn_protocols(["h2", "http/1.1"])
    peer = Peer(driver, context, packet_bytes)
    assert peer.client.ssl.selected_alpn_protocol() == "http/1.1"
    records = [peer.client.encrypt(b"%c" % byte) for byte in POST + b"plaintext"]
    response = peer.client.decrypt(peer.exchange(b"".join(records)))
    assert re.search(b'"wsgi.url_scheme": "https".*"body": "plaintext"', response)
    assert len(peer.deadlines) <= 3  # A client that trickles its handshake or its request gets no more time for it.


def test_tls_1_2_requires_an_aead_cipher(driver: Driver, context: ssl.SSLContext) -> None:
    client = trusting(TLS12)
    client.set_ciphers("ECDHE-ECDSA-AES128-SHA256")  # This suite encrypts in CBC mode.
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        Peer(driver, client)
    context.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    with pytest.raises(ssl.SSLError, match="No cipher"):
        restricted(context)


@pytest.mark.parametrize(
    ("mode", "most"), [(ssl.CERT_NONE, HANDSHAKE_BYTES), (ssl.CERT_OPTIONAL, HANDSHAKE_BYTES_WITH_CERTIFICATE)]
)
def test_a_handshake_is_bounded(driver: Driver, context: ssl.SSLContext, mode: ssl.VerifyMode, most: int) -> None:
    context.verify_mode = mode
    # The client hello announces 64 KiB. Each record after it has 99 bytes.
    record = b"\x16\x03\x01\x00\x63" + bytes(99)
    hello = b"\x16\x03\x01\x00\x04\x01\x01\x00\x00"
    client, connection = driver.connect(hello + record * (most // len(record) - 1))
    driver.run_until(lambda: not (driver.loop.shared.unfinished_connections or is_readable(connection.sock)))
    assert connection.state == OPEN
    client.sendall(record * 3)
    driver.run_once()
    assert connection.state == CLOSED


@VERSIONS
def test_a_large_response_is_sent_as_the_client_reads_it(driver: Driver, version: ssl.TLSVersion) -> None:
    peer = Peer(driver, trusting(version))
    data = peer.request(get("/large"))
    assert peer.connection.state == WRITING
    while peer.connection.state == WRITING:
        peer.driver.run_once()
        data += peer.client.decrypt(peer.received())
    assert data.endswith(LARGE_BODY)


NO_HANDSHAKE = {
    "TLS 1.1": TLSClient(trusting(TLS12)).step().replace(b"\x03\x03", b"\x03\x02", 1),
    "a record that is too large": b"\x16\x03\x01\xff\xff" + bytes(1000),
}


@pytest.mark.parametrize("sent", NO_HANDSHAKE.values(), ids=NO_HANDSHAKE)
def test_a_failed_handshake_sends_its_alert(driver: Driver, sent: bytes) -> None:
    client, _ = driver.connect(sent)
    driver.run_once()
    assert client.recv(1000)[:1] == b"\x15"
    assert client.recv(1000) == b""


@pytest.mark.parametrize("method", [b"POST", b"OPTIONS", b"PRI"])
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_plain_http_gets_one_400_in_plain_http(driver: Driver, size: int, method: bytes) -> None:
    client, connection = driver.connect()
    data = post("/", 100).replace(b"POST", method)
    for start in range(0, len(data), size):
        client.sendall(data[start : start + size])
        driver.run_once()
    response = client.recv(1000)
    assert response.startswith(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n")
    assert response.endswith(b"\r\n\r\nThis port speaks TLS, and the request is plain HTTP.\n")
    assert client.recv(1000) == b""
    deadline = connection.deadline
    client.sendall(GET)  # It discards what the client still sends, waits no longer for it, and holds nothing.
    driver.run_once()
    assert (connection.state, connection.exchange, connection.deadline) == (CLOSING, None, deadline)
    assert connection in driver.loop.shared.strangers
    assert driver.hooks.statuses == [" 400"]


@pytest.mark.parametrize(
    "end", [Connection.expire, lambda connection: connection.reject(HTTPError(503))], ids=["timeout", "full loop"]
)
def test_a_client_in_its_handshake_gets_no_response(driver: Driver, end: Callable[[Connection], None]) -> None:
    client, connection = driver.connect(TLSClient(trusting()).step()[:-1])
    driver.run_once()
    assert connection.state == OPEN
    driver.step(connection, end, connection)
    assert (connection.state, driver.hooks.statuses) == (CLOSED, [])  # Nothing is logged as sent.
    assert client.recv(1000) == b""


@pytest.mark.parametrize("data", [b"", GET], ids=["alone", "with-a-request"])
def test_a_response_to_a_key_update_waits_for_the_client(with_records: tuple[Peer, Records13], data: bytes) -> None:
    peer, records = with_records
    filled = 0
    for size in (1000, 1):  # The socket's buffer is full if it does not accept another byte.
        with suppress(BlockingIOError):
            while True:
                filled += peer.connection.sock.send(b"x" * size)
    peer.sock.sendall(records.key_update() + records.key_update() + (records.data(data) if data else b""))
    for _ in range(3):
        peer.driver.run_once()
    assert peer.connection.state == (WRITING if data else OPEN)
    received = b""
    while peer.connection.state == WRITING or len(received) <= filled:
        received += peer.received()
        peer.driver.run_once()
    assert peer.client.decrypt(received[filled:])[:12] == (b"HTTP/1.1 200" if data else b"")
    assert peer.client.decrypt(peer.exchange(records.data(GET))).startswith(b"HTTP/1.1 200")


def test_a_connection_is_closed_with_close_notify(driver: Driver) -> None:
    idle, last = Peer(driver), Peer(driver)
    idle.request(GET)
    driver.step(idle.connection, idle.connection.expire)
    idle.client.incoming.write(idle.received())
    assert last.request(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert [peer.client.ssl.read(1) for peer in (idle, last)] == [b"", b""]
    assert last.exchange(random.randbytes(1000)) == b""  # The server discards it.
    assert last.connection.state == CLOSING


@pytest.mark.parametrize("kind", ["data", "key updates"])
def test_one_step_decrypts_a_limited_number_of_records(with_records: tuple[Peer, Records13], kind: str) -> None:
    peer, records = with_records
    updates = 0 if kind == "data" else 200
    sent = [records.key_update() for _ in range(updates)] + [records.data(GET[i : i + 1]) for i in range(len(GET))]
    peer.sock.sendall(b"".join(sent) + b"".join(records.data(b"x") for _ in range(200)))
    peer.driver.step(peer.connection, peer.connection.ready)
    assert peer.connection in peer.driver.loop.shared.unfinished_connections
    peer.driver.run_until(lambda: peer.client.decrypt(peer.received()).startswith(b"HTTP/1.1 200"))
    peer.driver.run_until(lambda: not peer.driver.loop.shared.unfinished_connections)
    assert peer.connection.state == RECEIVING


@pytest.mark.parametrize("sent", [b"", POST, GET, GET + POST, GET * 2, TINY_CHUNKS, TINY_CHUNKS + GET])
@pytest.mark.parametrize("end", ["FIN", "close_notify", "close_notify in the same packet"])
def test_a_client_may_end_in_a_request_or_after_it(driver: Driver, sent: bytes, end: str) -> None:
    peer = Peer(driver)
    packets = [peer.client.encrypt(sent)]
    if end != "FIN":
        with pytest.raises(ssl.SSLWantReadError):
            peer.client.ssl.unwrap()
        packets.append(peer.client.outgoing.read() + b"ignored")
    received = b"".join(map(peer.exchange, [b"".join(packets)] if "same" in end else packets))
    if end == "FIN":
        peer.sock.shutdown(socket.SHUT_WR)
    driver.run_until(lambda: peer.connection.state in (CLOSING, CLOSED))
    responses = peer.client.decrypt(received + peer.received()).split(b"HTTP/1.1 ")[1:]
    complete = sent.count(GET) + sent.count(TINY_CHUNKS)
    assert [response[:3] for response in responses] == [b"200"] * complete + [b"400"] * sent.count(POST)


def test_gunicorns_settings_for_client_certificates_are_used(certificate: Path, tmp_path: Path) -> None:
    options = [f"--certfile={certificate}", f"--keyfile={certificate}", f"--ca-certs={certificate}", "--cert-reqs=2"]
    with running_worker(tmp_path, *options) as server:

        def send(data: bytes, context: ssl.SSLContext) -> bytes:
            with context.wrap_socket(server.client().sock) as sock:
                sock.sendall(data)
                return sock.recv(1000)

        known = trusting()
        known.load_cert_chain(certificate)
        assert send(GET, known).startswith(b"HTTP/1.1 200")
        # Send no request, because the reset that the unread one would cause could destroy the alert.
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            send(b"", trusting())
