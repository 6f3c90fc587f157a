"""Run the service in tests of a client or of an application that embeds it: in-process or on a real port.

Needs the extra ``testing``. Use it in tests only. ``python -m plants.testing`` serves tests in other languages.
"""

import argparse
import io
import itertools
import json
import math
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, NamedTuple
from wsgiref.types import StartResponse

import falcon
from waitress import create_server, wasyncore
from waitress.channel import ClientDisconnected

from plants import MAX_BODY_BYTES
from plants.app import OPERATIONS, PlantApp
from plants.auth import CHALLENGE
from plants.errors import RETRY_AFTER, error_response
from plants.probes import public_resources
from plants.stores import Plant, PlantStore, StoreUnavailable
from plants.stores.memory import MemoryStore
from plants.tokens import digest_of

MAX_DELAYED_REQUESTS = 16
_HEADERS_OF_FAILURES = {
    401: {"WWW-Authenticate": CHALLENGE},  # RFC 9110 requires the first two.
    405: {"Allow": "POST, OPTIONS"},
    429: RETRY_AFTER,
}
_FAILURES = {"close", "cut", *(status for status in HTTPStatus if status >= HTTPStatus.BAD_REQUEST)}


class FaultyStore(PlantStore):
    """A store that fails and waits on demand. It stores plants in the wrapped store, or in a dictionary."""

    #: the exception of ``add`` and ``check``, which ``fail`` sets: StoreUnavailable becomes 503, others 500
    fault: Exception | None

    def __init__(self, store: PlantStore | None = None) -> None:
        self._wrapped_store = store
        self._lock = threading.Lock()
        self._new_delay = threading.Event()
        self.reset()

    @property
    def delay(self) -> float:
        """The duration of an ``add``, in seconds. A new value ends the delays of all adds in flight."""
        return self._delay

    @delay.setter
    def delay(self, delay: float) -> None:
        self._delay = delay
        ended, self._new_delay = self._new_delay, threading.Event()
        ended.set()

    def fail(self, fault: Exception | None = None, *, times: float = math.inf) -> None:
        """Make the next ``times`` adds raise ``fault``. By default, all adds from now on raise StoreUnavailable."""
        with self._lock:
            self.fault = (fault or StoreUnavailable("on demand")) if times else None
            self._failures_left = times or math.inf

    def reset(self) -> None:
        """Remove the fault, the delay and the plants, but not the plants of a wrapped store."""
        self.fail(times=0)
        self._store: PlantStore = MemoryStore() if self._wrapped_store is None else self._wrapped_store
        self.delay = 0.0

    def add(self, plant: Plant) -> None:
        """Wait for the delay, then raise the fault or store the plant."""
        store = self._store  # reset() may replace it meanwhile.
        new_delay = self._new_delay  # It is read before the delay, so that this thread does not miss a new one.
        new_delay.wait(self.delay)
        with self._lock:
            fault = self.fault
            self._failures_left -= 1
            if self._failures_left <= 0:
                self.fault, self._failures_left = None, math.inf
        if fault:
            raise fault.with_traceback(None)  # Otherwise, it would collect the tracebacks of all requests.
        return store.add(plant)  # An asynchronous store returns a coroutine, which the application rejects.

    def get(self, plant_id: int) -> Plant | None:
        """Return the plant with this id, or None."""
        return self._store.get(plant_id)

    def check(self) -> None:
        """Raise the fault."""
        if fault := self.fault:
            raise fault.with_traceback(None)
        self._store.check()

    def close(self) -> None:
        """Close the wrapped store."""
        self._store.close()


