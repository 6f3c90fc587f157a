"""The Gunicorn worker: one loop over all connections, in which none can hold up or end another."""

import os
import resource
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nlargest
from http import HTTPStatus
from operator import attrgetter
from selectors import EVENT_READ, DefaultSelector
from types import FrameType
from typing import Any

from gunicorn import SERVER_SOFTWARE
from gunicorn.sock import ssl_context
from gunicorn.workers import base

from plants.server.answer import Answer, ErrorLog, make_answer
from plants.server.calls import Calls, Job, Outcome
from plants.server.connection import ANSWERING, STOPPING_SECONDS, Connection
from plants.server.request import HEAD_BYTES, Environ, Limits, Refused, Request

# What one turn of the loop does at the most, so that many clients at once delay nobody else for long.
_ACCEPTED_A_TURN = 16
_STEPS_A_STAGE = 64
_LATER_A_TURN = 32
_EXPIRED_A_TURN = 32
_SWEEP_SECONDS = 0.1
# All connections together hold no more bytes than so many bodies of the largest size.
_BODIES_HELD = 64
# Descriptors that are not connections: listeners, logs, the store's.
_OTHER_DESCRIPTORS = 100


class Worker(base.Worker):
    """Serves a WSGI application whose answers are small, and are sent whole: it is not for one that streams.

    With Gunicorn's ``threads`` 1 the application is called in the loop, which is right for one that never waits; with
    more, in that many threads. Gunicorn's hooks ``pre_request`` and ``post_request`` are not called.

    A subclass may set ``max_body_bytes``; ``request_timeout`` and ``answer_timeout``, the seconds in which a request
    has to arrive whole and then to be answered; ``most_together``, about how many requests ``together`` gets at the
    most; and override the methods up to ``together``.
    """

    max_body_bytes = 1_048_576
    request_timeout = 10.0
    answer_timeout = 30.0
    most_together = 1

    def refusal(self, refused: Refused, request: Request) -> Answer:
        """Give the answer to a request that is refused, or (500) whose application failed."""
        status = HTTPStatus(refused.status)
        body = f"{refused.message or status.phrase}\n".encode()
        return make_answer(f"{status} {status.phrase}", [("Content-Type", "text/plain")], body, is_head=request.is_head)

    def identify(self, request: Request) -> None:
        """Take note of a request, once, when its head has been read or refused."""

    def answered(self, request: Request, answer: Answer) -> None:
        """Take note of an answer that is about to be sent."""

    def turned(self) -> None:
        """Do what can wait until the answers of a turn of the loop have been sent. It must not fail."""

    def never_waits(self, request: Request) -> bool:
        """Tell whether the application answers this request without waiting, so that it needs no thread."""
        return False

    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """Give what each call returns, in order; a call answers one request, does not fail, and can be run again."""
        return [call() for call in calls]

    # What Gunicorn calls

    def load_wsgi(self) -> None:
        """Load the application, and make what the connections share."""
        super().load_wsgi()
        cfg = self.cfg
        for name in ("pre_request", "post_request"):
            if cfg.settings[name].get() is not cfg.settings[name].default:
                self.log.warning("this worker does not call the %s hook", name)
        line, field = cfg.limit_request_line or 8190, cfg.limit_request_field_size or 8190
        self.limits = Limits(line, field, cfg.limit_request_fields, self.max_body_bytes)
        self.now = time.monotonic()
        self.connections: set[Connection] = set()
        self._most_connections = _allow_descriptors(cfg.worker_connections)
        self._most_held = _BODIES_HELD * max(self.max_body_bytes, HEAD_BYTES)
        self._held = 0
        self.later: deque[Connection] = deque()  # go on when the others have had their turn
        self._whole: list[Job] = []  # requests that are answered in the loop
        self._waiting: list[Job] = []  # requests that are answered in threads
        self._has_threads = cfg.threads > 1
        self._calls = Calls(self, self.PIPE[1])
        self._calls.start(cfg.threads if self._has_threads else 0)
        self._selector = DefaultSelector()
        self._listens = False
        self._sweep_at = 0.0
        self._stops_at_once = False
        self._tls = ssl_context(cfg) if cfg.is_ssl else None
        self._environ: Environ = {
            "REMOTE_ADDR": "",
            "SCRIPT_NAME": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_SOFTWARE": SERVER_SOFTWARE,
            "wsgi.errors": ErrorLog(self.log.error),
            "wsgi.input_terminated": True,
            "wsgi.multiprocess": cfg.workers > 1,
            "wsgi.multithread": cfg.threads > 1,
            "wsgi.run_once": False,
            "wsgi.url_scheme": "https" if cfg.is_ssl else "http",
            "wsgi.version": (1, 0),
        }

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully (``TERM``)."""
        self.alive = False

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at once (``INT``, ``QUIT``), but for requests that have been received whole: each has its answer."""
        if self.alive:
            self.cfg.worker_int(self)
        self.alive = False
        self._stops_at_once = True

    def run(self) -> None:
        """Serve until the worker is told to stop or its master has gone, then let the connections end."""
        self._selector.register(self.PIPE[0], EVENT_READ, partial(os.read, self.PIPE[0], 4096))
        while self.alive:
            self._turn()
        # Whoever waits in the backlog has connected, and would be reset.
        start = self._sweep_at = self.now
        while self.now < start + STOPPING_SECONDS:
            self._turn()
        self._listen(False)
        for listener in self.sockets:
            self._accept(listener.sock)
            listener.sock.close()
        while self.connections and self.now < start + self.cfg.graceful_timeout:
            self._turn()

    # What a connection calls

    def watch(self, connection: Connection, before: int, events: int) -> None:
        """Wait for other events of a connection's socket than before (0: none)."""
        if not events:
            self._selector.unregister(connection.sock)
        elif before:
            self._selector.modify(connection.sock, events, connection)
        else:
            self._selector.register(connection.sock, events, connection)

    def take(self, connection: Connection, request: Request) -> None:
        """Have a request answered that has arrived whole, and stop after the last one of ``max_requests``."""
        is_for_threads = self._has_threads and not self.never_waits(request)
        (self._waiting if is_for_threads else self._whole).append((connection, request))
        self.nr += 1
        if self.nr == self.max_requests:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False

    # The loop

    def _turn(self) -> None:
        events = self._selector.select(0.0 if self.later else max(0.0, self._sweep_at - time.monotonic()))
        self.now = time.monotonic()
        for start in range(0, len(events), _STEPS_A_STAGE):
            for key, _ in events[start : start + _STEPS_A_STAGE]:
                if isinstance(key.data, Connection):
                    self._step(key.data, key.data.ready)
                else:
                    key.data()
            self._answer()
            if self._held > self._most_held:
                self._shed()
        if self.later:
            for connection in [self.later.popleft() for _ in range(min(len(self.later), _LATER_A_TURN))]:
                self._step(connection, connection.go_on)
            self._answer()
        if self._has_threads:
            for connection, request, answer in self._calls.outcomes():
                self._step(connection, connection.answer, request, answer)
        if self.now >= self._sweep_at:
            self._sweep()
        self.turned()

    def _step(self, connection: Connection, step: Callable[..., None], *args: Any) -> None:
        """Do one thing for one connection, and count what is held for it. What fails ends this connection alone."""
        try:
            step(*args)
        except OSError:  # The client has gone.
            connection.close()
        except Exception:
            self._fail(connection)
        held = connection.held()
        if held != connection.counted:
            self._held += held - connection.counted
            connection.counted = held

    def _fail(self, connection: Connection) -> None:
        self.log.exception("a connection failed and is closed")
        connection.close()

    def _answer(self) -> None:
        # Requests are first all received, then all answered, then the answers are all written: the code of each stage
        # stays warm, and a client that an answer wakes does not take the processor away in between.
        if self._whole:
            jobs, self._whole = self._whole, []
            outcomes: list[Outcome] = []
            for job in jobs:
                try:
                    outcomes.append((*job, self._calls.call(job[1])))
                except Exception:
                    self._fail(job[0])
            for connection, request, answer in outcomes:
                self._step(connection, connection.answer, request, answer)
        if self._waiting:
            jobs, self._waiting = self._waiting, []
            self._calls.put(jobs)

    def _shed(self) -> None:
        # As many as have just received, so that what is held grows no further.
        others = [connection for connection in self.connections if connection.state is not ANSWERING]
        for connection in nlargest(_STEPS_A_STAGE, others, key=attrgetter("counted")):
            if self._held > self._most_held and connection.counted:
                self._step(connection, connection.shed)

    def _sweep(self) -> None:
        # One look at all connections costs less than a timer for each request.
        self.notify()
        if self.ppid != os.getppid():
            self.alive = False
        if self.alive:
            self._listen(True)
        else:
            for connection in list(self.connections):
                self._step(connection, partial(connection.stop, at_once=self._stops_at_once))
        expired = [connection for connection in self.connections if connection.deadline <= self.now]
        for connection in expired[:_EXPIRED_A_TURN]:
            self._step(connection, connection.expire)
        if len(expired) <= _EXPIRED_A_TURN:
            self._sweep_at = self.now + _SWEEP_SECONDS

    # Connections come in

    def _listen(self, listens: bool) -> None:
        for listener in self.sockets if listens != self._listens else ():
            listener.sock.setblocking(False)
            if listens:
                self._selector.register(listener.sock, EVENT_READ, partial(self._accept, listener.sock))
            else:
                self._selector.unregister(listener.sock)
        self._listens = listens

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                sock, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self.log.warning("no connection can be accepted for now: %s", error)
                self._listen(False)
                return
            try:
                sock.setblocking(False)
                if self._tls:
                    sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                connection = Connection(self, sock, self._environ_of(sock, peer))
            except OSError:  # The client has gone.
                sock.close()
                continue
            self.connections.add(connection)
            if len(self.connections) <= self._most_connections:
                self._step(connection, connection.watch)
            else:
                self._step(connection, connection.refuse, Refused(503, "The service has too many connections."))
                self._step(connection, connection.close)

    def _environ_of(self, sock: socket.socket, peer: Any) -> Environ:
        environ = self._environ.copy()
        server = sock.getsockname()
        if isinstance(peer, tuple):
            environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = peer[0], str(peer[1])
        if isinstance(server, tuple):
            environ["SERVER_NAME"], environ["SERVER_PORT"] = server[0], str(server[1])
        return environ


def _allow_descriptors(connections: int) -> int:
    """Raise the limit of descriptors as far as is needed and allowed; give how many connections there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_DESCRIPTORS
    soft = max(soft, needed if hard == resource.RLIM_INFINITY else min(needed, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(connections, soft - _OTHER_DESCRIPTORS))
