"""The fixtures, the servers and the command for tests of other projects, and clients that tools generate."""

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Any

import pytest

from plants import Plant, StoreUnavailable
from plants.stores.sqlite import SQLiteStore
from plants.testing import Received, Server, serve
from tests.contract import Response, new_plant
from tests.support.hosted import CHECKOUT, needs, output_of, run, send_to
from tests.support.process import free_port, wait_until

TESTING = (CHECKOUT / "docs/testing.md").read_text()


@pytest.fixture(scope="session")
def shared_server(plants_session_server: Server) -> Server:
    """A fixture for a whole session, as another project may have one."""
    return plants_session_server


@pytest.fixture
def server(shared_server: Server) -> Server:
    """A server in its initial state, which only ``reset()`` has restored."""
    shared_server.reset()
    return shared_server


def post(server: Server, token: str | None = None, **members: Any) -> Response:
    headers = server.headers | ({"Authorization": f"Bearer {token}"} if token else {})
    return send_to(int(server.url.rpartition(":")[2]), new_plant(**members), headers=[*headers.items()])


def get(server: Server, path: str, method: str = "GET") -> Response:
    return send_to(int(server.url.rpartition(":")[2]), method=method, path=path, headers=[])


def test_the_app_fixture_has_a_valid_token_and_a_store_and_fails(plants_app: Any) -> None:
    assert plants_app.post_json("/plants", {"id": 1, "name": "Fern"}).json == {"name": "Fern"}
    assert plants_app.deployment.store.get(1) == Plant(1, "Fern")
    assert plants_app.deployment.requests[0].headers["authorization"] == f"Bearer {plants_app.deployment.token}"
    for failure, error in {"close": ConnectionError, "cut": AssertionError}.items():
        plants_app.deployment.fail(failure, times=1)
        with pytest.raises(error):
            plants_app.post_json("/plants", {"id": 2, "name": "Fern"})


def test_reset_restores_the_initial_state(server: Server) -> None:
    token = server.token
    assert post(server).status == 200
    assert server.rotate_token() == server.token != token != Server().token
    assert [post(server, token=token, id=2).error, post(server, id=2).status] == [40101, 200]
    server.fail(400)
    server.store.fail()
    server.store.delay = 600.0
    server.reset()
    assert (server.token, server.requests, server.store.delay) == (token, [], 0.0)
    assert post(server).status == 200


