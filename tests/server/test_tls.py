"""TLS in memory: a client with OpenSSL, and one that sends any record."""

import random
import ssl
from pathlib import Path

import pytest

from plants.server.tls import MAX_OVERHEAD_BYTES, OVERHEAD_BYTES_PER_RECORD, READ_BYTES, TLS, restrict
from tests.support.tls_client import Client, Records12, Records13, make_certificate, trusting

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
VERSIONS = pytest.mark.parametrize("version", [TLS12, TLS13], ids=["1.2", "1.3"])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def context(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    restrict(context)
    return context


@pytest.fixture
def tls(context: ssl.SSLContext) -> TLS:
    return TLS(context)


def receive(tls: TLS, ciphertext: bytes, step: int = READ_BYTES) -> bytes:
    """Pass ciphertext to the server as the event loop does, step by step."""
    return b"".join(tls.receive(ciphertext[start : start + step]) for start in range(0, len(ciphertext), step))


def connect(tls: TLS, context: ssl.SSLContext, step: int = READ_BYTES) -> Client:
    """Complete a handshake."""
    client = Client(context)
    sent = client.step()
    while sent:
        assert receive(tls, sent, step) == b""
        received = tls.pending()
        client.server_hello = client.server_hello or received
        sent = client.step(received)
    assert tls.established
    return client


def records13(tls: TLS, folder: Path) -> Records13:
    context = trusting(TLS13)
    context.keylog_filename = str(folder / "keys")
    return Records13(connect(tls, context).ssl, folder / "keys")


def records12(tls: TLS, folder: Path) -> Records12:
    context = trusting(TLS12)
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    context.keylog_filename = str(folder / "keys")
    client = connect(tls, context)
    return Records12(client.ssl, folder / "keys", client.server_hello)


# Data


@VERSIONS
@pytest.mark.parametrize("step", [1, 100, READ_BYTES])
def test_data_arrive_in_both_directions(tls: TLS, version: ssl.TLSVersion, step: int) -> None:
    client = connect(tls, trusting(version), step)
    assert receive(tls, client.encrypt(b"request"), step) == b"request"
    tls.send(b"response")
    assert client.decrypt(tls.pending()) == b"response"


@VERSIONS
def test_large_records_are_received_and_sent(tls: TLS, version: ssl.TLSVersion) -> None:
    client = connect(tls, trusting(version))
    data = random.randbytes(1_000_000)
    ciphertext = client.encrypt(data)
    assert ciphertext[3:5] > b"\x40\x00"  # A record with its framing is larger than one step.
    assert receive(tls, ciphertext) == data
    tls.send(memoryview(data))
    assert client.decrypt(tls.pending()) == data


@VERSIONS
def test_many_records_in_one_step_are_all_returned(tls: TLS, version: ssl.TLSVersion) -> None:
    client = connect(tls, trusting(version))
    assert tls.receive(b"".join(client.encrypt(b"%03d" % number) for number in range(100)))[-6:] == b"098099"


def test_data_sent_with_the_end_of_the_handshake_are_returned(tls: TLS) -> None:
    client = Client(trusting(TLS13))
    tls.receive(client.step())
    finished = client.step(tls.pending())
    assert tls.receive(finished + client.encrypt(b"request")) == b"request"


@VERSIONS
def test_an_incomplete_record_returns_nothing(tls: TLS, version: ssl.TLSVersion) -> None:
    client = connect(tls, trusting(version))
    ciphertext = client.encrypt(b"request")
    assert tls.receive(ciphertext[:-1]) == b""
    assert tls.receive(ciphertext[-1:]) == b"request"


# The handshake


NOT_TLS = {
    "http": b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": bytes(1000),
    "a large record": b"\x16\x03\x01\xff\xff" + bytes(1000),
    "random": random.Random(1).randbytes(1000),
}


@pytest.mark.parametrize("data", NOT_TLS.values(), ids=NOT_TLS)
def test_what_is_not_tls_fails_the_handshake(tls: TLS, data: bytes) -> None:
    with pytest.raises(ssl.SSLError):
        tls.receive(data)
    assert not tls.established
    tls.close()


def test_tls_1_1_is_refused_with_an_alert(tls: TLS) -> None:
    context = trusting(TLS12)
    hello = bytearray(Client(context).step())
    hello[9:11] = b"\x03\x02"
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        tls.receive(bytes(hello))
    assert tls.pending()[:1] == b"\x15"


@pytest.mark.parametrize(
    ("configured", "used"),
    [(ssl.TLSVersion.MINIMUM_SUPPORTED, TLS12), (ssl.TLSVersion.TLSv1_1, TLS12), (TLS12, TLS12), (TLS13, TLS13)],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_the_minimum_version_is_raised_but_not_lowered(configured: ssl.TLSVersion, used: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = configured
    restrict(context)
    assert context.minimum_version == used
    assert context.options & ssl.OP_NO_RENEGOTIATION


@VERSIONS
def test_a_required_client_certificate_is_verified(
    context: ssl.SSLContext, certificate: Path, version: ssl.TLSVersion
) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)
    trusted = trusting(version)
    trusted.load_cert_chain(certificate)
    tls = TLS(context)
    assert tls.receive(connect(tls, trusted).encrypt(b"request")) == b"request"
    tls = TLS(context)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        connect(tls, trusting(version))
    assert tls.pending()


# Floods


def test_a_flood_of_key_updates_is_bounded(tls: TLS, tmp_path: Path) -> None:
    records = records13(tls, tmp_path)
    flood = b"".join(records.key_update() for _ in range(3 * MAX_OVERHEAD_BYTES // 27))
    with pytest.raises(ssl.SSLError, match="without application data"):
        receive(tls, flood)
    assert len(tls.pending()) <= MAX_OVERHEAD_BYTES + READ_BYTES  # One KeyUpdate for each.


def test_a_flood_of_client_hellos_is_bounded(tls: TLS, tmp_path: Path) -> None:
    records = records12(tls, tmp_path)
    flood = b"".join(records.client_hello() for _ in range(3 * MAX_OVERHEAD_BYTES // 33))
    with pytest.raises(ssl.SSLError, match="without application data"):
        receive(tls, flood)
    assert len(tls.pending()) <= MAX_OVERHEAD_BYTES + READ_BYTES  # One alert for each.


def test_a_flood_with_little_data_in_between_is_bounded(tls: TLS, tmp_path: Path) -> None:
    records = records13(tls, tmp_path)
    key_updates = 2 * OVERHEAD_BYTES_PER_RECORD // 27
    rounds = MAX_OVERHEAD_BYTES // OVERHEAD_BYTES_PER_RECORD + 10
    flood = [records.data(b"x") + b"".join(records.key_update() for _ in range(key_updates)) for _ in range(rounds)]
    with pytest.raises(ssl.SSLError, match="without application data"):
        receive(tls, b"".join(flood))


def test_an_endless_handshake_is_bounded(tls: TLS) -> None:
    client_hello = b"\x16\x03\x01\x00\x04\x01\x00\x40\x00"  # 16 KiB, in records of one byte
    with pytest.raises(ssl.SSLError):
        receive(tls, client_hello + 60_000 * b"\x16\x03\x01\x00\x01x")


def test_an_occasional_key_update_does_not_close_a_connection(tls: TLS, tmp_path: Path) -> None:
    records = records13(tls, tmp_path)
    for _ in range(MAX_OVERHEAD_BYTES // 2000):
        assert tls.receive(b"".join(records.key_update() for _ in range(100)) + records.data(b"x")) == b"x"


def test_many_small_records_do_not_close_a_connection(tls: TLS, tmp_path: Path) -> None:
    records = records13(tls, tmp_path)
    assert receive(tls, b"".join(records.data(b"x") for _ in range(20_000))) == b"x" * 20_000


def test_padded_records_do_not_close_a_connection(tls: TLS, tmp_path: Path) -> None:
    records = records13(tls, tmp_path)
    assert receive(tls, b"".join(records.data(b"x" * 100, 4000) for _ in range(200))) == b"x" * 20_000


def test_renegotiation_is_refused_and_data_go_on(tls: TLS, tmp_path: Path) -> None:
    records = records12(tls, tmp_path)
    assert tls.receive(records.client_hello()) == b""
    assert tls.pending()[:1] == b"\x15"
    assert tls.receive(records.data(b"request")) == b"request"


# The end


@VERSIONS
def test_close_notify_of_the_client_follows_its_data(tls: TLS, version: ssl.TLSVersion) -> None:
    client = connect(tls, trusting(version))
    ciphertext = client.encrypt(b"request")
    with pytest.raises(ssl.SSLWantReadError):
        client.ssl.unwrap()
    assert tls.receive(ciphertext + client.outgoing.read()) == b"request"
    assert tls.closed
    tls.send(b"response")
    tls.close()
    client.incoming.write(tls.pending())


@VERSIONS
def test_close_sends_close_notify_without_waiting(tls: TLS, version: ssl.TLSVersion) -> None:
    client = connect(tls, trusting(version))
    tls.receive(client.encrypt(b"request")[:-1])
    tls.send(b"response")
    tls.close()
    ciphertext = tls.pending()
    assert client.decrypt(ciphertext) == b"response"
    assert client.ssl.read(10) == b""
    tls.close()


def test_close_reads_no_flood(tls: TLS, tmp_path: Path) -> None:
    records = records13(tls, tmp_path)
    tls.receive(b"".join(records.key_update() for _ in range(100)))
    tls.pending()
    tls.close()
    assert len(tls.pending()) == 24


def test_close_before_the_handshake_sends_nothing(tls: TLS) -> None:
    tls.close()
    assert tls.pending() == b""


@VERSIONS
def test_a_forged_record_fails(tls: TLS, version: ssl.TLSVersion) -> None:
    client = connect(tls, trusting(version))
    ciphertext = bytearray(client.encrypt(b"request"))
    ciphertext[-1] ^= 1
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        tls.receive(bytes(ciphertext))
    assert tls.pending()
