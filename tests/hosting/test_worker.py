"""The headers of responses. Each response has a request id, which is also in the log line of its request."""

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from plants.hosting.factory import create_service
from plants.hosting.hooks import PlantService
from plants.hosting.logs import AccessLog
from plants.hosting.settings import Settings
from plants.server.request import HTTPError, Request, SizedBody
from plants.server.threads import current
from plants.tokens import TokenCheck
from tests.contract import TOKEN, Headers, Response, new_plant
from tests.support.calls import call
from tests.support.hosted import Service, serving
from tests.support.loop_driver import new_request
from tests.support.process import wait_until

GENERATED_ID = r"[0-9a-f]{12}-[0-9a-f]+"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(workers=2, PLANTS_STORE=f"sqlite:///{tmp_path_factory.mktemp('store')}/plants.db") as service:
        yield service


def test_a_401_has_the_expected_headers_and_no_others(service: Service) -> None:
    names = service.send(method="GET", headers=[]).headers.keys()
    ours = {"content-type", "cache-control", "x-content-type-options", "x-request-id", "www-authenticate"}
    assert names == ours | {"connection", "date", "content-length"}


@pytest.mark.parametrize("request_id", ["a", "A-z_0.9", "x" * 128])
def test_a_request_id_from_the_client_is_returned(service: Service, request_id: str) -> None:
    response = service.send(method="GET", path="/livez", headers=[("X-Request-ID", request_id)])
    assert response.headers["x-request-id"] == request_id


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("X-Request-ID", "")],
        [("X-Request-ID", "x" * 129)],
        [("X-Request-ID", "a b")],
        [("X-Request-ID", 'a","level":"info')],
        [("X-Request-ID", "é")],
        [("X-Request-ID", "a"), ("X-Request-ID", "b")],
    ],
    ids=str,
)
def test_an_id_is_generated_without_a_valid_one(service: Service, fields: Headers) -> None:
    found = {service.send(method="GET", path="/livez", headers=fields).headers["x-request-id"] for _ in range(3)}
    assert len(found) == 3
    assert all(re.fullmatch(GENERATED_ID, request_id) for request_id in found)


def test_request_ids_differ_between_processes(service: Service) -> None:
    prefixes = set()

    def both_workers_have_responded() -> bool:
        request_id = service.send(method="GET", path="/livez", headers=[]).headers["x-request-id"]
        prefixes.add(request_id.partition("-")[0])
        return len(prefixes) == 2

    wait_until(both_workers_have_responded)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nX-Request-ID: mine\r\n\r\n", 400, id="no host"),
        pytest.param(b"\x16\x03\x01\r\n\r\n", 400, id="not HTTP"),
        pytest.param(b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, id="a long path"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"a" * 17_000 + b"\r\n\r\n", 431, id="a long head"),
        pytest.param(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\n\r\n", 400, id="the PROXY protocol"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="HTTP/2"),
        pytest.param(b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 501, id="a tunnel"),
    ],
)
def test_requests_the_server_rejects_are_logged_with_an_id(service: Service, request_: bytes, status: int) -> None:
    with service.client() as client:
        response = client.send(request_).response()
    request_id = response.headers["x-request-id"]
    assert (request_id == "mine") == (b"mine" in request_)
    line = service.line_of(request_id)
    assert (response.status, line["status"], line["error_code"]) == (status, status, response.error)
    assert (line["level"], line["error_message"]) == (
        "error" if status >= 500 else "warning",
        json.loads(response.body)["message"],
    )


def test_a_request_timeout_is_logged_with_id_method_and_path() -> None:
    head = b"POST /plants?a=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer correct-horse\r\nContent-Length: 9\r\n\r\n"
    with serving(PLANTS_REQUEST_TIMEOUT="1") as service:
        clients = [service.client().send(head[:length]) for length in (19, len(head))]
        for client, request in zip(clients, [("", ""), ("POST", "/plants")], strict=True):
            (response,) = client.responses()
            line = service.line_of(response.headers["x-request-id"])
            assert (response.status, line["status"], line["error_code"]) == (408, 408, 40800)
            assert (line["level"], line["error_message"]) == ("warning", json.loads(response.body)["message"])
            assert (line["method"], line["path"]) == request


def test_probes_get_200_while_token_holders_fill_the_worker() -> None:
    head = f"POST /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n".encode()
    with serving("--worker-connections=4") as service, ExitStack() as stack:
        slow = [stack.enter_context(service.client()).send(head + b"x") for _ in range(4)]
        refused = stack.enter_context(service.client()).send(head).response()
        assert (refused.status, refused.error) == (503, 50300)
        assert service.send(method="GET", path="/livez", headers=[]).status == 200
        assert service.send(headers=[]).status == 401
        assert [client.send(b"x" * 8).response().status for client in slow] == [415] * 4


class FailingCheck(NamedTuple):
    error: BaseException

    def accepts(self, _token: str) -> bool:
        raise self.error


def service_with(check: TokenCheck) -> PlantService:
    log = AccessLog(None, logging.INFO, "json")
    settings = Settings.from_environ({})._replace(tokens_check=check)
    return PlantService(create_service(settings), logging.getLogger(), log, None)


def request_for(path: str) -> Request:
    request = new_request(HTTP_AUTHORIZATION="Bearer x")
    request.path = path
    request.body = SizedBody(5)
    request.head_parsed = True
    return request


@pytest.mark.parametrize("error", [OSError("no database"), asyncio.CancelledError(), SystemExit(3)], ids=repr)
def test_a_token_check_that_raises_before_the_body_is_a_500(
    error: BaseException, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for("/plants")
    requests: list[object] = []
    monkeypatch.setattr(caplog.handler, "filter", lambda _record: not requests.append(current.request))  # type: ignore[func-returns-value]
    response = service_with(FailingCheck(error)).after_head(request)
    assert requests == [request]  # The line has the id of this request.
    assert response
    assert (response.status, json.loads(response.body)["error"]) == ("500 Internal Server Error", 50000)
    assert caplog.messages == ["a request failed"]


def test_the_body_of_a_request_for_a_public_path_is_not_received() -> None:
    request = request_for("/livez")
    assert service_with(FailingCheck(OSError())).after_head(request) is None
    assert request.body.complete
    assert not request.keep_alive


def test_a_503_of_the_server_says_when_to_retry() -> None:
    response = service_with(FailingCheck(OSError())).error_response(HTTPError(503), request_for("/plants"))
    assert b"\r\nRetry-After: 1\r\n" in response.head


def test_several_processes_never_store_plants_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    app = create_service(Settings.from_environ({"PLANTS_TOKENS": TOKEN})).app

    def send(method: str, path: str) -> Response:
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "wsgi_input_terminated": True}
        return call(app, io.BytesIO(new_plant()), wsgi_multiprocess=True, **environ)

    requests = [("POST", "/plants"), ("GET", "/readyz"), ("GET", "/livez"), ("GET", "/docs")]
    assert [send(*request).error for request in requests] == [50000] * 4
    assert send("HEAD", "/readyz").body == b""
    assert caplog.messages == ["the store cannot be shared by several processes: set PLANTS_STORE, or run one process"]
