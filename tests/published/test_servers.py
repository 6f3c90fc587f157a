"""The hosted application on other WSGI servers, over a socket."""

import http.client
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from plants import Plant, PlantStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import AUTH, JSON_TYPE, LIMIT, TOKEN, Contract, Send, new_plant
from tests.support.hosted import environment, send_to
from tests.support.servers import COMMANDS, serving


class Running(NamedTuple):
    port: int
    store: SQLiteStore
    file: Path


@pytest.fixture(scope="class")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The server of a class, and the file that it keeps plants in."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where a commit costs next to nothing
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        file = Path(directory) / "plants.db"
        env = environment(PLANTS_TOKENS=TOKEN, PLANTS_MAX_BODY_BYTES=str(LIMIT), PLANTS_STORE=f"sqlite:///{file}")
        with serving(COMMANDS[request.cls.server], env) as port, closing(SQLiteStore(str(file))) as store:
            yield Running(port, store, file)


class Served(Contract):
    """What a server can change of the contract."""

    server: ClassVar[str]
    only_host_rows = True
    does_not_apply: ClassVar[dict[str, str]] = {}

    @pytest.fixture(autouse=True)
    def store(self, running: Running) -> PlantStore:
        with closing(sqlite3.connect(running.file, isolation_level=None)) as connection:
            connection.execute("DELETE FROM plants")
        return running.store

    @pytest.fixture
    def send(self, running: Running, request: pytest.FixtureRequest) -> Send:
        for part, reason in self.does_not_apply.items():
            if part in request.node.name:
                pytest.skip(reason)

        return partial(send_to, running.port)

    @pytest.mark.usefixtures("send")
    def test_a_chunked_body_is_read(self, running: Running) -> None:
        body = iter([new_plant()[:9], new_plant()[9:]])
        with closing(http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)) as connection:
            connection.request("POST", "/plants", body, dict([AUTH, JSON_TYPE]), encode_chunked=True)
            assert connection.getresponse().status == 200
        assert running.store.get(1) == Plant(1, "Fern")


METHODS_IN_LOWER_CASE = {"post]": "the server refuses, or changes, a method in lower case", "Post]": "the same"}
SLASHES = {"slashes before it]": "the server folds slashes, or takes what stands between them for a host"}


class TestGunicorn(Served):
    server = "Gunicorn, as packaged"
    only_host_rows = False
    does_not_apply = METHODS_IN_LOWER_CASE


class TestGunicornThreads(Served):
    server = "Gunicorn, gthread"
    does_not_apply = METHODS_IN_LOWER_CASE


class TestGunicornSync(Served):
    server = "Gunicorn, sync"
    does_not_apply = METHODS_IN_LOWER_CASE


class TestGunicornGevent(Served):
    server = "Gunicorn, gevent"
    does_not_apply = METHODS_IN_LOWER_CASE


class TestWaitress(Served):
    server = "waitress"
    does_not_apply = METHODS_IN_LOWER_CASE | SLASHES


class TestUWSGI(Served):
    server = "uWSGI"
    does_not_apply: ClassVar[dict[str, str]] = {
        "chunked": "uWSGI gives an application no chunked body but through an interface of its own",
        "dots]": "uWSGI resolves dots in the path",
        "dots that come back]": "uWSGI resolves dots in the path",
    }


class TestGranian(Served):
    server = "Granian"
    does_not_apply: ClassVar[dict[str, str]] = {"401[not ASCII]": "Granian drops a field that is not ASCII"}


class TestGranianOneThread(Served):
    server = "Granian, 1 thread"
    does_not_apply = TestGranian.does_not_apply


class TestCheroot(Served):
    server = "Cheroot"
    does_not_apply = (
        {
            "two headers, the valid one last]": "Cheroot gives an application only the last Authorization header",
            "two valid headers]": "the same",
            "then a bearer header]": "the same",
            "CONNECT]": "Cheroot refuses CONNECT itself",
        }
        | METHODS_IN_LOWER_CASE
        | SLASHES
    )


class TestWsgiref(Served):
    server = "wsgiref"
    does_not_apply = SLASHES | {"chunked": "wsgiref knows no chunked body"}


def test_no_server_is_without_a_test() -> None:
    assert {served.server for served in Served.__subclasses__()} == COMMANDS.keys()
