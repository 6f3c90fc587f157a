"""The event loop without Gunicorn, one iteration at a time."""

import logging
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from plants.server.config import Config
from plants.server.connection import Connection
from plants.server.exchange import Exchange
from plants.server.hooks import Hooks
from plants.server.loop import Loop
from plants.server.request import Listener
from plants.server.response import Response, make_response
from plants.server.state import State
from tests.support.process import wait_until
from tests.support.worker_app import app

LOG = logging.getLogger("tests.server")
CONFIG = Config(
    line_bytes=8190,
    field_bytes=8190,
    max_fields=100,
    body_bytes=1000,
    request_seconds=60,
    response_seconds=60,
    keepalive_seconds=600,
    connections=1000,
    max_requests=100_000,
    threads=0,
    tls=None,
    environ={},
    slots=4,
)
GET = b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n"
HOLDERS = (
    "connections ready_exchanges unfinished_connections strangers idle_trusted lingering trusted slot_holders".split()
)
# All drivers share this pipe, because a thread may still write to it after its last batch, when its driver has ended.
PIPE = os.pipe()


class RecordingHooks(Hooks):
    """Hooks that set the request id, and record the path and the status of each response.

    A client has shown a token if the path of its request begins with /trusted. A request for /public needs none, and
    one for /probe does not block either. A path that ends with /refused gets a 401.
    """

    def __init__(self) -> None:
        self.statuses: list[str] = []

    def after_head(self, exchange: Exchange) -> Response | None:
        exchange.id += "1"
        exchange.trusted = exchange.path.startswith("/trusted")
        exchange.public = exchange.path in ("/public", "/probe")
        exchange.blocks = exchange.path != "/probe"
        return make_response(exchange, 401, [], b"no token") if exchange.path.endswith("/refused") else None

    def before_response(self, exchange: Exchange, response: Response) -> None:
        self.statuses.append(f"{exchange.path} {response.status}")


class Driver:
    """An event loop that runs one iteration at a time."""

    def __init__(self, *sockets: Any, app: Callable[..., Any] = app, hooks: Any = None, **options: Any) -> None:
        self.hooks = hooks or RecordingHooks()
        self.clients: list[socket.socket] = []
        self.listener = Listener(sockets[0] if sockets else socket.socket(), app)
        environ = {"wsgi.errors": sys.stderr, "wsgi.multiprocess": False}
        config = replace(CONFIG, environ=environ, **options)
        self.loop = Loop(config, [self.listener] if sockets else [], self.hooks, LOG, PIPE)
        self.step = self.loop.step
        self.sweeps: list[None] = []  # one for each check of all deadlines
        self.loop.on_sweep = lambda: self.sweeps.append(None)

    def connect(self, sent: bytes = b"") -> tuple[socket.socket, Connection]:
        """Return a client that has sent these bytes, and its connection."""
        client, served = socket.socketpair()
        client.settimeout(60)
        served.setblocking(False)
        client.sendall(sent)
        self.clients.append(client)
        return client, self.loop.connect(self.listener, served, "")

    def run_once(self) -> None:
        os.write(PIPE[1], b"\0")  # Do not wait for an event.
        self.loop.run_once()

    def run_until(self, condition: Callable[[], object]) -> None:
        def holds() -> object:
            self.run_once()
            return condition()

        wait_until(holds)

    def run_until_readable(self, *clients: socket.socket) -> None:
        self.run_until(lambda: all(is_readable(client) for client in clients))

    def status(self, client: socket.socket) -> int:
        """Run until this client has a response, and return its status."""
        self.run_until_readable(client)
        return int(client.recv(10_000)[9:12])

    def run_until_state(self, connection: Connection, state: State) -> None:
        self.run_until(lambda: connection.state is state)

    def close_all(self) -> None:
        for connection in list(self.loop.shared.connections):
            self.step(connection, connection.close)
        self.run_once()

    def assert_nothing_is_held(self) -> None:
        """Check that no connection has left anything behind."""
        shared = self.loop.shared
        listeners = {listener.sock.fileno() for listener in self.loop.listeners}
        assert shared.handlers.keys() - listeners == {PIPE[0]}
        assert {name: held for name in HOLDERS if (held := getattr(shared, name))} == {}

    def end(self) -> None:
        self.close_all()
        self.assert_nothing_is_held()
        self.loop.shared.poll = None  # This closes epoll's descriptor.
        for sock in (self.listener.sock, *self.clients):
            sock.close()


Make = Callable[..., Any]  # the fixture ``make``


def new_exchange(app: Callable[..., Any] = app) -> Exchange:
    """Return an exchange whose request did not arrive at any socket."""
    no_socket: Any = None
    return Exchange(None, Listener(no_socket, app), {"REMOTE_ADDR": ""}, 0.0)


def get(path: str) -> bytes:
    return GET.replace(b"/late", path.encode())


def post(path: str, size: int) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (path.encode(), size) + b"x" * size


def is_readable(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0])


class GatedApp:
    """An application that records the path of each call, and does not respond before ``gate`` is set.

    A path that contains ``/free`` gets its response at once, and ``/free/long`` gets a long one.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.paths: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        self.paths.append(environ["PATH_INFO"])
        if "/free" not in environ["PATH_INFO"]:
            self.gate.wait(60)
        start_response("200 OK", [])
        return [b"late" * (2_000_000 if "/long" in environ["PATH_INFO"] else 1)]
