"""The fixtures, the servers and the command for tests of other projects."""

import http.client
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plants import Plant, StoreUnavailable
from plants.stores.sqlite import SQLiteStore
from plants.testing import Deployment, FaultyStore, Received, Server, serve
from tests.contract import TOKEN, Response, new_plant
from tests.support.calls import Stream, call
from tests.support.hosted import CHECKOUT
from tests.support.needs import needs
from tests.support.process import free_port, wait_until

TESTING = (CHECKOUT / "docs/testing.md").read_text()


class Address(NamedTuple):
    url: str
    token: str


def post(server: Server | Address, token: str | None = None, timeout: float = 10, **members: Any) -> Response:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=timeout)
    headers = {"Authorization": f"Bearer {token or server.token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/plants", json.dumps({"id": 1, "name": "Fern", **members}), headers)
        response = connection.getresponse()
        return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def test_the_app_fixture_has_a_valid_token_and_a_store(plants_app: Any) -> None:
    assert plants_app.post_json("/plants", {"id": 1, "name": "Fern"}).json == {"name": "Fern"}
    assert plants_app.deployment.store.get(1) == Plant(1, "Fern")
    assert plants_app.deployment.requests[0].headers["authorization"] == f"Bearer {plants_app.deployment.token}"


def test_the_server_fixture_listens_on_a_real_port(plants_server: Server) -> None:
    assert post(plants_server, tag="shade").plant == {"name": "Fern", "tag": "shade"}
    assert plants_server.store.get(1) == Plant(1, "Fern", "shade")


def test_a_store_unavailable_fault_is_503(plants_server: Server) -> None:
    plants_server.store.fault = StoreUnavailable("on demand")
    response = post(plants_server)
    assert (response.error, response.headers["retry-after"]) == (50300, "1")
    plants_server.store.fault = None
    assert post(plants_server).status == 200


def test_the_old_token_gets_401_after_a_rotation(plants_server: Server) -> None:
    old = plants_server.token
    assert plants_server.rotate_token() == plants_server.token != old
    assert post(plants_server, token=old).error == 40101
    assert post(plants_server).status == 200


def get(server: Server, path: str, headers: dict[str, str] | None = None) -> Response:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def test_a_fault_lasts_for_n_requests(plants_server: Server) -> None:
    plants_server.store.fail(times=2)
    assert [post(plants_server).status for _ in range(3)] == [503, 503, 200]
    plants_server.store.fail(RuntimeError("on demand"), times=1)
    assert [post(plants_server, id=number).status for number in (2, 2)] == [500, 200]


def test_a_fault_without_times_lasts_until_it_is_removed(plants_server: Server) -> None:
    plants_server.store.fail(times=1)
    plants_server.store.fault = StoreUnavailable("from now on")
    assert [post(plants_server).status for _ in range(3)] == [503] * 3
    plants_server.store.fail()
    assert [post(plants_server).status for _ in range(3)] == [503] * 3
    plants_server.store.fault = None
    assert post(plants_server).status == 200


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_a_server_responds_with_any_status_on_demand(plants_server: Server, status: int) -> None:
    plants_server.fail(status, times=1)
    response = post(plants_server, token="wrong")
    assert (response.status, response.error) == (status, status * 100)
    assert ("retry-after" in response.headers) == (status in {429, 503})
    assert plants_server.store.get(1) is None
    assert get(plants_server, "/readyz").status == 200
    assert post(plants_server).status == 200


def test_a_failed_head_request_has_no_body(plants_server: Server) -> None:
    plants_server.fail(429, times=1)
    with closing(http.client.HTTPConnection(plants_server.url.removeprefix("http://"), timeout=60)) as connection:
        connection.request("HEAD", "/plants")
        response = connection.getresponse()
        assert (response.status, response.read()) == (429, b"")
        assert int(response.headers["Content-Length"]) > 0
        connection.request("GET", "/livez")
        assert connection.getresponse().status == 200
    assert plants_server.requests[0].response == b""


def test_a_reset_connection_stores_nothing(plants_server: Server) -> None:
    plants_server.fail("reset", times=2)
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            post(plants_server)
    assert plants_server.store.get(1) is None
    assert [(request.status, request.error, request.response) for request in plants_server.requests] == [
        (0, None, b"")
    ] * 2
    assert post(plants_server).status == 200


