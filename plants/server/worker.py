"""The Gunicorn worker: one event loop for all connections. None can block or end another."""

import os
import re
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
from plants.server.calls import Calls, Job, Outcome, is_awaited
from plants.server.connection import ANSWERING, STOPPING_SECONDS, Connection
from plants.server.request import HEAD_BYTES, Environ, Limits, Refused, Request

# Limits on the work per loop turn, so that a burst of clients delays nobody else.
_ACCEPTED_A_TURN = 16
_STEPS_A_STAGE = 64  # After each stage up to this many connections are freed if too much memory is held.
_LATER_A_TURN = 32
_EXPIRED_A_TURN = 32
_SWEEP_SECONDS = 0.1  # between two checks of all deadlines; also the limit for the answers of one stage
_BODIES_HELD = 64  # of the largest size: that many bytes are held for all connections together
_OTHER_DESCRIPTORS = 100  # kept free for listeners, logs and the store
# Settings of Gunicorn that would add something to a request, or change what it means.
_NOT_USED = re.compile(r"(pre|post)_request|proxy_protocol|root_path|header_map|(casefold|permit|strip)_.*")


class Worker(base.Worker):
    """Serves a WSGI application with small answers. Each answer is sent whole: do not use it for streaming.

    With Gunicorn's ``threads`` 1 the application is called in the loop, which suits one that never blocks; with more,
    in that many threads. Gunicorn's hooks ``pre_request`` and ``post_request`` are not called.

    A subclass may set ``max_body_bytes``, ``request_timeout`` and ``answer_timeout`` (seconds for a request to arrive
    whole, and for its answer) and ``most_together`` (requests a batch), and override the methods up to ``together``.
    """

    max_body_bytes: int = 1_048_576
    request_timeout: float = 10.0
    answer_timeout: float = 30.0
    most_together: int = 1

    # Gunicorn sets these, and has no types.
    alive: bool
    nr: int

    def refusal(self, refused: Refused, request: Request) -> Answer:
        """Give the answer to a refused request, or (500) to one whose application failed."""
        status = HTTPStatus(refused.status)
        body = f"{refused.message or status.phrase}\n".encode()
        return make_answer(f"{status} {status.phrase}", [("Content-Type", "text/plain")], body, is_head=request.is_head)

    def identify(self, request: Request) -> None:
        """Called once for each request, when its head has been read or refused."""

    def answered(self, request: Request, answer: Answer) -> None:
        """Take note of an answer that is about to be sent."""

    def after_answers(self) -> None:
        """Do what can wait until the answers of a turn of the loop have been sent. It must not fail."""

    def never_waits(self, request: Request) -> bool:
        """Say whether the application answers this request without blocking, so that it needs no thread."""
        return False

    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """Run the calls and give their results in order. Each answers one request and may be repeated."""
        return [call() for call in calls]

    # What Gunicorn calls

    def load_wsgi(self) -> None:
        """Load the application, and make what the connections share."""
        super().load_wsgi()
        cfg = self.cfg
        for name, setting in cfg.settings.items():
            if _NOT_USED.fullmatch(name) and setting.get() != setting.default:
                self.log.warning("this worker does not use the setting %s", name)
        line, field = cfg.limit_request_line or 8190, cfg.limit_request_field_size or 8190
        self.limits: Limits = Limits(line, field, cfg.limit_request_fields, self.max_body_bytes)
        self.keepalive: float = cfg.keepalive  # Gunicorn looks up each setting anew.
        self.now: float = time.monotonic()
        self.connections: set[Connection] = set()
        self._most_connections = _allow_descriptors(cfg.worker_connections)
        self._most_held = _BODIES_HELD * max(self.max_body_bytes, HEAD_BYTES)
        self._held = 0
        self.later: deque[Connection] = deque()  # go on when the others have had their turn
        self._whole: deque[Job] = deque()  # requests that are answered in the loop
        self._has_threads = cfg.threads > 1
        self._calls = Calls(self, self.PIPE[1])
        self._calls.start(cfg.threads if self._has_threads else 0)
        self._selector = DefaultSelector()
        self._sweep_at = 0.0
        self._listens = self._stops_at_once = False
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
        """Stop at once (``INT``, ``QUIT``). Requests that have arrived whole are still answered."""
        if self.alive:
            self.cfg.worker_int(self)
        self.alive = False
        self._stops_at_once = True

    def run(self) -> None:
        """Serve until the worker is told to stop or its master has gone, then let the connections end."""
        self._selector.register(self.PIPE[0], EVENT_READ, partial(os.read, self.PIPE[0], 4096))
        while self.alive:
            self._run_once()
        # Clients in the backlog have connected already. Closing the listener now would reset them.
        start = self._sweep_at = self.now
        while self.now < start + STOPPING_SECONDS:
            self._run_once()
        self._listen(False)
        for listener in self.sockets:
            self._accept(listener.sock)
            listener.sock.close()
        while self.connections and self.now < start + self.cfg.graceful_timeout:
            self._run_once()

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
        """Queue a whole request for its answer. Stop after ``max_requests``."""
        if self.never_waits(request):
            self._whole.appendleft((connection, request))
        else:
            (self._calls.waiting if self._has_threads else self._whole).append((connection, request))
        self.nr += 1
        if self.nr == self.max_requests:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False

    def _run_once(self) -> None:
        has_more = self.later or self._whole or self._calls.can_start()
        events = self._selector.select(0.0 if has_more else self._sweep_at - time.monotonic())
        self.now = time.monotonic()
        for start in range(0, max(1, len(events)), _STEPS_A_STAGE):
            for key, _ in events[start : start + _STEPS_A_STAGE]:
                if isinstance(key.data, Connection):
                    self._step(key.data, key.data.ready)
                else:
                    key.data()
            self._answer()
            if self._held > self._most_held:
                self._free_memory()
        if self.later:
            for connection in [self.later.popleft() for _ in range(min(len(self.later), _LATER_A_TURN))]:
                self._step(connection, connection.parse_more)
            self._answer()
        if self._has_threads:
            for connection, request, answer in self._calls.outcomes():
                self._step(connection, connection.answer, request, answer)
            self._calls.start_batches(self.now)
        if self.now >= self._sweep_at:
            self._sweep()
        self.after_answers()

    def _step(self, connection: Connection, step: Callable[..., None], *args: Any) -> None:
        """Run one step of one connection: a failure ends this connection only. Then update the memory count."""
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
        # Stage by stage: the code of each stays warm, and no client that an answer wakes takes the processor away.
        if self._whole:
            until = time.monotonic() + _SWEEP_SECONDS
            outcomes: list[Outcome] = []
            while self._whole and time.monotonic() < until:
                job = connection, request = self._whole.popleft()
                try:
                    if is_awaited(job):
                        outcomes.append((connection, request, self._calls.call(request)))
                except Exception:
                    self._fail(connection)
            for connection, request, answer in outcomes:
                self._step(connection, connection.answer, request, answer)

    def _free_memory(self) -> None:
        others = [connection for connection in self.connections if connection.state != ANSWERING]
        for connection in nlargest(_STEPS_A_STAGE, others, key=attrgetter("counted")):
            if self._held > self._most_held and connection.counted:
                self._step(connection, connection.free_memory)

    def _sweep(self) -> None:
        # Checking all connections now and then costs less than a timer per request.
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
                self.log.warning("cannot accept connections for now: %s", error)
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
    """Raise the descriptor limit if needed and allowed; give the possible number of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_DESCRIPTORS
    soft = max(soft, needed if hard == resource.RLIM_INFINITY else min(needed, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(connections, soft - _OTHER_DESCRIPTORS))
