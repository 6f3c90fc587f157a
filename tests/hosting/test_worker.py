"""The headers and ids of responses, rejections, token checks, and an application that somebody has wrapped."""

import io
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plants.hosting.factory import create_hosted_app
from plants.hosting.settings import Settings
from tests.contract import AUTH, JSON_TYPE, TOKEN, Response, new_plant
from tests.support.calls import call
from tests.support.hosted import SERVE, Service, serving
from tests.support.process import children, wait_until


def test_each_response_has_the_clients_request_id_or_a_new_one(service: Service) -> None:
    def ids_for(*fields: str) -> set[str]:
        headers = [("X-Request-ID", field) for field in fields]
        sent = [service.send(method="GET", path="/livez", headers=headers) for _ in range(3)]
        assert not any("connection" in response.headers for response in sent)  # Probes may use a connection again.
        return {response.headers["x-request-id"] for response in sent}

    for request_id in ("a", "A-z_0.9", "x" * 128):
        assert ids_for(request_id) == {request_id}
    for fields in ([], [""], ["x" * 129], ["a b"], ['a","level":"info'], ["é"], ["a", "b"]):
        found = ids_for(*fields)
        assert len(found) == 3
        assert all(re.fullmatch("[0-9a-f]{12}-[0-9a-f]+", request_id) for request_id in found)
    first_id = ids_for().pop()
    wait_until(lambda: ids_for().pop()[:12] != first_id[:12])  # The other worker has another prefix.


