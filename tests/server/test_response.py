"""The response of an application, in memory."""

import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from plants.server.request import Listener, Request, SizedBody
from plants.server.response import make_response, to_bytes
from plants.server.threads import Call
from plants.server.worker import ErrorLog


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        yield sock


def remove_input(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [])
    return [environ.pop("wsgi.input").read()]


def keep_input(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [])
    return [environ["wsgi.input"].read()]


class Unclosable(list[bytes]):
    close = None


def return_unclosable(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    return Unclosable(keep_input(environ, start_response))


@pytest.mark.parametrize("app", [remove_input, keep_input, return_unclosable])
def test_a_call_that_has_begun_keeps_its_body_until_it_ends(sock: socket.socket, app: Callable[..., Any]) -> None:
    request = Request(Listener(sock, app), {}, 0.0)
    request.body = SizedBody(4)
    request.body.feed(b"body")
    body = request.claim()
    assert body is not None
    assert request.claim() is None
    request.cancel()
    response = Call(request, body, logging.getLogger("tests.server")).response()
    assert response is not None
    assert response.body == b"body"
    assert request.environ == {}


def test_the_date_of_a_response_is_the_current_second(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(Listener(sock, keep_input), {}, 0.0)
    response = make_response("200 OK", [], b"", is_head=False)
    for second, date in ((0.0, b"00:00:00"), (1.9, b"00:00:01"), (3.0, b"00:00:03")):
        monkeypatch.setattr("time.time", lambda second=second: second)
        assert b"\r\nDate: Thu, 01 Jan 1970 %b GMT\r\n" % date in to_bytes(response, request, close=False)


@pytest.mark.parametrize("name", ["Date", "date", "DATE"])
def test_the_applications_date_replaces_the_servers_date(sock: socket.socket, name: str) -> None:
    date = "Thu, 01 Jan 1970 00:00:00 GMT"
    response = make_response("200 OK", [(name, date)], b"", is_head=False)
    sent = to_bytes(response, Request(Listener(sock, keep_input), {}, 0.0), close=False)
    assert sent == f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("name", "sent"),
    [("www-authenticate", "WWW-Authenticate"), ("x-a", "X-A"), ("X-a", "X-a"), ("X-A-b", "X-A-b")],
)
def test_header_names_in_lower_case_are_capitalized(name: str, sent: str) -> None:
    response = make_response("200 OK", [(name, "b")], b"", is_head=False)
    assert response.head == f"HTTP/1.1 200 OK\r\n{sent}: b\r\n".encode()


def test_wsgi_errors_strips_trailing_white_space(caplog: pytest.LogCaptureFixture) -> None:
    errors = ErrorLog(logging.getLogger("tests.server"))
    assert errors.write("  100 %s \n") == 10
    assert errors.write(" \n") == 2
    errors.writelines(["a\n", "b"])
    errors.flush()
    assert caplog.messages == ["  100 %s", "a", "b"]
