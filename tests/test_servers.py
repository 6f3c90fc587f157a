"""The hosted application on other WSGI servers, over a socket."""

import http.client
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from plants import Plant, PlantStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import AUTH, JSON_TYPE, LIMIT, TOKEN, Contract, Send, new_plant
from tests.hosted import CHECKOUT, environment, send_to

BIN = Path(sys.executable).parent
GUNICORN = f"{BIN}/gunicorn --bind 127.0.0.1:PORT"


class Running(NamedTuple):
    port: int
    store: SQLiteStore
    file: Path


@pytest.fixture(scope="class")
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The server of a class, and the file that it keeps plants in."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where a commit costs next to nothing
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        file = Path(directory) / "plants.db"
        env = environment(PLANTS_TOKENS=TOKEN, PLANTS_MAX_BODY_BYTES=str(LIMIT), PLANTS_STORE=f"sqlite:///{file}")
        command = request.cls.command.replace("PORT", str(port)).split()
        process = subprocess.Popen(command, cwd=CHECKOUT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        store = SQLiteStore(str(file))
        try:
            while True:
                assert process.poll() is None
                with suppress(OSError):
                    if send_to(port, method="GET", path="/readyz", headers=[]).status == 200:
                        break
                time.sleep(0.02)
            yield Running(port, store, file)
        finally:
            store.close()
            process.terminate()
            process.wait(20)


class Served(Contract):
    """The contract, as far as an application decides."""

    command: ClassVar[str]
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
    command = GUNICORN
    does_not_apply = METHODS_IN_LOWER_CASE


class TestGunicornThreads(Served):
    command = f"{GUNICORN} -k gthread --threads 4"
    does_not_apply = METHODS_IN_LOWER_CASE


class TestGunicornSync(Served):
    command = f"{GUNICORN} -k sync"
    does_not_apply = METHODS_IN_LOWER_CASE


class TestGunicornGevent(Served):
    command = f"{GUNICORN} -k gevent"
    does_not_apply = METHODS_IN_LOWER_CASE


class TestWaitress(Served):
    command = f"{BIN}/waitress-serve --listen=127.0.0.1:PORT plants.wsgi:app"
    does_not_apply = METHODS_IN_LOWER_CASE | SLASHES


class TestUWSGI(Served):
    command = (
        f"{BIN}/uwsgi --http-socket 127.0.0.1:PORT --module plants.wsgi:app --virtualenv {sys.prefix}"
        " --master --die-on-term --enable-threads --threads 4 --buffer-size 16384"
    )
    does_not_apply: ClassVar[dict[str, str]] = {
        "chunked": "uWSGI gives an application no chunked body but through an interface of its own",
        "dots]": "uWSGI resolves dots in the path",
        "dots that come back]": "uWSGI resolves dots in the path",
    }


class TestGranian(Served):
    command = f"{BIN}/granian --interface wsgi --host 127.0.0.1 --port PORT plants.wsgi:app"
    does_not_apply: ClassVar[dict[str, str]] = {"401[not ASCII]": "Granian drops a field that is not ASCII"}


class TestCheroot(Served):
    command = f"{BIN}/cheroot --bind 127.0.0.1:PORT plants.wsgi:app"
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
    command = f"{sys.executable} tests/wsgiref_server.py PORT"
    does_not_apply = SLASHES | {"chunked": "wsgiref knows no chunked body"}
