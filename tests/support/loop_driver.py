"""The event loop without Gunicorn, one iteration at a time."""

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from plants.server.connection import Connection
from plants.server.loop import Config, Loop
from plants.server.request import Limits, Listener, Timeouts
from plants.server.response import ErrorLog
from plants.server.service import Service
from tests.support.process import wait_until
from tests.support.worker_app import app

LOG = logging.getLogger("tests.server")


class Driver:
    """An event loop that runs one iteration at a time."""

    def __init__(
        self,
        *sockets: Any,
        app: Callable[..., Any] = app,
        service: Service | None = None,
        threads: int = 0,
        max_batch: int = 10,
        max_connections: int = 1000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.service = service or Service()
        self.pipe = os.pipe()
        self.threads = threads
        self.listener = Listener(sockets[0] if sockets else socket.socket(), app)
        config = Config(
            limits=Limits(8190, 8190, 100, 1000),
            timeouts=Timeouts(request=60, response=60, keepalive=2),
            base_environ={"wsgi.errors": ErrorLog(LOG.error), "wsgi.multiprocess": False},
            tls=tls,
            max_connections=max_connections,
            max_requests=100_000,
            threads=threads,
            max_batch=max_batch,
        )
        self.loop = Loop(config, [self.listener] if sockets else [], self.service, LOG, self.pipe)

    def connect(self) -> tuple[socket.socket, Connection]:
        """Return a client and its connection."""
        client, served = socket.socketpair()
        client.settimeout(60)
        served.setblocking(False)
        return client, self.loop.connect(self.listener, served, "")

    def run_once(self) -> None:
        # If there is no event, the loop waits until the next sweep. Wait at most 10 ms.
        self.loop._sweep_at = min(self.loop._sweep_at, time.monotonic() + 0.01)
        self.loop.run_once()

    def run_until(self, condition: Callable[[], object]) -> None:
        def holds() -> object:
            self.run_once()
            return condition()

        wait_until(holds)

    def step(self, connection: Connection, step: Callable[..., None], *args: Any) -> None:
        self.loop._step(connection, step, *args)

    def end(self) -> None:
        for connection in list(self.loop.shared.connections):
            connection.close()
        self.loop.shared.poll = None  # This closes epoll's descriptor.
        self.listener.sock.close()
        # With threads, leave the pipe open: a thread may still write to it after its last batch.
        for descriptor in () if self.threads else self.pipe:
            os.close(descriptor)
