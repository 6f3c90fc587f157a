"""The response of an application, in memory."""

import re
from collections.abc import Callable
from typing import Any
from wsgiref.util import FileWrapper

import pytest

from plants.server.response import make_response, to_bytes
from tests.support.loop_driver import new_exchange


@pytest.mark.parametrize("read", [dict.pop, dict.__getitem__])
def test_a_call_closes_its_response_and_drops_its_body(read: Callable[..., Any]) -> None:
    opened = []
    sizes: list[Any] = ["no number", 3]

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> FileWrapper:
        start_response("200 OK", [])
        environ["server.errors"] += [(20001, "first"), (20002, "last")]
        opened.append(read(environ, "wsgi.input"))
        return FileWrapper(opened[-1], blksize=sizes.pop())

    exchange = new_exchange(app)
    response = exchange.call(b"one body")
    assert (response.body, response.error) == (b"one body", (20002, "last"))
    assert "wsgi.input" not in exchange.environ
    with pytest.raises(TypeError):
        new_exchange(app).call(b"one body")
    assert [body.closed for body in opened] == [True] * 2


def test_the_date_of_a_response_is_the_current_second(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = new_exchange()
    response = make_response(exchange, 200, [], b"")
    for second, date in ((0.0, b"00:00:00"), (1.9, b"00:00:01"), (3.0, b"00:00:03")):
        monkeypatch.setattr("time.time", lambda second=second: second)
        assert b"\r\nDate: Thu, 01 Jan 1970 %b GMT\r\n" % date in to_bytes(response, exchange, close=False)


@pytest.mark.parametrize(
    ("status", "headers", "sent"),
    [
        ("200 OK", [("www-authenticate", "b")], "WWW-Authenticate: b\r\nContent-Length: 4\r\n\r\nbody"),
        ("200 OK", [("x-a", "\xe9"), ("X-b", "c")], "X-A: \xe9\r\nX-b: c\r\nContent-Length: 4\r\n\r\nbody"),
        ("200 OK", [("Connection", "close"), ("Keep-Alive", "timeout=1")], "Content-Length: 4\r\n\r\nbody"),
        ("200 OK", [("date", "Fri, 02 Jan 1970"), ("Transfer-Encoding", "a")], "Content-Length: 4\r\n\r\nbody"),
        ("204 No Content", [("Content-Length", "4")], "\r\n"),
        ("304 Not Modified", [], "\r\n"),
        ("304 Not Modified", [("content-length", "5")], "Content-Length: 5\r\n\r\n"),
        ("200 HEAD", [("X-a", "c"), ("X-a", "b")], "X-a: c\r\nX-a: b\r\n\r\n"),
        ("200 HEAD", [("Content-Length", "5")], "Content-Length: 5\r\n\r\n"),
    ],
)
def test_the_headers_of_the_application_are_sent(status: str, headers: list[tuple[str, str]], sent: str) -> None:
    exchange = new_exchange()
    exchange.method = "HEAD" if "HEAD" in status else "GET"
    data = to_bytes(make_response(exchange, status, headers, b"body"), exchange, close=False)
    assert re.sub("Date: .*\r\n", "", data.decode("latin-1"), count=1) == f"HTTP/1.1 {status}\r\n{sent}"


def test_the_servers_request_id_replaces_that_of_the_application() -> None:
    exchange = new_exchange()
    for own_id, sent in (("", b"theirs"), ("ours", b"ours")):
        exchange.id = own_id
        response = make_response(exchange, "200 OK", [("x-request-id", "theirs"), ("date", "theirs")], b"")
        assert re.findall(rb"theirs|ours", to_bytes(response, exchange, close=False)) == [sent]


@pytest.mark.parametrize(("status", "error"), [(400, (40001, "no JSON")), (404, None)])
def test_a_response_has_only_the_error_of_its_status(status: int, error: tuple[int, str] | None) -> None:
    assert make_response(new_exchange(), status, [], b"", (40001, "no JSON")).error == error


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        pytest.param("200 OK\r\nX-A: 1", [], id="status"),
        pytest.param("100 Continue", [], id="status-that-is-not-final"),
        pytest.param("600 OK", [], id="status-above-599"),
        pytest.param("200", [], id="status-without-a-phrase"),
        pytest.param("", [], id="no-call-of-start-response"),
        pytest.param("200 OK", [("X-A", "1\r\nX-B: 2")], id="value"),
        pytest.param("200 OK", [("X A", "1")], id="name"),
        pytest.param("200 OK", [("Content-Length", "four")], id="length"),
        pytest.param("200 OK", [("Content-Length", "5")], id="body-too-short"),
        pytest.param("200 OK", [("Content-Length", "3")], id="body-too-long"),
    ],
)
def test_an_invalid_response_is_an_error(status: str, headers: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError, match=r"application|final status|literal"):
        make_response(new_exchange(), status, headers, b"body")