def test_a_cut_response_stores_the_plant(plants_server: Server) -> None:
    plants_server.fail("cut", times=1)
    with pytest.raises(http.client.IncompleteRead) as caught:
        post(plants_server, tag="shade")
    assert caught.value.partial == plants_server.requests[0].response == b'{"name": "Fern",'
    assert plants_server.store.get(1) == Plant(1, "Fern", "shade")
    assert post(plants_server).error == 40003


@pytest.mark.parametrize("wrong", [200, 399, 600, "429", "restart"], ids=repr)
def test_an_invalid_failure_is_rejected(plants_server: Server, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^a failure is an HTTP error status, 'reset' or 'cut', not "):
        plants_server.fail(wrong)


def test_a_store_fails_for_one_id(plants_server: Server) -> None:
    plants_server.store.fail(plant_id=2, times=2)
    assert [post(plants_server, id=number).status for number in (1, 2, 3, 2, 2)] == [200, 503, 200, 503, 200]
    plants_server.store.fail(plant_id=4)
    assert get(plants_server, "/readyz").status == 200
    plants_server.store.fault = None
    assert post(plants_server, id=4).status == 200


def test_the_app_fixture_fails_on_demand(plants_app: Any) -> None:
    plants_app.deployment.fail(429, times=1)
    assert plants_app.post_json("/plants", {"id": 1, "name": "Fern"}, status=429).json["error"] == 42900
    plants_app.deployment.fail("reset", times=1)
    with pytest.raises(ConnectionResetError):
        plants_app.post_json("/plants", {"id": 1, "name": "Fern"})


def test_a_server_limits_bodies_and_has_headers_for_a_create() -> None:
    with serve(max_body_bytes=30, token="mine") as server:
        assert server.headers == {"Authorization": "Bearer mine", "Content-Type": "application/json"}
        assert (post(server).status, post(server, tag="shade").error) == (200, 41300)


def test_a_reused_fault_does_not_collect_tracebacks() -> None:
    store = FaultyStore()
    store.fail(RuntimeError("on demand"))
    for method in (store.check, partial(store.add, Plant(1, "Fern"))):
        lengths = []
        for _ in range(3):
            with pytest.raises(RuntimeError) as caught:
                method()
            lengths.append(len(caught.traceback))
        assert len(set(lengths)) == 1


def test_a_server_has_the_probes_and_the_description(plants_server: Server) -> None:
    assert json.loads(get(plants_server, "/openapi.json").body)["info"]["version"] == "1.0.0"
    assert get(plants_server, "/livez").status == get(plants_server, "/readyz").status == 200
    plants_server.store.fail(times=1)
    assert (get(plants_server, "/livez").status, get(plants_server, "/readyz").error) == (200, 50300)
    assert post(plants_server).status == 503
    assert get(plants_server, "/readyz").status == 200


def test_a_server_records_requests_and_responses(plants_server: Server) -> None:
    post(plants_server)
    post(plants_server, token="wrong", name="Ivy")
    get(plants_server, "/livez?x=1")
    first, second, third = plants_server.requests
    assert (first.method, first.path, first.status) == ("POST", "/plants", 200)
    assert json.loads(first.body) == {"id": 1, "name": "Fern"}
    assert first.headers["authorization"] == f"Bearer {plants_server.token}"
    assert first.headers["content-type"] == "application/json"
    assert (json.loads(second.body)["name"], second.status) == ("Ivy", 401)
    assert (first.error, json.loads(first.response)) == (None, {"name": "Fern"})
    assert (second.error, json.loads(second.response)["error"]) == (40101, 40101)
    assert third._replace(headers={}) == Received("GET", "/livez", "x=1", {}, b"", 200, None, b'{"status": "live"}')


def test_delayed_requests_complete_after_end_delays(plants_server: Server) -> None:
    plants_server.store.delay = 60.0
    with ThreadPoolExecutor(8) as pool:
        responses = [pool.submit(post, plants_server, id=number) for number in range(8)]
        plants_server.store.wait_for_adds(8)
        assert not any(response.done() for response in responses)
        plants_server.store.end_delays()
        assert [response.result().status for response in responses] == [200] * 8


def test_wait_for_adds_times_out(plants_server: Server) -> None:
    with pytest.raises(TimeoutError, match="0 adds wait, not 1"):
        plants_server.store.wait_for_adds(1, timeout=0.01)


def test_a_client_timeout_does_not_delay_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    with serve() as server:
        server.store.delay = 600.0
        with pytest.raises(TimeoutError):
            post(server, timeout=0.1)
        server.store.wait_for_adds(1)
    assert "still running" not in caplog.text


def test_a_reset_drops_the_plants_of_delayed_requests(plants_server: Server) -> None:
    plants_server.store.delay = 600.0
    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(post, plants_server)
        plants_server.store.wait_for_adds(1)
        plants_server.reset()
        assert response.result().status == 200
    assert plants_server.store.get(1) is None
    assert plants_server.requests == []


def test_reset_returns_a_server_to_its_start(plants_session_server: Server) -> None:
    token = plants_session_server.token
    assert post(plants_session_server).status == 200
    plants_session_server.rotate_token()
    plants_session_server.store.fail()
    plants_session_server.store.delay = 600.0
    plants_session_server.reset()
    assert plants_session_server.token == token
    assert (plants_session_server.store.fault, plants_session_server.store.delay) == (None, 0.0)
    assert plants_session_server.requests == []
    assert post(plants_session_server).status == 200


def test_serve_accepts_a_token_a_port_and_a_store(tmp_path: Path) -> None:
    with closing(SQLiteStore(str(tmp_path / "plants.db"))) as store, serve() as other:
        with ExitStack() as stack, pytest.raises(OSError, match="in use"):
            stack.enter_context(serve(port=int(other.url.rpartition(":")[2])))
        with serve(token="mine", store=store) as server:
            assert post(server, token="mine").status == 200
            server.reset()
            assert server.store.get(1) == store.get(1) == Plant(1, "Fern")
            assert post(server, token="mine").error == 40003
            assert get(server, "/readyz").status == 200
    port = free_port()
    with serve(port=port) as server:
        assert server.url == f"http://127.0.0.1:{port}"


def test_a_faulty_store_closes_its_inner_store(tmp_path: Path) -> None:
    store = SQLiteStore(str(tmp_path / "plants.db"))
    FaultyStore(store).close()
    with pytest.raises(StoreUnavailable):
        store.check()


def threads_and_files() -> Counter[object]:
    found: Counter[object] = Counter(threading.enumerate())
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # The listing itself used this descriptor.
            found[descriptor.readlink()] += 1
    return found


def test_servers_leak_no_threads_sockets_or_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serve() as server:
        assert post(server).status == 200
    before = threads_and_files()
    for _ in range(30):
        with serve() as server:
            assert post(server).status == 200
    # Subtract, because threads of an earlier test may end meanwhile.
    assert not threads_and_files() - before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environ", "size"),
    [({"CONTENT_LENGTH": "25"}, 25), ({"wsgi_input_terminated": True}, -1), ({"REQUEST_METHOD": "GET"}, 0)],
    ids=["length", "chunked", "no body"],
)
def test_a_deployment_reads_no_more_than_the_body(environ: dict[str, Any], size: int) -> None:
    """On a server such as wsgiref, a read after the end of the body would wait until the client closes."""
    stream = Stream(new_plant())
    call(Deployment(token=TOKEN), stream, **environ)
    assert stream.sizes == [size]


