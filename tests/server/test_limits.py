"""Request parsing in memory: each limit is exact, and packet boundaries do not change the result."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from plants.server.bounds import Config
from plants.server.request import HEAD_BYTES, ChunkedBody, HTTPError, Request, SizedBody, check_growing_head
from tests.support.loop_driver import CONFIG as LARGE
from tests.support.loop_driver import new_request

LIMITS = replace(LARGE, line_bytes=60, field_bytes=50, max_fields=4)
HOST = b"Host: a\r\n"


def parse(head: bytes, config: Config = LIMITS) -> Request:
    request = new_request(SCRIPT_NAME="")
    request.parse_head(head.decode("latin-1"), config)
    return request


def rejection(check: Callable[..., Any], *args: Any) -> int:
    """Return the status with which a check rejects a request, or 0."""
    try:
        check(*args)
    except HTTPError as error:
        return error.status
    return 0


def head(*fields: bytes, line: bytes = b"GET / HTTP/1.1") -> bytes:
    return b"".join(each + b"\r\n" for each in (line, HOST[:-2], *fields, b""))


def head_with_line_of(size: int) -> bytes:
    return head(line=b"GET " + b"/".ljust(size - 13, b"a") + b" HTTP/1.1")


def head_of(size: int) -> bytes:
    fields = [b"X-A: ".ljust(4000, b"a")] * 3
    missing = size - len(head(*fields, b""))
    return head(*fields, b"X-B: ".ljust(missing, b"b"))


Make = Callable[[int], bytes]
HEADS: dict[str, tuple[Make, int, Config, int]] = {
    "line": (head_with_line_of, LIMITS.line_bytes, LIMITS, 414),
    "line-after-an-empty-one": (lambda size: b"\r\n" + head_with_line_of(size - 2), LIMITS.line_bytes, LIMITS, 414),
    "field": (lambda size: head(b"X-A: ".ljust(size, b"a")), LIMITS.field_bytes, LIMITS, 431),
    "last-field": (lambda size: head(b"X-A: a", b"X-B: ".ljust(size, b"b")), LIMITS.field_bytes, LIMITS, 431),
    "fields": (lambda count: head(*[b"X-A: a"] * (count - 1)), LIMITS.max_fields, LIMITS, 431),
    "head": (head_of, HEAD_BYTES, LARGE, 431),
}


@pytest.mark.parametrize(("make", "limit", "limits", "status"), HEADS.values(), ids=HEADS)
def test_a_head_may_reach_each_limit_but_not_exceed_it(make: Make, limit: int, limits: Config, status: int) -> None:
    assert parse(make(limit), limits).head_parsed
    assert rejection(parse, make(limit + 1), limits) == status
    # If the head is malformed and too large, either status is right.
    assert rejection(parse, make(limit + 1).replace(b"Host", b"H st"), limits) in (400, status)


@pytest.mark.parametrize("name", ["line", "line-after-an-empty-one", "head"])
def test_an_incomplete_head_has_the_limits_of_a_complete_one(name: str) -> None:
    make, limit, limits, status = HEADS[name]
    data = make(limit)
    for end in range(max(1, len(data) - 80), len(data)):
        assert rejection(check_growing_head, data[:end], limits) == 0
    data = make(limit + 10)
    ends = range(max(1, len(data) - 80), len(data))
    assert {rejection(check_growing_head, data[:end], limits) for end in ends} == {0, status}


@pytest.mark.parametrize("data", [b"get / HTTP/1.1\r\n", b"\r\n\r\n", b"\r\n\n"])
def test_a_malformed_line_is_rejected_before_the_head_ends(data: bytes) -> None:
    assert rejection(check_growing_head, data[:-1], LIMITS) == 0
    assert rejection(check_growing_head, data, LIMITS) == 400


@pytest.mark.usefixtures("lowest_digit_limit")
def test_a_content_length_has_at_most_640_digits() -> None:
    body = parse(head(b"Content-Length: " + b"9" * 640), LARGE).body
    assert body.size == 10**640 - 1
    assert rejection(parse, head(b"Content-Length: " + b"9" * 641), LARGE) == 400


def test_only_white_space_around_a_value_is_removed() -> None:
    environ = parse(head(b"X-A: \t a \t X \t ", b"X-B:b")).environ
    assert (environ["HTTP_X_A"], environ["HTTP_X_B"]) == ("a \t X", "b")
    assert parse(head(b"X-A: a\t")).environ["HTTP_X_A"] == "a"
    assert parse(head(b"X-A: a\xa0 ")).environ["HTTP_X_A"] == "a\xa0"


def test_a_field_with_an_underscore_leaves_no_key_in_the_environ() -> None:
    assert parse(head(b"X_A: a")).environ == parse(head()).environ


def test_each_field_has_its_own_key_however_many_names_there_are() -> None:
    for number in range(3):
        names = [f"X-{number}-{name}" for name in range(90)]
        environ = parse(head(*[f"{name}: {name}".encode() for name in names]), LARGE).environ
        assert [environ[f"HTTP_X_{number}_{name}"] for name in range(90)] == names


@pytest.mark.parametrize(("version", "expects"), [(b"1.0", False), (b"1.1", True)])
def test_only_http_1_1_has_100_continue(version: bytes, expects: bool) -> None:
    request = parse(head(b"Expect: 100-Continue", line=b"GET / HTTP/" + version))
    assert request.awaits_continue == expects


def test_a_method_has_3_to_20_upper_case_letters_digits_or_marks() -> None:
    marks = "!$%&'*+-.^_`|~0AZ"
    valid = [f"{mark * count}ET" for mark in marks for count in (1, 18)] + [f"GE{mark}" for mark in marks]
    for method in valid:
        assert parse(head(line=f"{method} / HTTP/1.1".encode())).method == method
    for method in ("GE", "G" * 21, "GEt", "G#T", "G T", 'G"T', "G/T", "G@T", "G[T", "G{T"):
        assert rejection(parse, head(line=f"{method} / HTTP/1.1".encode())) == 400
    assert not parse(head(line=b"CONNECT / HTTP/1.1")).keep_alive  # The bytes after it may belong to a tunnel.


# Bodies


def feed(body: SizedBody | ChunkedBody, *packets: bytes) -> bytes:
    """Feed packets as a connection does, and return the bytes that the body did not consume."""
    rest = b"\r\n"[: body.overlap]
    for packet in packets:
        rest += packet
        before = -1
        while not body.complete and len(rest) != before:
            before = len(rest)
            rest = body.feed(rest)
    return rest


CHUNKS = b'5\r\nconte\r\n0002;a ; b="\\"\t;" ;c=d\r\nnt\r\n000\r\nX-A: b\r\nX-B: c\r\n\r\n'


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(
    ("make", "sent"),
    [(lambda: ChunkedBody(LIMITS), CHUNKS), (lambda: SizedBody(7), b"content")],
    ids=["chunks", "size"],
)
def test_packet_boundaries_do_not_change_a_body(make: Callable[[], Any], sent: bytes, size: int) -> None:
    for first in range(size):
        data = sent + head()
        packets = [data[:first], *(data[start : start + size] for start in range(first, len(data), size))]
        body = make()
        assert feed(body, *packets) == head()
        assert (body.complete, body.content, body.size) == (True, b"content", 7)


def test_the_line_of_a_chunk_is_limited_to_1_kib() -> None:
    def line(size: int) -> bytes:
        return b"1;a=".ljust(size - 2, b"b") + b"\r\n"

    # The limit includes the CRLF that precedes the line.
    for size, status in ((1022, 0), (1023, 400)):
        for packets in ([line(size) + b"x"], [line(size), b"x"], [line(size)[:-1], b"\nx"]):
            assert rejection(feed, ChunkedBody(LARGE), *packets) == status
    assert rejection(feed, ChunkedBody(LARGE), line(5000)[:1021]) == 0
    assert rejection(feed, ChunkedBody(LARGE), line(5000)[:1022]) == 400


def test_trailers_have_the_limits_of_the_head() -> None:
    for count, status in ((LIMITS.max_fields, 0), (LIMITS.max_fields + 1, 431)):
        data = b"0\r\n" + b"X-A: a\r\n" * count + b"\r\n"
        for cut in range(len(data)):
            assert rejection(feed, ChunkedBody(LIMITS), data[:cut], data[cut:]) == status
