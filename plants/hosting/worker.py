"""The Gunicorn worker: an event loop that receives whole requests, for an application that is plain WSGI."""

import asyncio
import io
import os
import queue
import resource
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from gunicorn import SERVER_SOFTWARE
from gunicorn.glogging import Logger
from gunicorn.sock import ssl_context
from gunicorn.workers.gasgi import ASGIWorker

from plants.hosting.bridge import Environ
from plants.hosting.connection import STOPPING_SECONDS, Connection
from plants.hosting.settings import Settings

_READ_BYTES = 65536
# How many connections are accepted, or are told that they are late, before the others have their turn: a thousand may
# come or expire at once, and nobody is to wait for all of them.
_ACCEPTED_A_TURN = 50
_EXPIRED_A_TURN = 10
_SWEEP_SECONDS = 1.0
_STOPPING_SWEEP_SECONDS = 0.05

_Job = tuple[Callable[[], Any], Callable[[Any], None]]
_RunTogether = Callable[[list[Callable[[], Any]]], list[Any]]


class Worker(ASGIWorker):
    """Serves a WSGI application from Gunicorn's event loop: no client, however slow, keeps another one waiting.

    With Gunicorn's ``threads`` 1 the application is called in the event loop, which is right for one that never
    waits; with more, in that many threads.
    """

    loop: asyncio.AbstractEventLoop

    @classmethod
    def check_config(cls, cfg: Any, log: Any) -> None:
        """Accept ``threads``, which Gunicorn's own worker warns of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connections: set[Connection] = set()
        self.stopping = False
        self.size_held = 0
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self._stop = asyncio.Event()
        self._turn = threading.Lock()  # Who waits here leaves all that comes to one other thread.
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._new_jobs: list[_Job] = []
        self._outcomes: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_told = False  # The event loop knows that there are outcomes.

    def load_wsgi(self) -> None:
        """Load the application, and make what the connections share."""
        super(ASGIWorker, self).load_wsgi()
        cfg = self.cfg
        settings = Settings.from_environ(os.environ)
        self.max_body_bytes = settings.max_body_bytes
        self.request_timeout = settings.request_timeout
        self.max_connections = cfg.worker_connections
        self.keepalive = cfg.keepalive
        self.now = self.loop.time
        self._has_threads = cfg.threads > 1
        self._together: _RunTogether | None = getattr(self.wsgi, "together", None)
        hooks = (cfg.settings[name] for name in ("pre_request", "post_request"))
        self.is_observed = (
            self.log.access_log_enabled
            or cfg.logger_class is not Logger
            or any(hook.get() is not hook.default for hook in hooks)
        )
        self._environ: Environ = {
            "REMOTE_ADDR": "",
            "SCRIPT_NAME": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_SOFTWARE": SERVER_SOFTWARE,
            "wsgi.errors": _ErrorLog(self.log),
            "wsgi.input_terminated": True,
            "wsgi.multiprocess": cfg.workers > 1,
            "wsgi.multithread": cfg.threads > 1,
            "wsgi.run_once": False,
            "wsgi.url_scheme": "https" if cfg.is_ssl else "http",
            "wsgi.version": (1, 0),
        }
        # A connection is a file; those that are being refused need one too.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * self.max_connections + 100
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == -1 else min(wanted, hard), hard))

    def environ_of(self, transport: asyncio.BaseTransport) -> Environ:
        """Give what the environs of all requests of a connection have in common."""
        environ = self._environ.copy()
        peer, server = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if isinstance(peer, tuple):
            environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = peer[0], str(peer[1])
        if isinstance(server, tuple):
            environ["SERVER_NAME"], environ["SERVER_PORT"] = server[0], str(server[1])
        return environ

    def run_application(self, step: Callable[[Any], Any], answer: Any, then: Callable[[Any], None]) -> None:
        """Let a step of an answer run where the application runs, and the event loop go on with what it returned."""
        if not self._has_threads:
            then(step(answer))
            return
        # A thread that woke for the first of them would take turns with the event loop, call by call.
        if not self._new_jobs:
            self.loop.call_soon(self._hand_over)
        self._new_jobs.append((partial(step, answer), then))

    def _hand_over(self) -> None:
        for job in self._new_jobs:
            self._jobs.put(job)
        self._new_jobs.clear()

    def _work(self) -> None:
        while True:
            jobs = self._take_all() if self._together else [self._jobs.get()]
            steps = [step for step, _ in jobs]
            outcomes = self._together(steps) if self._together else [step() for step in steps]
            self._outcomes.extend(zip((then for _, then in jobs), outcomes, strict=True))
            if not self._is_told:
                self._is_told = True
                with suppress(RuntimeError):  # The event loop is closed: the worker has stopped.
                    self.loop.call_soon_threadsafe(self._go_on)

    def _take_all(self) -> list[_Job]:
        with self._turn:
            return [self._jobs.get(), *(self._jobs.get() for _ in range(self._jobs.qsize()))]

    def _go_on(self) -> None:
        self._is_told = False  # First, so that what comes from here on is told of.
        while self._outcomes:
            then, outcome = self._outcomes.popleft()
            then(outcome)

    def count_request(self) -> None:
        """Count a request, and stop after the last one of ``max_requests``."""
        self.nr += 1
        if self.nr == self.max_requests:
            self.log.info("Autorestarting worker after current request.")
            self.stop()

    def stop(self) -> None:
        """Begin to stop: answer what has been read, and take nothing more."""
        self.alive = False
        self.stopping = True
        self._stop.set()
        for connection in self.connections:
            connection.stop()

    def handle_exit_signal(self) -> None:
        """Stop gracefully (``TERM``)."""
        self.stop()

    def handle_quit_signal(self) -> None:
        """Stop at once (``INT``, ``QUIT``), but for requests that have been received whole: each has its answer."""
        if not self.stopping:
            self.cfg.worker_int(self)
        self.stop()
        for connection in list(self.connections):
            connection.drop()

    async def _serve(self) -> None:
        cfg = self.cfg
        tls: dict[str, Any] = {}
        if cfg.is_ssl:
            tls = {
                "ssl": ssl_context(cfg),
                "ssl_handshake_timeout": self.request_timeout,
                "ssl_shutdown_timeout": self.request_timeout,
            }
        for _ in range(cfg.threads if self._has_threads else 0):
            threading.Thread(target=self._work, daemon=True).start()
        servers = []
        for listener in self.sockets:
            servers.append(
                await self.loop.create_server(
                    partial(Connection, self), sock=listener.sock, backlog=_ACCEPTED_A_TURN, **tls
                )
            )
            # asyncio takes the number of connections to accept at a time for the length of the queue too.
            listener.sock.listen(cfg.backlog)
        while self.alive and self.ppid == os.getppid():
            await self._sweep()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _SWEEP_SECONDS)
        self.stop()
        await self._drain(servers)

    async def _drain(self, servers: list[asyncio.Server]) -> None:
        start = self.now()
        listening = True
        while True:
            await self._sweep()
            await asyncio.sleep(_STOPPING_SWEEP_SECONDS)
            # Whoever waits in the backlog has connected, and would be reset. The round after the last one that was
            # accepted sees it among the connections.
            if listening and self.now() > start + STOPPING_SECONDS:
                listening = False
                for server in servers:
                    server.close()
            elif not listening and (not self.connections or self.now() > start + self.cfg.graceful_timeout):
                break

    async def _sweep(self) -> None:
        # One look at all connections costs less than a timer for each request.
        self.notify()
        now = self.now()
        expired = 0
        for connection in list(self.connections):
            if connection.deadline <= now:
                connection.expire()
                expired += 1
                if expired % _EXPIRED_A_TURN == 0:
                    await asyncio.sleep(0)


class _ErrorLog(io.TextIOBase):
    """``wsgi.errors``: what is written to it goes to Gunicorn's error log."""

    def __init__(self, log: Logger) -> None:
        self._log = log

    def write(self, text: str) -> int:
        if text.strip():
            self._log.error("%s", text.rstrip())
        return len(text)