class Received(NamedTuple):
    """A request, and its response.

    ``path`` is decoded, ``query`` is not, and the names of ``headers`` are in lower case. If ``fail("close")`` closed
    the connection, ``status`` is 0 and ``response`` is empty.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    status: int
    response: bytes


class ConnectionClosed(ClientDisconnected, ConnectionError):  # type: ignore[misc]  # waitress has no types
    """Close the connection without a response. waitress does so if the application raises a ClientDisconnected."""


class Server:
    """A WSGI application with a store and a token of its own; its probes and its description need no token.

    ``store`` fails on demand, ``token`` is the only valid token, and ``requests`` are in the order of their responses.
    """

    url: str  #: the base address, without a slash at the end, if ``serve`` serves it on a port
    _failures: Iterator[int | str]

    def __init__(self, *, token: str | None = None, store: PlantStore | None = None) -> None:
        self._first_token = secrets.token_urlsafe() if token is None else token
        digest_of(self._first_token)  # It raises ValueError for a token that no client could send.
        self.store = FaultyStore(store)
        self.reset()
        self._app = PlantApp(self.store, [self], public_resources(self.store), MAX_BODY_BYTES)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a create: the valid token and the media type."""
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}

    def accepts(self, token: str) -> bool:
        """Return whether this is the valid token."""
        return token == self.token

    def rotate_token(self) -> str:
        """Return a new token, the only valid one from now on."""
        self.token = secrets.token_urlsafe()
        return self.token

    def fail(self, failure: int | Literal["close", "cut"], *, times: float = math.inf) -> None:
        """Fail the next ``times`` requests for an operation, or all from now on, whatever they contain.

        :param failure: the status of an Error, such as 429; or ``"close"``, which closes the connection and stores
            nothing; or ``"cut"``, which stores the plant and closes the connection after half of the response.
        :raises ValueError: there is no such failure.
        """
        if failure not in _FAILURES:
            raise ValueError(f"a failure is an HTTP error status, 'close' or 'cut', not {failure!r}")
        self._failures = itertools.repeat(failure) if times == math.inf else itertools.repeat(failure, int(times))

    def reset(self) -> None:
        """Restore the initial state: the first token, no failures, no requests, no plants except in a wrapped store."""
        self.token = self._first_token
        self._failures = iter(())
        self.store.reset()
        self.requests: list[Received] = []

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Respond to a request (PEP 3333), and record it."""
        requests = self.requests  # reset() replaces the list.
        is_operation = self._app.router.route_of(environ["PATH_INFO"]).template in OPERATIONS
        failure = next(self._failures, None) if is_operation else None
        body = environ["wsgi.input"].read()  # Neither waitress nor WebTest waits for more after the end of the body.
        environ["wsgi.input"] = io.BytesIO(body)
        status, response = 0, b""

        def start(line: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            nonlocal status
            status = int(line[:3])
            return start_response(line, headers, *exc_info)

        if isinstance(failure, int):
            error = falcon.HTTPError(failure, headers=_HEADERS_OF_FAILURES.get(failure))
            _, fields, content, _ = error_response(error)
            start(falcon.code_to_http_status(failure), [*fields, ("Content-Length", str(len(content)))])
            response = content if environ["REQUEST_METHOD"] != "HEAD" else b""
        elif failure != "close":
            response = b"".join(self._app(environ, start))
        if failure == "cut":
            response = response[: len(response) // 2]
        request = falcon.Request(environ)
        sent = (request.method, request.path, request.query_string, dict(request.headers_lower), body)
        requests.append(Received(*sent, status, response))
        if failure == "close":
            raise ConnectionClosed
        return [response]


@contextmanager
def serve(*, token: str | None = None, port: int = 0, store: PlantStore | None = None) -> Iterator[Server]:
    """Serve a new server on a port of 127.0.0.1 until the context ends.

    :param token: the valid token, a ``b64token``; a new one if None.
    :param port: the port; one that the system chooses if 0.
    :param store: where plants are stored; a dictionary if None. The store is not closed.
    :raises OSError: the port is in use.
    :raises ValueError: no client could send the token.
    """
    server = Server(token=token, store=store)
    # waitress would leave its own socket open if the port is in use.
    listener = socket.create_server(("127.0.0.1", port))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    sockets: dict[int, Any] = {}
    limits = {"threads": MAX_DELAYED_REQUESTS, "connection_limit": 1000, "asyncore_use_poll": True}
    http = create_server(server, map=sockets, sockets=[listener], **limits)
    thread = threading.Thread(target=http.run, name="plants.testing", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.store.delay = 0.0  # It ends the delays in flight, and requests that wait for a thread are not delayed.
        http.task_dispatcher.shutdown()
        with http.trigger.lock:  # The loop ends when it has no more sockets, but closes the trigger only after this.
            http.trigger.thunks.append(partial(wasyncore.close_all, sockets))
            http.pull_trigger()
        thread.join()


def _main() -> None:
    parser = argparse.ArgumentParser("python -m plants.testing", description="Serve the plant store to a test.")
    parser.add_argument("--port", type=int, default=0, help="a port of 127.0.0.1; if 0, the system chooses one")
    parser.add_argument("--token", help="the valid token; a new one if there is none")
    parser.add_argument("--fail", help="an HTTP error status, close or cut")
    parser.add_argument("--times", type=int, default=math.inf, help="how many requests fail; all if there is no number")
    parser.add_argument("--delay", type=float, default=0.0, help="how long a create takes, in seconds")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would miss a signal that arrives just before it reads.
    try:
        with serve(token=args.token, port=args.port) as server:
            if args.fail is not None:
                server.fail(int(args.fail) if args.fail.isdecimal() else args.fail, times=args.times)
            server.store.delay = args.delay
            print(json.dumps({"url": server.url, "token": server.token}), flush=True)
            for _ in sys.stdin or ():  # It is None if standard input was closed at the start.
                pass
    except (OSError, OverflowError, ValueError) as error:  # The port is in use, or an option has no such value.
        sys.exit(f"plants.testing: {error}")


if __name__ == "__main__":
    _main()
