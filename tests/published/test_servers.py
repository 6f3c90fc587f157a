"""The hosted application on the packaged server and on other WSGI servers, over a socket."""

import http.client
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from plants import Plant, PlantStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import AUTH, JSON_TYPE, LIMIT, TOKEN, Contract, HostContract, Send, inapplicable, new_plant
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
        with closing(http.client.HTTPConnection("127.0.0.1", running[0], timeout=60)) as connection:
            connection.request("POST", "/plants", body, dict([AUTH, JSON_TYPE]), encode_chunked=True)
            assert connection.getresponse().status == 200
        assert store.get(1) == Plant(1, "Fern")


def served(server: str, does_not_apply: dict[str, str] | None = None) -> type[Served]:
    """Return the tests of a server."""
    return type("Served", (Served,), {"server": server, "does_not_apply": does_not_apply or {}})


POST_IN_LOWER_CASE = inapplicable(
    "the server rejects, or changes, a method in lower case", "an_unsupported_method_is_405[post]"
)
SLASHES = inapplicable(
    "the server merges slashes, or parses the part between them as a host",
    "an_unknown_path_is_404[two slashes at the start]",
    "an_unknown_path_is_404[three slashes at the start]",
)
CHUNKED = "a_chunked_body_is_read"


class TestGunicorn(Served, Contract):
    server = "Gunicorn, as packaged"
    does_not_apply = inapplicable(
        "the server rejects a method with lower-case letters",
        "an_unsupported_method_is_405[post]",
        "an_unsupported_method_is_405[Post]",
        "without_a_token_every_path_and_method_is_401[method post]",
        "without_a_token_every_path_and_method_is_401[method Post]",
    ) | inapplicable(
        "a hosted service redirects from the root, without a token",
        "an_unknown_path_is_404[root]",
        "without_a_token_every_path_and_method_is_401[root]",
    )


TestGunicornThreads = served("Gunicorn, gthread", POST_IN_LOWER_CASE)
TestGunicornSync = served("Gunicorn, sync", POST_IN_LOWER_CASE)
TestGunicornGevent = served("Gunicorn, gevent", POST_IN_LOWER_CASE)
TestWaitress = served("waitress", POST_IN_LOWER_CASE | SLASHES)
TestGranian = served(
    "Granian",
    inapplicable("Granian drops a header that is not ASCII", "a_token_that_is_not_valid_is_401[not ASCII]"),
)
TestWsgiref = served("wsgiref", SLASHES | inapplicable("wsgiref does not read chunked bodies", CHUNKED))
TestUWSGI = served(
    "uWSGI",
    inapplicable("an application can read a chunked body only through uWSGI's own API", CHUNKED)
    | inapplicable(
        "uWSGI resolves dots in the path", "an_unknown_path_is_404[dots]", "an_unknown_path_is_404[dots that lead back]"
    ),
)
TestCheroot = served(
    "Cheroot",
    inapplicable(
        "Cheroot passes an application only the last Authorization header",
        "a_token_that_is_not_valid_is_401[two headers, the valid one last]",
        "a_token_that_is_not_valid_is_401[two valid headers]",
        "a_request_without_a_bearer_token_is_401[a basic header, then a bearer header]",
    )
    | inapplicable("Cheroot rejects CONNECT itself", "an_unsupported_method_is_405[CONNECT]")
    | POST_IN_LOWER_CASE
    | SLASHES,
)