def test_a_fault_lasts_for_n_requests_or_until_it_is_removed(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.store.fail(times=2)
    assert [get(server, "/livez").status, get(server, "/readyz").error] == [200, 50300]
    assert [post(server).status for _ in range(3)] == [503, 503, 200]
    assert [get(server, "/livez").status, get(server, "/readyz").status] == [200, 200]
    server.store.fail(RuntimeError("on demand"), times=1)
    assert [post(server, id=number).status for number in (2, 2)] == [500, 200]
    caplog.clear()
    server.store.fault = LookupError("from now on")
    assert [post(server).status for _ in range(3)] == [500] * 3
    # A reused exception must not collect the tracebacks of all requests.
    assert len({str(record.exc_text).count("\n") for record in caplog.records if record.exc_text}) == 1
    server.store.fail()
    assert [post(server).status for _ in range(3)] == [503] * 3
    server.store.fault = None
    assert post(server, id=3).status == 200


@pytest.mark.parametrize(
    ("status", "value"), [(401, 'Bearer realm="plants"'), (405, "POST, OPTIONS"), (429, "1"), (503, "1")]
)
def test_a_server_responds_with_a_status_on_demand(server: Server, status: int, value: str) -> None:
    server.fail(status)
    get(server, "/plants", method="HEAD")
    assert get(server, "/readyz").status == 200
    response = post(server, token="wrong")
    assert (response.status, response.error) == (status, status * 100)
    assert value in response.headers.values()  # of WWW-Authenticate, Allow or Retry-After
    head, _, create = server.requests
    assert (head.response, create.body, create.response) == (b"", new_plant(), response.body)
    server.fail(status, times=0)
    assert server.store.get(1) is None
    assert post(server).status == 200


def test_a_close_stores_nothing_and_a_cut_response_the_plant(server: Server) -> None:
    server.fail("close", times=2)
    for _ in range(2):
        with pytest.raises(http.client.RemoteDisconnected):
            post(server)
    assert server.store.get(1) is None
    server.fail("cut", times=1)
    with pytest.raises(http.client.IncompleteRead) as caught:
        post(server, tag="shade")
    assert server.store.get(1) == Plant(1, "Fern", "shade")
    assert post(server).error == 40003
    half = b'{"name": "Fern",'
    assert caught.value.partial == half
    recorded = [(request.body, request.status, request.response) for request in server.requests[:3]]
    assert recorded == [(new_plant(), 0, b"")] * 2 + [(new_plant(tag="shade"), 200, half)]


def test_an_unusable_token_or_failure_is_rejected(server: Server) -> None:
    for token in ("", "my token", "Bearer secret"):
        with pytest.raises(ValueError, match=r"^a token consists of letters, digits and -"):
            Server(token=token)
    for wrong in (200, 600, "429"):
        with pytest.raises(ValueError, match=r"^a failure is an HTTP error status, 'close' or 'cut', not "):
            server.fail(wrong)  # type: ignore[arg-type]


def test_a_server_records_requests_and_responses(plants_server: Server) -> None:
    post(plants_server)
    rejected = post(plants_server, token="wrong", name="Ivy")
    missing = get(plants_server, "/%C3%A9?x=%31")
    assert [request._replace(headers={}) for request in plants_server.requests] == [
        Received("POST", "/plants", "", {}, new_plant(), 200, b'{"name": "Fern"}\n'),
        Received("POST", "/plants", "", {}, new_plant(name="Ivy"), 401, rejected.body),
        Received("GET", "/é", "x=%31", {}, b"", 401, missing.body),
    ]


@pytest.mark.parametrize(
    ("end", "kept"),
    [(lambda server: setattr(server.store, "delay", 0.0), 14), (Server.reset, 0)],
    ids=["delay = 0.0", "reset, which also drops their plants"],
)
def test_delayed_requests_complete_at_once(server: Server, end: Callable[[Server], None], kept: int) -> None:
    server.store.delay = 600.0
    server.store.fail(times=1)
    with ThreadPoolExecutor(15) as pool:
        responses = [pool.submit(post, server, id=number) for number in range(15)]
        time.sleep(1.0)
        assert not any(response.done() for response in responses)
        assert get(server, "/livez").status == 200
        assert "waitress-16" not in {thread.name for thread in threading.enumerate()}  # It calls 16 at a time, no more.
        end(server)
        assert [response.result().status for response in responses].count(200) == (kept or 15)
    assert [request.path for request in server.requests] == (["/livez"] + ["/plants"] * 15 if kept else [])
    assert [server.store.get(number) for number in range(15)].count(None) == 15 - kept


def test_serve_accepts_a_token_a_port_and_a_store(tmp_path: Path) -> None:
    port = free_port()
    with closing(SQLiteStore(str(tmp_path / "plants.db"))) as store:
        with serve(port=port, token="mine", store=store) as server:
            assert server.url == f"http://127.0.0.1:{port}"
            assert server.headers == {"Authorization": "Bearer mine", "Content-Type": "application/json"}
            assert post(server).status == 200
            server.reset()
            assert post(server).error == 40003
            assert "1048576 bytes" in send_to(port, bytes(2**20 + 1), headers=[*server.headers.items()]).message
            with pytest.raises(ConnectionRefusedError):
                http.client.HTTPConnection("127.0.0.2", port).connect()
        assert server.store.get(1) == store.get(1) == Plant(1, "Fern")
        server.store.close()
        with pytest.raises(StoreUnavailable):
            server.store.check()


def threads_and_descriptors() -> int:
    return threading.active_count() + len(list(Path("/proc/self/fd").iterdir()))


def test_servers_leak_no_threads_or_sockets_and_wait_for_no_delay(caplog: pytest.LogCaptureFixture) -> None:
    before = threads_and_descriptors()
    for _ in range(30):
        with serve() as server:
            assert post(server).status == 200
            server.store.delay = 600.0
            with closing(http.client.HTTPConnection(server.url.removeprefix("http://"))) as client:
                client.request("POST", "/plants", new_plant(), server.headers)
    assert "still running" not in caplog.text
    # Wait, because threads of earlier tests may open a file for a moment.
    wait_until(lambda: threads_and_descriptors() <= before)


# The first test runs in a session that has not used a fixture yet.
OTHER_PROJECT = """
import sys

def test_a_session_without_the_fixtures_imports_nothing_heavy():
    heavy = ("falcon", "marshmallow", "gunicorn", "webtest", "waitress", "plants.app", "plants.testing")
    assert "plants.pytest_plugin" in sys.modules
    assert not [name for name in heavy if name in sys.modules]

def test_y(plants_app):
    plants_app.post_json("/plants", {"id": 1, "name": "Fern"}, status=200)

test_z = test_y  # The id is free again, because each test has a new store.
"""


def test_the_fixtures_the_documented_test_and_the_example_emit_no_warning(pytester: pytest.Pytester) -> None:
    (documented,) = re.findall(r"```python\n(.*?)```", TESTING, re.DOTALL)
    example = (CHECKOUT / "examples/test_client.py").read_text()
    pytester.makepyfile(test_1=OTHER_PROJECT, test_2=documented, test_3=example)
    # Disable these plugins, because they take longer to load than the tests take to run.
    options = ("-W", "error", "-p", "no:hypothesispytest", "-p", "no:xdist")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=6)


