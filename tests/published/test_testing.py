"""The fixtures for other people's tests."""

import http.client
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from plants import Plant, StoreUnavailable
from plants.testing import Client, Server, serve
from tests.contract import Answer


def post(server: Server, token: str | None = None, **members: Any) -> Answer:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    headers = {"Authorization": f"Bearer {token or server.token}", "Content-Type": "application/json"}
    try:
        connection.request("POST", "/plants", json.dumps({"id": 1, "name": "Fern", **members}), headers)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def test_the_app_fixture_has_a_valid_token_and_a_store(plants_app: Client) -> None:
    assert plants_app.post_json("/plants", {"id": 1, "name": "Fern"}).json == {"name": "Fern"}
    assert plants_app.store.get(1) == Plant(1, "Fern")


def test_the_app_fixture_has_a_new_store_in_each_test(plants_app: Client) -> None:
    assert plants_app.store.get(1) is None


def test_the_server_fixture_serves_on_a_real_port(plants_server: Server) -> None:
    assert post(plants_server, tag="shade").plant == {"name": "Fern", "tag": "shade"}
    assert plants_server.store.get(1) == Plant(1, "Fern", "shade")


def test_a_server_answers_503_on_demand(plants_server: Server) -> None:
    plants_server.store.fault = StoreUnavailable("on demand")
    answer = post(plants_server)
    assert (answer.error, answer.headers["retry-after"]) == (50300, "1")
    plants_server.store.fault = None
    assert post(plants_server).status == 200


def test_a_server_answers_500_on_demand(plants_server: Server) -> None:
    plants_server.store.fault = RuntimeError("on demand")
    assert post(plants_server).error == 50000


def test_a_server_answers_401_after_its_token_was_rotated(plants_server: Server) -> None:
    old = plants_server.token
    assert plants_server.rotate_token() == plants_server.token != old
    assert post(plants_server, token=old).error == 40101
    assert post(plants_server).status == 200


def test_a_server_is_slow_on_demand(plants_server: Server) -> None:
    plants_server.store.delay = 60.0
    with pytest.MonkeyPatch.context() as patch:
        slept: list[float] = []
        patch.setattr("plants.testing.time.sleep", slept.append)
        assert post(plants_server).status == 200
    assert slept == [60.0]


def test_an_in_process_client_answers_401_after_its_token_was_rotated(plants_app: Client) -> None:
    plants_app.deployment.rotate_token()
    assert plants_app.post_json("/plants", {"id": 1, "name": "Fern"}, status=401).json["error"] == 40101


def left() -> tuple[int, int]:
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def test_a_hundred_servers_leave_no_thread_socket_or_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serve() as server:
        assert post(server).status == 200
    before = left()
    for _ in range(100):
        with serve() as server:
            assert post(server).status == 200
    assert left() == before
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_still_connected_to_is_gone_after_the_test() -> None:
    before = left()
    with serve() as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().read()
    connection.close()
    assert left() == before


def test_two_servers_in_one_process_share_nothing() -> None:
    with serve() as one, serve() as other:
        assert post(one).status == post(other).status == 200
        assert post(one, token=other.token).error == 40101
        assert one.store.get(1) == other.store.get(1) == Plant(1, "Fern")


STRANGER = """
import json, urllib.request

def test_x(plants_server):
    body = json.dumps({"id": 1, "name": "Fern"}).encode()
    headers = {"Authorization": "Bearer " + plants_server.token, "Content-Type": "application/json"}
    request = urllib.request.Request(plants_server.url + "/plants", body, headers)
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer) == {"name": "Fern"}

def test_y(plants_app):
    plants_app.post_json("/plants", {"id": 1, "name": "Fern"}, status=200)
"""


def test_a_strangers_test_needs_no_import(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(STRANGER)
    pytester.runpytest_subprocess().assert_outcomes(passed=2)


def test_without_the_extra_a_fixture_says_what_to_install(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys; sys.modules['webtest'] = None")
    pytester.makepyfile(STRANGER)
    result = pytester.runpytest_subprocess("--no-header")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["there is no webtest: run pip install 'plants[[]testing[]]'"])


def test_the_plugin_brings_nothing_heavy_into_a_session_that_does_not_use_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\n"
        "def test_nothing():\n"
        "    heavy = ('falcon', 'marshmallow', 'gunicorn', 'webtest', 'waitress', 'plants.app', 'plants.testing')\n"
        "    assert 'plants.pytest_plugin' in sys.modules\n"
        "    assert not [name for name in heavy if name in sys.modules]\n"
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
