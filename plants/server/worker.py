"""The Gunicorn worker: one loop over all connections, in which none can hold up or end another."""

import math
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from operator import attrgetter
from selectors import EVENT_READ, DefaultSelector
from types import FrameType, SimpleNamespace
from typing import Any

from gunicorn import SERVER_SOFTWARE
from gunicorn.glogging import Logger
from gunicorn.sock import ssl_context
from gunicorn.workers import base

from plants.server.answer import Answer, ErrorLog, call_application, make_answer
from plants.server.connection import ANSWERING, STOPPING_SECONDS, Connection
from plants.server.request import HEAD_BYTES, Environ, Limits, Refused, Request
from plants.server.threads import Job, Outcome, Threads

# What one turn of the loop does at the most, so that many clients at once delay nobody else for long.
_ACCEPTED_A_TURN = 16
_STEPS_A_STAGE = 64
_LATER_A_TURN = 32
_EXPIRED_A_TURN = 32
_SWEEP_SECONDS = 0.25
_STOPPING_SWEEP_SECONDS = 0.05
_REST_SECONDS = 1.0  # while the system has no descriptor left
# Connections over the limit that are told so before they are closed; a further one is closed without an answer.
_TOO_MANY = 64
# Descriptors that are not connections: listeners, logs, the store's.
_OTHER_DESCRIPTORS = 100
# All connections together hold no more bytes than so many bodies of the largest size.
_BODIES_HELD = 64
# The settings that turn Gunicorn's access log on.
_ACCESS_LOGS = ("accesslog", "logconfig", "logconfig_dict", "logconfig_json", "syslog")


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
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        return make_answer(f"{status} {status.phrase}", headers, body, is_head=request.is_head)

    def identify(self, request: Request) -> None:
        """Take note of a request, once, when its head has been read or refused."""

    def answered(self, request: Request, answer: Answer) -> None:
        """Take note of an answer."""
        if self._has_access_log:
            environ = dict.fromkeys(("REQUEST_METHOD", "RAW_URI", "SERVER_PROTOCOL"), "-") | request.environ
            fields = [(key[5:].replace("_", "-"), value) for key, value in environ.items() if key.startswith("HTTP_")]
            response = SimpleNamespace(status=answer.status, headers=answer.headers, sent=len(answer.body))
            elapsed = timedelta(seconds=time.monotonic() - request.started)
            self.log.access(response, SimpleNamespace(headers=fields), environ, elapsed)

    def never_waits(self, request: Request) -> bool:
        """Tell whether the application answers this request without waiting, so that it needs no thread."""
        return False

    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """Give what each call returns, in order; a call answers one request, does not fail, and can be run again."""
        return [call() for call in calls]

    # What Gunicorn calls

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """Warn of hooks that are not called."""
        for name in ("pre_request", "post_request"):
            if cfg.settings[name].get() is not cfg.settings[name].default:
                log.warning("this worker does not call the %s hook", name)

    def load_wsgi(self) -> None:
        """Load the application, and make what the connections share."""
        super().load_wsgi()
        cfg = self.cfg
        self.check_config(cfg, self.log)
        self.connections: set[Connection] = set()
        self.limits = Limits(
            line=cfg.limit_request_line or 8190,
            field=cfg.limit_request_field_size or 8190,
            fields=cfg.limit_request_fields,
            body=self.max_body_bytes,
        )
        self.now = time.monotonic()
        self._quick = False
        self._held = 0
        self._most_held = _BODIES_HELD * max(self.max_body_bytes, HEAD_BYTES)
        self._has_access_log = cfg.logger_class is not Logger or any(cfg.settings[name].get() for name in _ACCESS_LOGS)
        self._whole: list[Job] = []
        self._waiting: list[Job] = []  # for a thread
        self._later: deque[Connection] = deque()
        self._threads: Threads | None = None
        self._sweep_at = 0.0
        self._listen_at = 0.0
        self._max_connections = self._allow_descriptors(cfg.worker_connections)
        self._tls = ssl_context(cfg) if cfg.is_ssl else None
        self._environ: Environ = {
            "REMOTE_ADDR": "",
            "SCRIPT_NAME": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
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
        self._quick = True

    def run(self) -> None:
        """Serve until the worker is told to stop or its master has gone, then let the connections end."""
        if self.cfg.threads > 1:
            self._threads = Threads(self.cfg.threads, self.most_together, self._call_together, self.PIPE[1])
        with DefaultSelector() as self._selector:
            self._selector.register(self.PIPE[0], EVENT_READ, self._drain_pipe)
            for listener in self.sockets:
                listener.sock.setblocking(False)
            self._listen()
            while self.alive:
                self._turn()
            self._stop()

    # What a connection calls

    def watch(self, connection: Connection, before: int, events: int) -> None:
        """Wait for other events of a connection's socket than before (0: none)."""
        if not events:
            self._selector.unregister(connection.sock)
        elif before:
            self._selector.modify(connection.sock, events, connection)
        else:
            self._selector.register(connection.sock, events, connection)

    def go_on_later(self, connection: Connection) -> None:
        """Let a connection go on with its input when the others have had their turn."""
        self._later.append(connection)

    def take(self, connection: Connection, request: Request) -> None:
        """Have a request answered that has arrived whole, and stop after the last one of ``max_requests``."""
        is_for_threads = self._threads and not self.never_waits(request)
        (self._waiting if is_for_threads else self._whole).append((connection, request))
        self.nr += 1
        if self.nr == self.max_requests:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False

    # The loop

    def _turn(self) -> None:
        wait = 0.0 if self._later else max(0.0, self._sweep_at - time.monotonic())
        events = self._selector.select(wait)
        self.now = time.monotonic()
        for start in range(0, len(events), _STEPS_A_STAGE):
            for key, _ in events[start : start + _STEPS_A_STAGE]:
                if isinstance(key.data, Connection):
                    self._step(key.data, key.data.ready)
                else:
                    key.data()
            self._answer()
        for _ in range(min(len(self._later), _LATER_A_TURN)):
            connection = self._later.popleft()
            self._step(connection, connection.go_on)
        self._answer()
        if self._threads:
            for connection, request, answer in self._threads.outcomes():
                self._step(connection, connection.answer, request, answer)
        self._shed()
        if self.now >= self._sweep_at:
            self._sweep()

    def _step(self, connection: Connection, step: Callable[..., None], *args: Any) -> None:
        """Do one thing for one connection, and count what is held for it. What fails ends this connection alone."""
        try:
            step(*args)
        except Exception as error:
            if not isinstance(error, OSError):  # An OSError is how a client leaves.
                self.log.exception("a connection failed and is closed")
            connection.close()
        held = connection.held()
        self._held += held - connection.counted
        connection.counted = held

    def _answer(self) -> None:
        # Requests are first all received, then all answered, then the answers are all written: the code of each stage
        # stays warm, and a client that an answer wakes does not take the processor away in between.
        if self._whole:
            jobs, self._whole = self._whole, []
            outcomes: list[Outcome] = []
            for connection, request in jobs:
                self._step(connection, self._call_for, connection, request, outcomes)
            for connection, request, answer in outcomes:
                self._step(connection, connection.answer, request, answer)
        if self._threads and self._waiting:
            jobs, self._waiting = self._waiting, []
            self._threads.put(jobs)

    def _call_for(self, connection: Connection, request: Request, outcomes: list[Outcome]) -> None:
        outcomes.append((connection, request, self._call(request)))

    def _call(self, request: Request) -> Answer:
        try:
            return call_application(self.wsgi, request)
        except (Exception, SystemExit):
            self.log.exception("the application failed")
            request.keep_alive = False
            return self.refusal(Refused(500), request)

    def _call_together(self, requests: Sequence[Request]) -> list[Answer]:
        try:
            answers = self.together([partial(self._call, request) for request in requests])
            if len(answers) != len(requests):
                raise ValueError(f"there are {len(answers)} answers to {len(requests)} requests")
        except Exception:
            self.log.exception("no request of these was answered: %d", len(requests))
            return [self.refusal(Refused(500), request) for request in requests]
        return answers

    def _shed(self) -> None:
        while self._held > self._most_held:
            others = [connection for connection in self.connections if connection.state is not ANSWERING]
            largest = max(others, key=attrgetter("counted"), default=None)
            if not largest or not largest.counted:
                break
            self._step(largest, largest.shed)

    def _sweep(self) -> None:
        # One look at all connections costs less than a timer for each request.
        self.notify()
        if self.ppid != os.getppid():
            self.alive = False
        if self._quick:
            for connection in list(self.connections):
                self._step(connection, connection.drop)
        expired = [connection for connection in self.connections if connection.deadline <= self.now]
        for connection in expired[:_EXPIRED_A_TURN]:
            self._step(connection, connection.expire)
        if len(expired) <= _EXPIRED_A_TURN:
            self._sweep_at = self.now + (_SWEEP_SECONDS if self.alive else _STOPPING_SWEEP_SECONDS)
        if self._listen_at <= self.now:
            self._listen()

    def _drain_pipe(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.PIPE[0], 4096)

    # Connections

    def _allow_descriptors(self, connections: int) -> int:
        """Raise the limit of descriptors as far as is needed and allowed; give how many connections there may be."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = connections + _TOO_MANY + _OTHER_DESCRIPTORS
        if soft < needed:
            soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, min(connections, soft - _TOO_MANY - _OTHER_DESCRIPTORS))

    def _listen(self) -> None:
        self._listen_at = math.inf
        for listener in self.sockets:
            self._selector.register(listener.sock, EVENT_READ, partial(self._accept, listener.sock))

    def _listen_later(self) -> None:
        self._listen_at = self.now + _REST_SECONDS
        for listener in self.sockets:
            self._selector.unregister(listener.sock)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                sock, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self.log.warning("no connection is accepted for %s s: %s", _REST_SECONDS, error)
                self._listen_later()
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
            excess = len(self.connections) - self._max_connections
            if excess <= 0:
                self._step(connection, connection.watch)
            elif excess <= min(_TOO_MANY, self._max_connections):
                refused = Refused(503, "The service has as many connections as it can take.")
                self._step(connection, connection.refuse, refused)
            else:
                self._step(connection, connection.close)

    def _environ_of(self, sock: socket.socket, peer: Any) -> Environ:
        environ = self._environ.copy()
        server = sock.getsockname()
        if isinstance(peer, tuple):
            environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = peer[0], str(peer[1])
        if isinstance(server, tuple):
            environ["SERVER_NAME"], environ["SERVER_PORT"] = server[0], str(server[1])
        return environ

    # The end

    def _stop(self) -> None:
        start = self._sweep_at = self.now
        for connection in list(self.connections):
            self._step(connection, connection.stop)
        # Whoever waits in the backlog has connected, and would be reset.
        while self.now < start + STOPPING_SECONDS:
            self._turn()
        self._listen_later()
        for listener in self.sockets:
            self._accept(listener.sock)
            listener.sock.close()
        while self.connections and self.now < start + self.cfg.graceful_timeout:
            self._turn()
