"""The service in the tests of those who call it or embed it: in the process, or on a real port.

Needs the extra ``testing``. Nothing here is meant to serve anybody but a test.
"""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waitress import create_server, wasyncore
from webtest import TestApp

from plants.app import create_app
from plants.stores import Plant
from plants.stores.memory import MemoryStore
from plants.tokens import Tokens


class FaultyStore(MemoryStore):
    """A dictionary store that fails on demand.

    ``fault`` is what ``add`` and ``check`` raise, or None: a ``plants.StoreUnavailable`` is answered with 503, anything
    else with 500. ``delay`` is how many seconds an ``add`` takes before that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: Exception | None = None
        self.delay = 0.0

    def add(self, plant: Plant) -> None:
        """Wait, then raise the fault or keep the plant."""
        time.sleep(self.delay)
        self.check()
        super().add(plant)

    def check(self) -> None:
        """Raise the fault."""
        if self.fault:
            raise self.fault


class Deployment:
    """An application with a store and a token of its own.

    ``app`` is the WSGI application, ``store`` its ``FaultyStore``, and ``token`` the one token that is valid.
    """

    def __init__(self) -> None:
        self.store = FaultyStore()
        self.rotate_token()
        self.app = create_app(self.store, tokens=self)

    def rotate_token(self) -> str:
        """Make a new token, the only valid one from now on, and give it."""
        self.token = secrets.token_urlsafe()
        self._tokens = Tokens([self.token])
        return self.token

    def accepts(self, token: str) -> bool:
        """Tell whether this is the valid token."""
        return self._tokens.accepts(token)


class Client(TestApp):  # type: ignore[misc]  # WebTest has no types
    """A WebTest client of a new deployment, in the process; it sends the token that was valid at first."""

    def __init__(self) -> None:
        self.deployment = Deployment()
        self.store = self.deployment.store
        super().__init__(self.deployment.app)
        self.authorization = ("Bearer", self.deployment.token)


class Server(Deployment):
    """A new deployment on a real port; ``url`` is its base address, without a slash at the end."""

    url: str


@contextmanager
def serve() -> Iterator[Server]:
    """Serve a new deployment on a port of 127.0.0.1 that the system chooses, until the context ends."""
    server = Server()
    sockets: dict[int, Any] = {}
    http = create_server(server.app, map=sockets, host="127.0.0.1", port=0)
    server.url = f"http://127.0.0.1:{http.effective_port}"
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            wasyncore.loop(use_poll=True, map=sockets, count=1)

    thread = threading.Thread(target=run, name="plants.testing")
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        http.trigger.pull_trigger()
        thread.join()
        http.task_dispatcher.shutdown()
        wasyncore.close_all(sockets)
