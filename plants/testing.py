"""The service in the tests of those who call it or embed it: in the process, or on a real port.

Needs the extra ``testing``. Use it in tests only. ``python -m plants.testing`` serves tests in other languages.
"""

import argparse
import atexit
import io
import json
import math
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from wsgiref.types import StartResponse

from waitress import create_server, wasyncore

from plants.app import create_app
from plants.probes import WithoutToken, probes
from plants.stores import Plant, PlantStore, StoreUnavailable
from plants.stores.memory import MemoryStore
from plants.tokens import digest_of

# How many requests can be delayed at the same time.
_THREADS = 16


class FaultyStore(PlantStore):
    """A store that fails and waits on demand. It keeps plants in a dictionary, or in a store that is given.

    ``waiting`` is how many adds wait at the moment.
    """

    waiting: int = 0

    def __init__(self, store: PlantStore | None = None) -> None:
        self._given = store
        self._ends_of_delays = 0
        self._changed = threading.Condition()
        self.reset()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute that exists; any other would do nothing, silently."""
        if not name.startswith("_") and not hasattr(type(self), name):
            raise AttributeError(f"a FaultyStore has no {name}; it has fault, delay and fail()")
        super().__setattr__(name, value)

    @property
    def delay(self) -> float:
        """How many seconds an ``add`` takes."""
        return self._delay

    @delay.setter
    def delay(self, seconds: float) -> None:
        if not 0 <= seconds <= threading.TIMEOUT_MAX:
            raise ValueError(f"a delay is a number of seconds, not {seconds}")
        self._delay = seconds

    @property
    def fault(self) -> Exception | None:
        """What ``add`` and ``check`` raise: a ``plants.StoreUnavailable`` is answered with 503, any other with 500."""
        return self._fault

    @fault.setter
    def fault(self, fault: Exception | None) -> None:
        if not isinstance(fault, Exception | None):
            raise TypeError(f"a fault is an exception, such as plants.StoreUnavailable(), not {fault!r}")
        self._fault, self._times = fault, math.inf

    def fail(self, fault: Exception | None = None, *, times: float = math.inf) -> None:
        """Raise ``fault`` (None: a ``plants.StoreUnavailable``) for the next ``times`` adds, or from now on."""
        if times < 0:
            raise ValueError(f"a store fails 0 times or more, not {times}")
        with self._changed:
            self.fault = (StoreUnavailable("on demand") if fault is None else fault) if times else None
            self._times = times

    def reset(self) -> None:
        """Remove the fault, the delay and the plants; a store that was given keeps its plants."""
        with self._changed:
            self.fault = None
            self.delay = 0.0
            self._store: PlantStore = MemoryStore() if self._given is None else self._given
        self.end_delays()

    def end_delays(self) -> None:
        """End the delay of all adds that wait."""
        with self._changed:
            self._ends_of_delays += 1
            self._changed.notify_all()

    def wait_for_adds(self, number: int, timeout: float = 10.0) -> None:
        """Wait until so many adds are delayed.

        :raises TimeoutError: there are fewer after ``timeout`` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.waiting >= number, timeout):
                raise TimeoutError(f"{self.waiting} adds wait, not {number}")

    def add(self, plant: Plant) -> None:
        """Wait, then raise the fault or keep the plant."""
        with self._changed:
            store, ends = self._store, self._ends_of_delays  # A reset drops the plants of adds that wait.
            self.waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ends_of_delays > ends, self.delay)
            self.waiting -= 1
            fault = self._fault
            self._times -= 1
            if self._times <= 0:
                self.fault = None
        if fault:
            raise fault.with_traceback(None)  # It would collect the tracebacks of all requests.
        store.add(plant)

    def get(self, plant_id: int) -> Plant | None:
        """Give the plant that has this id, or None."""
        return self._store.get(plant_id)

    def check(self) -> None:
        """Raise the fault, if there is one."""
        if fault := self._fault:
            raise fault.with_traceback(None)
        self._store.check()

    def close(self) -> None:
        """Close the store that was given."""
        self._store.close()


