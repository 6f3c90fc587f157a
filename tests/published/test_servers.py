"""The hosted application on the packaged server and on other WSGI servers, over a socket."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import requests

from plants import Plant, PlantStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import AUTH, JSON_TYPE, LIMIT, TOKEN, Contract, HostContract, Send, new_plant
from tests.support.hosted import environment, send_to
from tests.support.servers import BIN, COMMANDS, running_server


@pytest.fixture(scope="class")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of the server of a class, and the file of its store."""
    command = COMMANDS[request.cls.server]
    program, *_ = command.split()
    if not (BIN / program).exists():
        pytest.skip(f"not installed: {program}")
    file = tmp_path_factory.mktemp("store") / "plants.db"
    env = environment(PLANTS_TOKENS=TOKEN, PLANTS_MAX_BODY_BYTES=str(LIMIT), PLANTS_STORE=f"sqlite:///{file}")
    with running_server(command, env) as (port, _):
        yield port, file


class Served(HostContract):
    """The rows of the contract whose result may depend on the server."""

    server: ClassVar[str]

    @pytest.fixture(autouse=True)
    def store(self, running: tuple[int, Path]) -> Iterator[PlantStore]:
        _, file = running
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("DELETE FROM plants")
        with closing(SQLiteStore(str(file))) as store:
            yield store

    @pytest.fixture
    def send(self, running: tuple[int, Path]) -> Send:
        return partial(send_to, running[0])

    def test_a_chunked_body_is_read(self, running: tuple[int, Path], store: PlantStore) -> None:
        body = iter([new_plant()[:9], new_plant()[9:]])
        response = requests.post(f"http://127.0.0.1:{running[0]}/plants", body, headers=dict([AUTH, JSON_TYPE]))
        assert response.json() == {"name": "Fern"}
        assert store.get(1) == Plant(1, "Fern")


POST_IN_LOWER_CASE = {"405[post]": "the server rejects, or changes, a method in lower case"}
SLASHES = {"slashes at the start]": "the server merges slashes, or parses the part between them as a host"}


class TestGunicorn(Served, Contract):
    server = "Gunicorn, as packaged"
    does_not_apply = dict.fromkeys(["post]", "Post]"], "the server rejects a method with lower-case letters") | {
        "[root]": "a hosted service redirects from the root, without a token"
    }


TestGunicornThreads = Served.on(server="Gunicorn, gthread", does_not_apply=POST_IN_LOWER_CASE)
TestGunicornSync = Served.on(server="Gunicorn, sync", does_not_apply=POST_IN_LOWER_CASE)
TestGunicornGevent = Served.on(server="Gunicorn, gevent", does_not_apply=POST_IN_LOWER_CASE)
TestWaitress = Served.on(server="waitress", does_not_apply=POST_IN_LOWER_CASE | SLASHES)
TestGranian = Served.on(server="Granian", does_not_apply={"[not ASCII]": "Granian drops a header that is not ASCII"})
TestWsgiref = Served.on(
    server="wsgiref", does_not_apply=SLASHES | {"a_chunked_body": "wsgiref does not read chunked bodies"}
)
TestUWSGI = Served.on(
    server="uWSGI",
    does_not_apply={
        "a_chunked_body": "an application can read a chunked body only through uWSGI's own API",
        "[dots": "uWSGI resolves dots in the path",
    },
)
LAST_HEADER = "Cheroot passes an application only the last Authorization header"
TestCheroot = Served.on(
    server="Cheroot",
    does_not_apply=POST_IN_LOWER_CASE
    | SLASHES
    | {"CONNECT]": "Cheroot rejects CONNECT itself"}
    | dict.fromkeys(["the valid one last]", "two valid headers]", "then a bearer header]"], LAST_HEADER),
)
