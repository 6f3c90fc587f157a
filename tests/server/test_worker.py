"""Valid requests to the worker, and the responses of applications."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import Response
from tests.support.worker_server import Client, Server, running_worker


@pytest.fixture(scope="module", params=["1", "3"], ids=["in-the-event-loop", "in-threads"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_worker(tmp_path_factory.mktemp("server"), f"--threads={request.param}") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client() as client:
        yield client


def environ_and_body(response: Response) -> tuple[dict[str, Any], str]:
    document = json.loads(response.body)
    return document["environ"], document["body"]


def request(fields: bytes = b"", target: bytes = b"/echo", method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    return b"%b %b HTTP/%b\r\nHost: plants.example\r\n%b\r\n" % (method, target, version, fields)


def test_the_environ_describes_the_request_and_trusts_no_header(server: Server, client: Client) -> None:
    # The client is 127.0.0.1, from which Gunicorn's own workers trust forwarded headers.
    forwarded = b"X-Forwarded-Proto: https\r\nX-Forwarded-For: 192.0.2.1\r\nScript-Name: /a\r\nSCRIPT_NAME: /b\r\n"
    fields = b"Content-Length: 4\r\nContent-Type: text/plain\r\nX-A: 1\r\nx-a: 2\r\nx-A:\r\nX_A: 3\r\n"
    post = request(fields + forwarded, b"/a%20b+%2520?c=%20d", b"POST")
    environ, body = environ_and_body(client.send(post + b"body").response())
    assert body == "body"
    host, port = server.address.split(":")
    assert (
        environ.items()
        >= {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/a b+%20",
            "SCRIPT_NAME": "",
            "QUERY_STRING": "c=%20d",
            "RAW_URI": "/a%20b+%2520?c=%20d",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_TYPE": "text/plain",
            "CONTENT_LENGTH": "4",
            "HTTP_HOST": "plants.example",
            "HTTP_X_A": "1,2,",
            "REMOTE_ADDR": "127.0.0.1",
            "REMOTE_PORT": str(client.sock.getsockname()[1]),
            "SERVER_NAME": host,
            "SERVER_PORT": port,
            "wsgi.url_scheme": "http",
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
            "server.stopping": False,
        }.items()
    )
    assert "" not in environ  # The validator of PEP 3333 accepts it.


@pytest.mark.parametrize(
    ("field", "value"),
    [(b"X-A: \t a \t X \t ", "a \t X"), (b"X-A:b", "b"), (b"X-A: a\t", "a"), (b"X-A: a\xa0 ", "a\xa0")],
)
def test_only_white_space_around_a_value_is_removed(client: Client, field: bytes, value: str) -> None:
    environ, _ = environ_and_body(client.send(request(field + b"\r\n")).response())
    assert environ["HTTP_X_A"] == value


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        pytest.param(b"http://b.example:80/echo?q", "/echo", "q", "b.example:80", id="absolute-form"),
        pytest.param(b"HTTPS://b.example", "/", "", "b.example", id="no-path"),
        pytest.param(b"http://[::1]:8000?q=http://a", "/", "q=http://a", "[::1]:8000", id="ipv6-and-no-path"),
        pytest.param(b"/http://b.example/", "/http://b.example/", "", "plants.example", id="origin-form"),
        pytest.param(b"*", "", "", "plants.example", id="asterisk-form"),
        pytest.param(b"/a%ff", "/a\xff", "", "plants.example", id="not-utf-8"),
        pytest.param(b"//b.example/echo", "//b.example/echo", "", "plants.example", id="two-slashes"),
    ],
)
def test_the_target_is_parsed_as_in_rfc_9112(client: Client, target: bytes, path: str, query: str, host: str) -> None:
    environ, _ = environ_and_body(client.send(request(target=target, method=b"OPTIONS")).response())
    assert (environ["PATH_INFO"], environ["QUERY_STRING"], environ["HTTP_HOST"]) == (path, query, host)


@pytest.mark.parametrize(
    ("version", "fields", "announced"),
    [
        pytest.param(b"1.1", b"", [None, None], id="1.1"),
        pytest.param(b"1.1", b"Connection: TE\r\nConnection: keep-alive , Close\r\n", ["close"], id="1.1-close-last"),
        pytest.param(b"1.1", b"Connection: foreclosed\r\n", [None, None], id="1.1-another-option"),
        # curl --http2 and the HttpClient of Java offer HTTP/2 like this.
        pytest.param(b"1.1", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", [None, None], id="1.1-upgrade"),
        pytest.param(b"1.0", b"", ["close"], id="1.0"),
        pytest.param(b"1.0", b"Connection: Keep-Alive\r\n", ["keep-alive", "keep-alive"], id="1.0-keep-alive"),
        pytest.param(b"1.0", b"Connection: TE\r\n", ["close"], id="1.0-another-option"),
    ],
)
def test_a_connection_is_persistent_if_the_client_requests_it(
    client: Client, version: bytes, fields: bytes, announced: list[str | None]
) -> None:
    responses = client.send(request(fields, version=version) * 2).end().responses()
    assert [response.headers.get("connection") for response in responses] == announced


def test_a_response_is_complete_when_it_is_sent(client: Client) -> None:
    response = client.send(request(target=b"/written")).response()
    assert (response.status, response.headers["content-length"], response.body) == (503, "20", b"written and returned")
    assert not {"transfer-encoding", "connection"} & response.headers.keys()  # Even after an error, it is kept.


@pytest.mark.parametrize("client_ends", [False, True], ids=["Connection: close", "half-closed"])
def test_a_large_response_is_sent_whole_before_the_close(client: Client, client_ends: bool) -> None:
    client.send(request(b"" if client_ends else b"Connection: close\r\n", b"/large"))
    if client_ends:
        client.end()
    assert len(client.response().body) == 8_000_000
    assert client.is_closed()


def test_a_unix_socket_without_limits_and_keepalive(tmp_path: Path) -> None:
    limits = ["--limit-request-line=0", "--limit-request-fields=0", "--limit-request-field_size=0", "--keep-alive=0"]
    fields = b"".join(b"X-%d: %d\r\n" % (number, number) for number in range(300)) + b"X-A: %b\r\n" % (b"a" * 9000)
    with running_worker(tmp_path, *limits, bind=f"unix:{tmp_path}/socket") as server:
        (response,) = server.client().send(request(fields, b"/echo?" + b"q" * 2000)).responses()
    environ, _ = environ_and_body(response)
    assert (environ["REMOTE_ADDR"], environ["SERVER_NAME"], environ["SERVER_PORT"]) == ("", "localhost", "80")
    assert [environ[f"HTTP_X_{number}"] for number in range(300)] == [str(number) for number in range(300)]
    assert response.headers["connection"] == "close"