# Disable these plugins, because they take longer to load than the tests take to run.
FEW_PLUGINS = ("-p", "no:hypothesispytest", "-p", "no:xdist")
OTHER_PROJECT = """
import json, urllib.request

def test_x(plants_server):
    body = json.dumps({"id": 1, "name": "Fern"}).encode()
    headers = {"Authorization": "Bearer " + plants_server.token, "Content-Type": "application/json"}
    request = urllib.request.Request(plants_server.url + "/plants", body, headers)
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer) == {"name": "Fern"}

def test_y(plants_app):
    plants_app.post_json("/plants", {"id": 1, "name": "Fern"}, status=200)

test_z = test_y  # The id is free again, because each test has a new store.
"""


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_documented_test_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(re.findall(r"```python\n(.*?)```", TESTING, re.DOTALL)[0])
    pytester.runpytest_subprocess(*FEW_PLUGINS).assert_outcomes(passed=1)


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_fixtures_work_with_warnings_as_errors(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(OTHER_PROJECT)
    pytester.runpytest_subprocess("-W", "error", *FEW_PLUGINS).assert_outcomes(passed=3)


def test_without_the_extra_a_fixture_names_the_missing_package(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys; sys.modules['webtest'] = None")
    pytester.makepyfile(OTHER_PROJECT)
    result = pytester.runpytest_subprocess("--no-header", *FEW_PLUGINS)
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["there is no webtest: run pip install 'plants[[]testing[]]'"])


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_an_unused_plugin_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\n"
        "def test_nothing():\n"
        "    heavy = ('falcon', 'marshmallow', 'gunicorn', 'webtest', 'waitress', 'plants.app', 'plants.testing')\n"
        "    assert 'plants.pytest_plugin' in sys.modules\n"
        "    assert not [name for name in heavy if name in sys.modules]\n"
    )
    pytester.runpytest_subprocess(*FEW_PLUGINS).assert_outcomes(passed=1)