class Received(NamedTuple):
    """A request that a service got, and the status of its answer.

    ``path`` is decoded, ``query`` is not; ``headers`` have names in lower case.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    status: int


class Deployment:
    """A WSGI application with a store and a token of its own; its probes and its description need no token.

    ``store`` is a ``FaultyStore``, and ``requests`` has the requests that came, in the order of their answers.
    """

    __slots__ = ("_app", "_first_token", "_token", "requests", "store")

    def __init__(self, *, token: str | None = None, store: PlantStore | None = None) -> None:
        self._first_token = secrets.token_urlsafe() if token is None else token
        digest_of(self._first_token)  # It raises if no client could send the token.
        self.store = FaultyStore(store)
        self.reset()
        self._app = WithoutToken(create_app(self.store, tokens=self), probes(self.store))

    @property
    def token(self) -> str:
        """The one valid token."""
        return self._token

    def accepts(self, token: str) -> bool:
        """Tell whether this is the valid token."""
        return token == self._token

    def rotate_token(self) -> str:
        """Make a new token, the only valid one from now on, and give it."""
        self._token = secrets.token_urlsafe()
        return self._token

    def reset(self) -> None:
        """Go back to the start: the first token, no fault, no plants (but those of a given store), no requests."""
        self._token = self._first_token
        self.store.reset()
        self.requests: list[Received] = []

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request (PEP 3333)."""
        requests = self.requests  # A reset makes a new list.
        body = environ["wsgi.input"].read()
        environ["wsgi.input"] = io.BytesIO(body)
        statuses = []

        def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            statuses.append(int(status[:3]))
            return start_response(status, headers, *exc_info)

        answer = self._app(environ, start)
        headers = {
            key.removeprefix("HTTP_").replace("_", "-").lower(): value
            for key, value in environ.items()
            if key.startswith(("HTTP_", "CONTENT_"))
        }
        path = environ["PATH_INFO"].encode("latin-1").decode(errors="replace")
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        requests.append(Received(method, path, query, headers, body, statuses[-1]))
        return answer


class Server(Deployment):
    """A new deployment on a real port; ``url`` is its base address, without a slash at the end."""

    __slots__ = ("url",)

    url: str


@contextmanager
def serve(*, token: str | None = None, port: int = 0, store: PlantStore | None = None) -> Iterator[Server]:
    """Serve a new deployment on a port of 127.0.0.1 until the context ends.

    :param token: the valid token; a new one if None.
    :param port: the port; one that the system chooses if 0.
    :param store: where plants are kept; a dictionary if None. It is not closed.
    :raises OSError: the port is in use.
    :raises ValueError: no client could send the token.
    """
    server = Server(token=token, store=store)
    # waitress would leave its own socket open if the port is in use.
    listener = socket.create_server(("127.0.0.1", port))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    sockets: dict[int, Any] = {}
    http = create_server(server, map=sockets, sockets=[listener], threads=_THREADS, connection_limit=1000)
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            wasyncore.loop(use_poll=True, map=sockets, count=1)

    thread = threading.Thread(target=run, name="plants.testing", daemon=True)
    thread.start()

    def stop() -> None:
        server.store.delay = 0.0  # for requests that wait for a thread
        server.store.end_delays()
        ended.set()
        http.trigger.pull_trigger()
        thread.join()
        http.task_dispatcher.shutdown()
        wasyncore.close_all(sockets)

    with ExitStack() as stack:
        stack.callback(stop)
        stack.callback(atexit.unregister, stack.close)
        atexit.register(stack.close)  # where nobody ends the context, the end of the process does
        yield server


def _obey(server: Server, command: str) -> object:
    match command.split():
        case ["fail", "503" | "500" as status, *times] if not times[1:]:
            fault = StoreUnavailable("on demand") if status == "503" else RuntimeError("on demand")
            server.store.fail(fault, times=int(*times) if times else math.inf)
        case ["delay", seconds]:
            server.store.delay = float(seconds)
        case ["rotate"]:
            server.rotate_token()
        case ["reset"]:
            server.reset()
        case ["requests"]:
            return [request._asdict() | {"body": request.body.decode(errors="replace")} for request in server.requests]
        case _:
            raise ValueError("no such command")
    return {"url": server.url, "token": server.token}


def _main() -> None:
    parser = argparse.ArgumentParser("python -m plants.testing", description="Serve the plant store to a test.")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; the system chooses one if 0")
    parser.add_argument("--token", help="the valid token; a new one if there is none")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit())
    with ExitStack() as stack:
        try:
            server = stack.enter_context(serve(token=args.token, port=args.port))
        except (OSError, OverflowError, ValueError) as error:
            parser.error(str(error))
        print(json.dumps({"url": server.url, "token": server.token}), flush=True)
        for line in sys.stdin or ():  # It is None where standard input was closed at the start.
            try:
                answer = _obey(server, line)
            except ValueError as error:
                answer = {"error": f"{line.strip()}: {error}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