REJECTED = {
    "no host": (b"GET / HTTP/1.1\r\nX-Request-ID: mine\r\n\r\n", 400),
    "another protocol": (b"PROXY TCP4 a b 1 2\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a body for a public path": (b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", 405),
}


@pytest.mark.parametrize(("request_", "status"), REJECTED.values(), ids=REJECTED)
def test_requests_that_are_not_received_are_logged_with_an_id(service: Service, request_: bytes, status: int) -> None:
    with service.client() as client:
        response = client.send(request_).response()
    request_id = response.headers["x-request-id"]
    assert (request_id == "mine", "PROXY" in response.message) == (b"mine" in request_, b"PROXY" in request_)
    line = service.line_of(request_id)
    assert (response.status, line["status"], response.headers["connection"]) == (status, status, "close")
    level = "error" if status >= 500 else "warning"
    assert (line["level"], line["error_code"], line["error_message"]) == (level, response.error, response.message)


def test_a_worker_sends_heartbeats_without_which_the_master_kills_it(service: Service) -> None:
    descriptors = Path(f"/proc/{children(service.process.pid)[0]}/fd").iterdir()
    [heartbeat] = [path for path in descriptors if "wgunicorn" in str(path.readlink())]
    last = heartbeat.stat().st_mtime
    wait_until(lambda: heartbeat.stat().st_mtime > last)


def test_an_error_without_a_body_is_logged_with_its_code(service: Service) -> None:
    for token, path, error in ((f"{TOKEN}s", "/plants", 40101), (TOKEN, "/plants", 40500), (TOKEN, "/no", 40400)):
        headers = [("Authorization", f"Bearer {token}")]
        response = service.send(method="HEAD", path=path, headers=headers)
        assert (response.status, response.body) == (error // 100, b"")
        assert service.line_of(response.headers["x-request-id"])["error_code"] == error


def test_probes_get_200_while_token_holders_fill_the_worker() -> None:
    head = f"POST /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    head += b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    with serving("--worker-connections=4") as service:
        slow = [service.client().send(head) for _ in range(4)]
        assert [client.response().status for client in slow] == [100] * 4  # The worker has read the four tokens.
        refused = service.client().send(head).response()
        assert (refused.status, refused.error, refused.headers["retry-after"]) == (503, 50300, "1")
        service.wait_for("the worker is full: 1 clients were turned away")
        assert service.send(method="GET", path="/livez", headers=[]).status == 200
        assert service.send(headers=[]).status == 401
        assert [client.send(b"x" * 9).response().status for client in slow] == [415] * 4
        assert slow[0].send(head.replace(b"Bearer", b"Basic")).response().error == 40100  # Each request shows a token.


OWN_CHECK = """
from asyncio import CancelledError

class Check:
    known = ["tulip"]
    def accepts(self, token):
        if error := {"os": OSError, "cancelled": CancelledError, "exit": SystemExit}.get(token):
            raise error("no database")
        return token in self.known and not self.known.remove(token)  # So a second call for a request would fail.

check = Check()
"""


def test_a_custom_token_check_may_raise_and_timeouts_are_logged(tmp_path: Path) -> None:
    (tmp_path / "garden.py").write_text(OWN_CHECK)
    with serving(cwd=tmp_path, PLANTS_TOKENS_CHECK="garden:check", PLANTS_REQUEST_TIMEOUT="1.0") as service:

        def error_of(token: str) -> int:
            headers = [("Authorization", f"Bearer {token}"), ("X-Request-ID", f"-{token[::-1]}")]
            return service.send(headers=headers).error

        workers = children(service.process.pid)
        assert [error_of(token) for token in ("tulip", TOKEN, "rose")] == [41500, 41500, 40101]
        assert [error_of(token) for token in ("os", "cancelled", "exit")] == [50000] * 3
        service.wait_for('.*"msg":"a request failed","request_id":"-so"')
        head = f"POST /plants?a=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n"
        clients = [service.client().send(head[:length].encode()) for length in (19, len(head))]
        for client, request in zip(clients, [("", ""), ("POST", "/plants")], strict=True):
            (response,) = client.responses()
            line = service.line_of(response.headers["x-request-id"])
            assert (response.status, line["status"], line["error_code"]) == (408, 408, 40800)
            assert (line["method"], line["path"]) == request
            assert 1 <= line["duration"] < 500  # in seconds
        assert children(service.process.pid) == workers
    assert "request_id" not in next(line for line in service.lines if "Worker exiting" in line)


def test_several_processes_never_store_plants_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    app = create_hosted_app(Settings.from_environ({"PLANTS_TOKENS": TOKEN}))

    def send(method: str, path: str) -> Response:
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}
        return call(app, io.BytesIO(new_plant()), wsgi_multiprocess=True, **environ)

    assert [send("POST", "/plants").error, send("GET", "/livez").error] == [50000] * 2
    assert send("HEAD", "/readyz").body == b""
    message = "the store cannot be shared by several processes: set PLANTS_STORE, or run one process"
    assert caplog.messages == [message] * 3


WRAPPER = """
import time
from functools import partial
from pathlib import Path
from plants.wsgi import app as wrapped

def app(environ, start_response):
    del environ["REMOTE_ADDR"]
    while not Path(environ["QUERY_STRING"]).exists():  # An empty path is the working directory.
        time.sleep(0.01)
    return wrapped(dict(environ), start_response)
"""
LIVE, READY, CREATE = ("GET", "/livez"), ("GET", "/readyz"), ("POST", "/plants")


def test_a_wrapper_that_blocks_or_copies_delays_and_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    with (
        serving("--threads=1", command=[*SERVE, "wrapper:app"], cwd=tmp_path, PLANTS_STORE="sqlite:///p.db") as service,
        ThreadPoolExecutor(30) as threads,
    ):

        def send(plant_id: int, method: str = "POST", path: str = "/plants") -> Response:
            return service.send(new_plant(id=plant_id), method=method, path=path, headers=[AUTH, JSON_TYPE])

        # Each of these has a thread of its own, so none waits for another, not even for many of another.
        for number, (blocked, count, others) in enumerate(
            [(LIVE, 1, [READY, CREATE]), (READY, 30, [LIVE, CREATE]), (CREATE, 1, [LIVE, READY])]
        ):
            method, path = blocked
            waiting = [threads.submit(send, number, method, f"{path}?{number}") for _ in range(count)]
            for other in others:
                assert send(number * 10 + 10, *other).status == 200
            assert not any(each.done() for each in waiting)
            (tmp_path / str(number)).touch()
            assert {each.result().status for each in waiting} == {200}
        for response, error in ((send(2), 40003), (send(2, "PUT"), 40500), (send(2, "PUT", "/no"), 40400)):
            line = service.line_of(response.headers["x-request-id"])
            assert (response.error, line["error_code"], line["remote_ip"]) == (error, error, "127.0.0.1")
