"""Requests in packets: the server rejects what is invalid, incomplete or too large, and runs all others."""

import re
import socket
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from plants.server.hooks import Hooks
from plants.server.request import HEAD_BYTES
from plants.server.response import make_response
from tests.support.loop_driver import Driver, Make, new_exchange

GOOD = b"POST /good HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
POST = b"POST /bad HTTP/1.1\r\nHost: a\r\n"
# A request that an attacker hides in another one (request smuggling).
HIDDEN = b"POST /hidden HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


def with_fields(*fields: bytes, body: bytes = b"") -> bytes:
    return POST + b"".join(b"%b\r\n" % field for field in fields) + b"\r\n" + body


def with_coding(coding: bytes, body: bytes = b"0\r\n\r\n" + HIDDEN) -> bytes:
    return with_fields(b"Transfer-Encoding: " + coding, body=body)


def with_chunks(body: bytes) -> bytes:
    return with_coding(b"chunked", body)


def with_chunk_line_of(size: int) -> bytes:
    """Return a request with a chunk whose line has this size, without the CRLF before it and after it."""
    return with_chunks(b"1;a=".ljust(size, b"b") + b"\r\nx\r\n0\r\n\r\n")


def with_target(target: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" % target


def with_hosts(*hosts: bytes) -> bytes:
    return b"POST /bad HTTP/1.1\r\n" + b"".join(b"Host:%b\r\n" % host for host in hosts) + b"Content-Length: 0\r\n\r\n"


CHUNKED = b"Transfer-Encoding: chunked"
NO_TRAILERS = b"""Authorization Connection Content-Encoding Content-Length Content-Range Content-Type Cookie Expect Host
Proxy-Authorization TE Trailer Transfer-Encoding Upgrade""".split()
NO_TARGETS = rb"bad * /bad#part /bad?a#b http://a/bad#b ftp://a/bad http://user:password@a/bad http:///bad".split()
NO_TARGETS += [b" /bad", b"/bad path", b"/b\xc3\xa4d", b"/b\x7fd"]
REFUSED = b"POST /bad/refused HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
NO_TOKENS = [REFUSED % 0, REFUSED % 9, REFUSED % 9 + b"x" * 9, REFUSED % 900 + b"x", REFUSED % 10**7 + b"x" * 40_000]
NO_LENGTHS = [b"+4", b"", b"\xb2", b"4, 4"]
NO_CODINGS = [b"chunked, gzip", b"xchunked", b"chunked,", b"chunked;a=b", b"chunked\xa0 \t", b"chunked\x85 \t"]
NO_CHUNK_LINES = [b"+4", b"0x4", b" 4", b"4 ", b"", b"4;\nx", b"4;a\rb", b"4;="]
NO_HOSTS = [*rb"user@a a:b a%2 a|b a/b a?b a#b a\b a:1:2 ::1 [::1 [::1]a".split(), b"", b"\xe4"]
CONTROLS = b"\0\v\x1b\x7f"
DELIMITERS = CONTROLS + b'"(),/;<=>?@[\\]{}\xe4'
HOSTILE = {
    # The request line
    "no-version": (b"POST /bad\r\n\r\n", 40000),
    "http-2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 50500),
    "proxy-protocol-1": (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + GOOD, 40000),
    "proxy-protocol-2": (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + b"\1\2\3\4" * 3 + GOOD, 40000),
    "http-1.2": (b"POST /bad HTTP/1.2\r\nHost: a\r\n\r\n", 40000),
    "request-line-without-end": (b"POST /" + b"b" * 9000, 41400),
    # The target
    **{f"target-{target!r}": (with_target(target), 40000) for target in NO_TARGETS},
    "connect": (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 50100),
    # The host
    "no-host-in-a-head-request": (b"HEAD /bad HTTP/1.1\r\n\r\n", 40000),
    "two-hosts": (with_hosts(b" a", b" b"), 40000),
    "the-same-host-twice": (with_hosts(b" a", b" a"), 40000),
    **{f"host-{host!r}": (with_hosts(b" " + host), 40000) for host in NO_HOSTS},
    "host-bad-in-http-1.0": (b"POST /bad HTTP/1.0\r\nHost: a b\r\nContent-Length: 0\r\n\r\n", 40000),
    "no-host-but-a-whole-url": (b"POST http://a/bad HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 40000),
    # The header fields
    "bare-lf": (b"POST /bad HTTP/1.1\nHost: a\nContent-Length: 0\n\n", 40000),
    "bare-lf-in-head": (with_fields(b"X-A: b\nX-B: c", b"Content-Length: 0"), 40000),
    "bare-cr-in-value": (with_fields(b"X-A: b\rContent-Length: 4", b"Content-Length: 0"), 40000),
    **{f"value-with-{mark}": (with_fields(b"X-A: %c" % mark, b"Content-Length: 0"), 40000) for mark in CONTROLS},
    "obs-fold": (with_fields(b"X-A: b", b" c", b"Content-Length: 0"), 40000),
    "space-before-colon": (with_fields(b"Content-Length : 4", body=b"body"), 40000),
    "space-before-name": (b"POST /bad HTTP/1.1\r\n Host: a\r\n\r\n", 40000),
    "no-colon": (with_fields(b"Content-Length", b"Content-Length: 0"), 40000),
    **{f"name-with-{mark}": (with_fields(b"X%cA: a" % mark, b"Content-Length: 0"), 40000) for mark in DELIMITERS},
    "field-without-end": (POST + b"X-A: " + b"a" * 17_000, 43100),
    "head-without-end": (POST + b"X-A: a\r\n", 40000),
    "two-expectations": (with_fields(b"Expect: 100-continue, a", b"Content-Length: 0"), 41700),
    # The length
    **{f"length-{n!r}": (with_fields(b"Content-Length: " + n, body=b"body"), 40000) for n in NO_LENGTHS},
    "length-of-641-digits": (with_fields(b"Content-Length: " + b"9" * 641), 40000),
    "length-twice": (with_fields(b"Content-Length: 4", b"Content-Length: 4", body=b"body"), 40000),
    "length-not-reached": (with_fields(b"Content-Length: 5", body=b"body"), 40000),
    "length-above-the-limit": (with_fields(b"Expect: 100-continue", b"Content-Length: 1001"), 41300),
    **{f"no-token-{number}": (request, 40100) for number, request in enumerate(NO_TOKENS)},
    # Two framings
    "length-then-chunked": (with_fields(b"Content-Length: 4", CHUNKED, body=b"0\r\n\r\n" + HIDDEN), 40000),
    "chunked-then-length": (with_fields(CHUNKED, b"Content-Length: 4", body=b"0\r\n\r\n" + HIDDEN), 40000),
    "chunked-twice": (with_fields(CHUNKED, CHUNKED, body=b"0\r\n\r\n" + HIDDEN), 50100),
    "gzip-then-chunked": (with_coding(b"gzip, chunked"), 50100),
    **{f"coding-{coding!r}": (with_coding(coding), 40000) for coding in NO_CODINGS},
    "chunked-in-http-1.0": (b"POST /bad HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN, 40000),
    # The chunks
    **{f"chunk-{line!r}": (with_chunks(line + b"\r\nbody\r\n0\r\n\r\n"), 40000) for line in NO_CHUNK_LINES},
    "chunk-bare-lf": (with_chunks(b"4\nbody\r\n0\r\n\r\n"), 40000),
    "chunk-above-the-limit": (with_chunks(b"3e9\r\n"), 41300),
    "chunk-data-too-long": (with_chunks(b"4\r\nbody too long\r\n0\r\n\r\n"), 40000),
    "chunk-data-then-bare-lf": (with_chunks(b"4\r\nbody\n0\r\n\r\n"), 40000),
    "chunk-cut-short": (with_chunks(b"5\r\nbody"), 40000),
    "chunks-without-last": (with_chunks(b"4\r\nbody\r\n"), 40000),
    "chunks-without-final-crlf": (with_chunks(b"4\r\nbody\r\n0\r\n"), 40000),
    "trailers-above-100": (with_chunks(b"0\r\n" + b"X-A: a\r\n" * 101 + b"\r\n"), 43100),
    **{f"trailer-{name.decode()}": (with_chunks(b"0\r\n%b: 4\r\n\r\n" % name), 40000) for name in NO_TRAILERS},
    "trailer-bare-lf": (with_chunks(b"0\r\n\n" + HIDDEN), 40000),
}  # fmt: skip


class Recorder(list[tuple[str, bytes]]):
    """An application that records the method and path, and the body, of each request."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        self.append((f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", body))
        start_response("200 OK", [])
        return [b"done"]


@pytest.fixture
def calls() -> Recorder:
    return Recorder()


@pytest.fixture
def driver(make: Make, calls: Recorder) -> Any:
    return make(app=calls)


def exchange(driver: Driver, *packets: bytes) -> list[bytes]:
    """Send each packet in an iteration of its own, end the connection, and return the responses."""
    client, _ = driver.connect()
    for packet in packets:
        client.sendall(packet)
        driver.run_once()
    client.shutdown(socket.SHUT_WR)
    driver.run_until(lambda: not driver.loop.shared.connections)
    received = b"".join(iter(lambda: client.recv(65536), b""))
    return received.split(b"HTTP/1.1 ")[1:]


def statuses(driver: Driver, *packets: bytes) -> list[int]:
    return [int(response[:3]) for response in exchange(driver, *packets)]


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


# The rejection names the other protocol that the client speaks.
NAMED = {"http-2": b"HTTP/2", "proxy-protocol-1": b"PROXY protocol", "proxy-protocol-2": b"PROXY protocol"}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_invalid_request_is_rejected_and_not_run(driver: Driver, calls: Recorder, name: str) -> None:
    payload, code = HOSTILE[name]
    whole, pieces = [payload], in_pieces(payload, 3 + len(payload) // 400)
    for packets in (whole, pieces, [GOOD, *whole], [GOOD, *pieces]):
        calls.clear()
        *accepted, rejection = exchange(driver, *packets)
        assert [response[:3] for response in accepted] == [b"200"] * len(calls)
        assert int(rejection[:3]) == code // 100
        assert NAMED.get(name, b"") in rejection
        assert b"Connection: close\r\n" in rejection
        assert rejection.endswith(b"\r\n\r\n") == payload.startswith(b"HEAD")  # Only that has no body.
        assert rejection.count(b"X-Request-ID: 1\r\n") == 1  # The hook is called once for each request.
        assert not {b"bad", b"hidden", b"xchunked"} & set(re.findall(rb"\w+", rejection))
        assert calls == [("POST /good", b"body")] * packets.count(GOOD)


def test_nothing_is_run_behind_a_connect(driver: Driver, calls: Recorder) -> None:
    assert statuses(driver, GOOD.replace(b"POST", b"CONNECT") + HIDDEN) == [200]
    assert len(calls) == 1


@pytest.mark.parametrize("begun", [b"get / HTTP/1.1\r\n", b"\r\n\r\n", b"\r\n\n", with_chunk_line_of(1022)[:-10]])
def test_a_malformed_line_is_rejected_before_the_request_ends(driver: Driver, begun: bytes) -> None:
    client, _ = driver.connect(begun)
    assert driver.status(client) == 400


CHUNKS = b'5\r\nconte\r\n000A;a ; b="\\"\t\xe9;" ;c=d\r\nnt, chunks\r\n00\r\n!#$%&\'*+-.^_`|~09AZaz: b\r\nX: c\r\n\r\n'


def test_packet_boundaries_do_not_change_a_request(driver: Driver, calls: Recorder) -> None:
    data = b"\r\n" + with_coding(b"Chunked", CHUNKS) + b"\r\n" + GOOD * 2
    ways = [in_pieces(data, size) for size in (1, 2, 3, 5)] + [[data[:cut], data[cut:]] for cut in range(len(data))]
    for packets in ways:
        calls.clear()
        assert statuses(driver, *packets) == [200, 200, 200]
        assert calls == [("POST /bad", b"content, chunks"), *[("POST /good", b"body")] * 2]


def test_a_host_is_a_name_or_an_address_with_or_without_a_port(driver: Driver, calls: Recorder) -> None:
    hosts = rb"a:80 a: My_plants-1.example. a%2F 127.0.0.1:8000 [::1]:8000 [::FFFF:1.2.3.4] !$&'()*+,;=~".split()
    without_host = GOOD.replace(b"1.1\r\nHost: a", b"1.0")  # as HAProxy checks the health of a service
    exchange(driver, *[GOOD.replace(b"Host: a", b"Host: " + host) for host in hosts], without_host)
    assert len(calls) == len(hosts) + 1


def test_a_method_has_3_to_20_upper_case_letters_digits_or_marks(driver: Driver, calls: Recorder) -> None:
    def with_method(method: str) -> bytes:
        return GOOD.replace(b"POST", method.encode())

    marks = "!$%&'*+-.^_`|~0AZ"
    valid = [f"{mark * count}ET" for mark in marks for count in (1, 18)] + [f"GE{mark}" for mark in marks]
    exchange(driver, *map(with_method, valid))
    assert calls == [(f"{method} /good", b"body") for method in valid]
    for method in ("GE", "G" * 21, "GEt", "G#T", "G T", 'G"T', "G/T", "G@T", "G[T", "G{T"):
        assert statuses(driver, with_method(method)) == [400]


def with_line_of(size: int) -> bytes:
    return with_target(b"/".ljust(size - len("POST  HTTP/1.1"), b"a"))


def with_head_of(size: int) -> bytes:
    fields = [b"X-A: ".ljust(4000, b"a")] * 3
    missing = size - len(with_fields(*fields, b""))
    return with_fields(*fields, b"X-B: ".ljust(missing, b"b"))


LIMITS: dict[str, tuple[Callable[[int], bytes], dict[str, int], int, int]] = {
    "line": (with_line_of, {"line_bytes": 60}, 60, 414),
    "line-after-an-empty-one": (lambda size: b"\r\n" + with_line_of(size - 2), {"line_bytes": 60}, 60, 414),
    "field": (lambda size: with_fields(b"X-A: ".ljust(size, b"a")), {"field_bytes": 50}, 50, 431),
    "last-field": (lambda size: with_fields(b"X-A: a", b"X-B: ".ljust(size, b"b")), {"field_bytes": 50}, 50, 431),
    "fields": (lambda count: with_fields(*[b"X-A: a"] * (count - 1)), {"max_fields": 4}, 4, 431),
    "head": (with_head_of, {}, HEAD_BYTES, 431),
    "body": (lambda size: with_fields(b"Content-Length: %d" % size, body=b"x" * size), {"body_bytes": 90}, 90, 413),
    "chunks": (lambda size: with_chunks(b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size)), {"body_bytes": 90}, 90, 413),
    "chunk-line": (with_chunk_line_of, {}, 1020, 400),
}


@pytest.mark.parametrize(("make_request", "options", "limit", "status"), LIMITS.values(), ids=LIMITS)
def test_a_request_may_reach_each_limit_but_not_exceed_it(
    make: Make, make_request: Callable[[int], bytes], options: dict[str, int], limit: int, status: int
) -> None:
    driver = make(app=Recorder(), **options)
    for size, expected in ((limit, 200), (limit + 1, status)):
        data = make_request(size)
        assert statuses(driver, data) == [expected]
        assert statuses(driver, data[:-80], *in_pieces(data[-80:], 1)) == [expected]


def test_what_the_caches_keep_is_bounded(make: Make) -> None:
    driver = make(hooks=Hooks(), app=lambda _, start_response: start_response("200 OK", []) and [])
    client, _ = driver.connect()
    tracemalloc.start()
    for number in range(300):
        new = b"%04d" % number * 1200
        client.sendall(b"GET /%b HTTP/1.1\r\nHost: %b\r\nX%b: a\r\n\r\n" % (new, new, new))
        assert driver.status(client) == 200
    for number in range(1500):
        make_response(new_exchange(), 200, [("X-A", f"{number:04}" * 250)], b"")
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 3_000_000  # It would be more if all targets, hosts, names or headers of responses were kept.


def test_trailers_without_an_end_are_rejected(make: Make) -> None:
    driver = make(body_bytes=10**6)
    assert statuses(driver, with_chunks(b"0\r\nX-A: " + b"a" * 17_000)) == [431]
