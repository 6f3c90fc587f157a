"""The examples. Most of them mount the application in another framework."""

import re
import runpy
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests
import uvicorn
from paste.deploy import loadapp

import plants
from plants import MemoryStore, PlantStore
from plants.app import create_app
from tests.contract import AUTH, JSON_TYPE, LIMIT, TOKEN, HostContract, Send, new_plant
from tests.support.calls import sender
from tests.support.hosted import CHECKOUT, environment, send_to
from tests.support.process import NO_SUBPROCESS_COVERAGE, Process

EXAMPLES = CHECKOUT / "examples"


def load(name: str) -> Any:
    path = EXAMPLES / name
    return loadapp(f"config:{path}") if path.suffix == ".ini" else runpy.run_path(str(path))["app"]


# Cache the application, because Django can be configured only once per process. A class-scoped fixture could run twice
# in a process, because xdist may split the tests of a class.
@cache
def mount(example: str) -> tuple[Any, MemoryStore]:
    """Return the application of an example, and its store."""
    store = MemoryStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)  # for Paste Deploy
        patch.setattr(plants, "create_app", lambda **_: create_app(store, tokens=[TOKEN], max_body_bytes=LIMIT))
        return load(example), store


class Mounted(HostContract):
    """The rows of the contract whose result may depend on a framework that mounts the application under /store."""

    example: ClassVar[str]

    @pytest.fixture(autouse=True)
    def store(self) -> PlantStore:
        _, store = mount(self.example)
        # Empty the store, because the cached application cannot be given another one.
        MemoryStore.__init__(store)
        return store

    @pytest.fixture
    def host(self) -> Send:
        return sender(mount(self.example)[0])

    @pytest.fixture
    def send(self, host: Send) -> Send:
        return lambda body=b"", *, method="POST", path="/plants", headers: host(
            body, method=method, path=f"/store{path}", headers=headers
        )

    def test_paths_outside_the_mount_reach_the_host_application(self, host: Send) -> None:
        assert host(method="GET", path="/", headers=[]).body == b"garden"
        assert host(method="GET", path="/storefront", headers=[]).status != 401


TestFlask = Mounted.on(example="flask_app.py")
TestDjango = Mounted.on(example="django_app.py")
TestFalcon = Mounted.on(example="falcon_app.py")
TestBottle = Mounted.on(
    example="bottle_app.py", does_not_apply={"404[not UTF-8]": "Bottle drops bytes that are not UTF-8"}
)
TestPasteDeploy = Mounted.on(
    example="paste.ini", does_not_apply={"slashes at the start]": "Paste's urlmap merges slashes in the path"}
)
TestPyramid = Mounted.on(
    example="pyramid_app.py",
    does_not_apply=dict.fromkeys(["slashes at the start]", "[dots"], "Pyramid normalizes the path below a mount")
    | {"404[not UTF-8]": "Pyramid raises before it looks for a view"},
)


class TestASGI(Mounted):
    example = "asgi_app.py"

    @pytest.fixture(scope="class")
    @classmethod
    def port(cls) -> Iterator[int]:
        server = uvicorn.Server(uvicorn.Config(mount(cls.example)[0], log_level="error"))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            yield listener.getsockname()[1]
            server.should_exit = True
            thread.join()

    @pytest.fixture
    def host(self, port: int) -> Send:
        return partial(send_to, port)

    def test_a_chunked_body_is_read(self, port: int) -> None:
        url = f"http://127.0.0.1:{port}/store/plants"
        response = requests.post(url, iter([new_plant()]), headers=dict([AUTH, JSON_TYPE]))
        assert response.json() == {"name": "Fern"}


def test_two_apps_in_one_process_share_nothing() -> None:
    send = sender(load("two_apps.py"))
    north, south = (("Authorization", f"Bearer {side}-secret") for side in ("north", "south"))
    for side, ours, theirs in (("north", north, south), ("south", south, north)):
        path = f"/{side}/plants"
        assert send(new_plant(), path=path, headers=[theirs, JSON_TYPE]).error == 40101
        assert send(new_plant(), path=path, headers=[ours, JSON_TYPE]).plant == {"name": "Fern"}


def test_an_expired_token_of_the_host_is_401() -> None:
    names = runpy.run_path(str(EXAMPLES / "own_check.py"))
    send = sender(names["app"])
    assert send(new_plant(), headers=[("Authorization", "Bearer secret"), JSON_TYPE]).status == 200
    names["leases"].expiry["secret"] = 0
    assert send(new_plant(), headers=[("Authorization", "Bearer secret"), JSON_TYPE]).error == 40101


# For each example that can be served, the prefix of its paths and its token.
SERVED_EXAMPLES = {mounted.example: ("/store", "secret") for mounted in Mounted.__subclasses__()} | {
    "two_apps.py": ("/north", "north-secret"),
    "own_check.py": ("", "secret"),
}


@pytest.mark.parametrize(
    ("example", "prefix", "token"), [(name, *row) for name, row in SERVED_EXAMPLES.items()], ids=SERVED_EXAMPLES
)
def test_the_command_of_an_example_serves_it_without_warnings(
    tmp_path: Path, example: str, prefix: str, token: str
) -> None:
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples")
    found = re.search(r"in this folder: (\w+)(.+?)\)", (folder / example).read_text())
    assert found
    port = {"gunicorn": "--bind=127.0.0.1:0", "uvicorn": "--port=0"}[found[1]]
    command = [*NO_SUBPROCESS_COVERAGE, sys.executable, "-m", found[1], *found[2].split(), port]
    with Process(command, cwd=folder, env=environment()) as process:
        served_at = int(process.wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
        headers = [("Authorization", f"Bearer {token}"), JSON_TYPE]
        assert send_to(served_at, new_plant(), path=f"{prefix}/plants", headers=headers).plant == {"name": "Fern"}
    # Pyramid imports pkg_resources, about which setuptools warns.
    assert not [line for line in process.lines if "warning" in line.lower() and "pkg_resources" not in line]


def test_every_example_is_tested() -> None:
    tested = {*SERVED_EXAMPLES, "wrapped_app.py", "test_client.py", "paste_app.py"}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == tested