def start_command(*options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "plants.testing", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_the_documented_command_serves() -> None:
    (options,) = re.findall(r"^python -m plants\.testing (--.*) secret$", TESTING, re.MULTILINE)
    with start_command(*options.split(), "secret") as process:
        assert process.stdout
        started = json.loads(process.stdout.readline())
        assert post(Address(started["url"], "secret")).status == 200
        assert started.keys() == json.loads(re.findall(r"This prints `(.*?)`", TESTING)[0]).keys()
        process.communicate()


@pytest.mark.network
def test_the_extra_is_all_that_another_project_installs(tmp_path: Path) -> None:
    (install,) = re.findall(r"^pip (install '.*')$", TESTING, re.MULTILINE)
    install = install.replace("/path/to/checkout", str(CHECKOUT))
    (tmp_path / "test_other.py").write_text(OTHER_PROJECT)
    script = (
        f"{shlex.quote(sys.executable)} -m venv env && env/bin/pip {install} --quiet && env/bin/pytest test_other.py"
    )
    subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, check=True, timeout=300)


def send_command(process: "subprocess.Popen[str]", line: str) -> Any:
    assert process.stdin
    assert process.stdout
    print(line, file=process.stdin, flush=True)
    return json.loads(process.stdout.readline())


def test_the_command_fails_and_resets_a_service_for_a_test_in_any_language() -> None:
    with start_command("--token", "mine") as process:
        assert process.stdout
        first = json.loads(process.stdout.readline())
        assert first["token"] == "mine"
        server = Address(first["url"], "mine")
        assert send_command(process, "fail 503 2") == first
        assert [post(server).status for _ in range(3)] == [503, 503, 200]
        send_command(process, "fail 500")
        assert post(server).error == 50000
        assert send_command(process, "reset") == first
        send_command(process, "fail 429 1")
        assert [post(server, id=3).status for _ in range(2)] == [429, 200]
        send_command(process, "fail id 4 1")
        assert [post(server, id=number).status for number in (5, 4, 4)] == [200, 503, 200]
        send_command(process, "fail cut")
        with pytest.raises(http.client.IncompleteRead):
            post(server, id=6)
        for wrong in ("", "fail", "fail 200", "fail 503 1 2", "fail 429 x", "fail id", "fail id x", "FAIL 503"):
            assert send_command(process, wrong)["error"].startswith(f"{wrong}: ")
        assert process.stdin
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--token", ""], "a token consists of"),
        (["--token", "a b"], "a token consists of"),
        (["--port", "65536"], "port must be 0-65535"),
        (["--port", "USED"], "Address already in use"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_the_command_reports_a_bad_option_after_its_usage(options: list[str], message: str) -> None:
    with serve() as server:
        options = [option.replace("USED", server.url.rpartition(":")[2]) for option in options]
        result = subprocess.run(
            [sys.executable, "-m", "plants.testing", *options], capture_output=True, text=True, check=False
        )
    usage, problem = result.stderr.splitlines()
    assert (result.returncode, result.stdout, usage[:6]) == (2, "", "usage:")
    assert problem.startswith("python -m plants.testing: error: ")
    assert message in problem


@needs("curl")
def test_the_documented_shell_script_works(tmp_path: Path) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", TESTING, re.DOTALL)
    port = str(free_port())
    script = script.replace("python ", f"{shlex.quote(sys.executable)} ").replace("8001", port)
    result = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["error"] == 50300
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: is_free(int(port)))


def is_free(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_the_command_ends_at_a_signal(number: signal.Signals) -> None:
    port = str(free_port())
    with start_command("--port", port) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["url"] == f"http://127.0.0.1:{port}"
        process.send_signal(number)
        assert process.wait(60) == 0