def start_command(*options: str) -> Any:
    command = [sys.executable, "-m", "plants.testing", *options]
    return Popen(command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True)


def test_the_documented_command_serves_until_its_input_ends() -> None:
    (options,) = re.findall(r"^python -m plants\.testing (.*--fail.*)$", TESTING, re.MULTILINE)
    with start_command(*options.split()) as process:
        started = json.loads(process.stdout.readline())
        assert started.keys() == json.loads(re.findall(r"This prints `(.*?)`", TESTING)[0]).keys()
        server = Server(token=started["token"])
        server.url = started["url"]
        print("ignored", file=process.stdin, flush=True)
        assert [post(server).status, post(server).status] == [503, 503]
        sent = time.monotonic()
        assert post(server).status == 200
        assert time.monotonic() - sent >= 0.5
        process.stdin.close()
        assert process.wait(60) == 0


@needs("curl")
def test_the_documented_shell_starts_a_server_that_ends_with_it(tmp_path: Path) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", TESTING, re.DOTALL)
    script += """curl -sS "$url/plants" -H 'Authorization: Bearer secret' -H 'Content-Type: application/json' -d '%s'"""
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    assert output_of("sh", "-e", "-c", script % new_plant().decode(), cwd=tmp_path, PATH=path) == '{"name": "Fern"}\n'


def test_the_command_ends_at_a_signal_or_with_one_line() -> None:
    with start_command() as process:
        assert int(json.loads(process.stdout.readline())["url"].removeprefix("http://127.0.0.1:")) >= 1024
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    port = str(free_port())
    with start_command("--port", port, "--fail", "close") as process:
        assert json.loads(process.stdout.readline())["url"] == f"http://127.0.0.1:{port}"
        for _ in range(2):
            with pytest.raises(http.client.RemoteDisconnected):
                send_to(int(port), path="/plants", headers=[])
        wrong = (("--port", port, "[Errno "), ("--port", "65536", "bind(): port"), ("--fail", "200", "a failure is"))
        for option, value, reason in wrong:
            result = run(sys.executable, "-m", "plants.testing", option, value)
            assert (result.returncode, result.stderr.count("\n")) == (1, 1)
            assert result.stderr.startswith(f"plants.testing: {reason}")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        # On a busy machine, a request arrives before waitress has started its threads, and waitress warns of it.
        assert re.fullmatch(r"(Task queue depth is \d+\n)*", process.stdout.read())


PYTHON_CLIENT = (
    f"{shlex.quote(sys.executable)} -m venv env && env/bin/pip install --quiet openapi-python-client >&2 && "
    "env/bin/openapi-python-client generate --path openapi.json --output-path plant_store --meta none >&2 && "
    "env/bin/python client.py URL TOKEN"
)
TYPESCRIPT_CLIENT = (
    "npm install --silent --no-audit --no-fund openapi-fetch@^0.17.0 openapi-typescript@^7.13.0 typescript@^5.9.3 && "
    "npx openapi-typescript openapi.json -o schema.d.ts >&2 && "
    "npx tsc --strict --noEmitOnError --module nodenext --target es2022 --lib es2022,dom client.mts >&2 && "
    "node client.mjs URL TOKEN"
)


@pytest.mark.network
@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(PYTHON_CLIENT, id="openapi-python-client"),
        pytest.param(TYPESCRIPT_CLIENT, marks=needs("node", "npm"), id="openapi-typescript and openapi-fetch"),
    ],
)
def test_a_client_creates_a_plant_and_gets_an_error(plants_server: Server, tmp_path: Path, commands: str) -> None:
    shutil.copytree(CHECKOUT / "tests/published/clients", tmp_path, dirs_exist_ok=True)
    (tmp_path / "openapi.json").write_bytes(files("plants").joinpath("openapi.json").read_bytes())
    script = commands.replace("URL", plants_server.url).replace("TOKEN", f"'{plants_server.token}'")
    plant, error = map(json.loads, output_of("sh", "-c", script, cwd=tmp_path).splitlines())
    assert (plant, error["error"]) == ({"name": "Fern"}, 40003)
