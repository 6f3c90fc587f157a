"""The event loop: it serves all connections of a worker process. None of them can block another or make it fail."""

import os
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nlargest
from operator import attrgetter
from ssl import SSLContext
from typing import Any, Final, NamedTuple

from plants.server.connection import RESPONDING, STOPPING_SECONDS, Connection, Shared
from plants.server.request import HEAD_BYTES, Environ, HTTPError, Limits, Listener, Timeouts
from plants.server.service import Service
from plants.server.threads import Calls, Completed, Job, current_request, is_current, is_large
from plants.server.tls import TLS

# After this much work of one kind, the loop goes on to the next kind, so that a burst cannot delay other clients.
_MAX_ACCEPTS_PER_ITERATION: Final = 16
# A stage of an iteration handles up to this many events, then calls the applications for them, then responds. Also, at
# most this many connections are shed at a time.
_MAX_STEPS_PER_STAGE: Final = 64
_MAX_UNFINISHED_PER_ITERATION: Final = 32
_MAX_EXPIRED_PER_ITERATION: Final = 32
_SWEEP_SECONDS: Final = 0.1  # between two checks of all deadlines; also the time limit for the calls of one stage
_MAX_BUFFERED_BODIES: Final = 64  # of the largest size; if the connections buffer more in total, some are shed
_OTHER_DESCRIPTORS: Final = 100  # reserved for listeners, logs and the store


class Config(NamedTuple):
    """The configuration of an event loop.

    ``base_environ`` has environ keys that all requests share. The loop stops after ``max_requests`` requests. With
    ``threads`` 0, the loop calls the applications, which must not block. Otherwise ``threads`` threads call them, each
    for up to ``max_batch`` requests at a time.
    """

    limits: Limits
    timeouts: Timeouts
    base_environ: Environ
    tls: SSLContext | None
    max_connections: int
    max_requests: int
    threads: int
    max_batch: int


class Loop:
    """An event loop for the connections of HTTP/1.1 clients."""

    def __init__(
        self, config: Config, listeners: Sequence[Listener], service: Service, log: Any, wake_fds: tuple[int, int]
    ) -> None:
        """Start the threads.

        :param log: a logger with ``info``, ``warning``, ``error`` and ``exception``.
        :param wake_fds: both ends of a pipe; a byte that is written to it wakes the loop.
        """
        self.listeners = listeners
        self._service = service
        self._non_blocking_paths = frozenset(service.non_blocking_paths)
        self._log = log
        self._wake_fd = wake_fds[0]
        self._tls = config.tls
        self._max_connections = _allow_descriptors(config.max_connections)
        self._requests_left = config.max_requests
        # The classes of the module selectors would run Python code for each event. A system without epoll has poll,
        # which has the same methods but takes milliseconds, and is slower with many connections.
        has_epoll = hasattr(select, "epoll")
        self._poll_unit: float = 1.0 if has_epoll else 1000.0
        poll: Any = select.epoll() if has_epoll else select.poll()
        self.shared = Shared(poll, service, config.limits, config.timeouts)
        self.shared.now = time.monotonic()
        self._max_buffered_bytes = _MAX_BUFFERED_BODIES * max(config.limits.body_bytes, HEAD_BYTES)
        self._buffered_bytes = 0
        self._loop_jobs: deque[Job] = deque()  # requests whose application is called in the loop
        self._large_loop_jobs: deque[Job] = deque()
        self._has_threads = config.threads > 0
        self._calls = Calls(service, log, wake_fds[1], threads=config.threads, max_batch=config.max_batch)
        self._on_sweep: Callable[[], None] | None = None
        self._sweep_at = 0.0
        self._listening = False
        self._stopping_at_once = False
        self._base_environ: Environ = {
            "REMOTE_ADDR": "",
            "SCRIPT_NAME": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            # With threads, an application may call start_response during the iteration of its response. A thread calls
            # the application for all requests of a batch before it iterates over the first response.
            "server.deferred_response": self._has_threads,
            "wsgi.input_terminated": True,
            "wsgi.multithread": self._has_threads,
            "wsgi.run_once": False,
            "wsgi.url_scheme": "https" if config.tls else "http",
            "wsgi.version": (1, 0),
        } | config.base_environ
        self.shared.watch(self._wake_fd, select.POLLIN, partial(os.read, self._wake_fd, 4096))

    def connection_count(self) -> int:
        """Return the number of open connections."""
        return len(self.shared.connections)

    def pending_request_count(self) -> int:
        """Return the number of requests without a response, queued or in the application."""
        return sum([connection.state == RESPONDING for connection in self.shared.connections])

    def stop(self, *, at_once: bool = False) -> None:
        """Stop after the requests that have begun to arrive; if ``at_once``, after those that have arrived completely.

        A signal handler may call this.
        """
        self.shared.stopping = True
        self._stopping_at_once = at_once

    def run(self, graceful_timeout: float, on_sweep: Callable[[], None]) -> None:
        """Serve until ``stop`` is called, then let the connections finish within ``graceful_timeout`` seconds.

        :param on_sweep: called about every 0.1 s.
        """
        self._on_sweep = on_sweep
        shared = self.shared
        while not shared.stopping:
            self.run_once()
        # Clients in the backlog have connected already. Closing the listener now would reset them.
        start = self._sweep_at = shared.now
        while shared.now < start + STOPPING_SECONDS:
            self.run_once()
        self._listen(False)
        for listener in self.listeners:
            self._accept(listener)
            listener.sock.close()
        while shared.connections and shared.now < start + graceful_timeout:
            self.run_once()

    def run_once(self) -> None:
        """Run one iteration."""
        shared = self.shared
        unfinished = shared.unfinished_connections
        has_more = unfinished or self._loop_jobs or self._large_loop_jobs or self._calls.can_start()
        timeout = 0.0 if has_more else max(0.0, self._sweep_at - time.monotonic())
        events = shared.poll.poll(timeout * self._poll_unit)
        shared.now = time.monotonic()
        for start in range(0, max(1, len(events)), _MAX_STEPS_PER_STAGE):
            for descriptor, _ in events[start : start + _MAX_STEPS_PER_STAGE]:
                handler = shared.handlers.get(descriptor)  # None if an earlier step of this iteration has closed it
                if isinstance(handler, Connection):
                    self._step(handler, handler.ready)
                elif handler:
                    handler()
            self._call_in_loop()
            if self._buffered_bytes > self._max_buffered_bytes:
                self._free_memory()
        if unfinished:
            for _ in range(min(len(unfinished), _MAX_UNFINISHED_PER_ITERATION)):
                connection = unfinished.popleft()
                self._step(connection, connection.parse_more)
            self._call_in_loop()
        if self._has_threads:
            for connection, request, response in self._calls.completed():
                self._step(connection, connection.respond, request, response)
            self._calls.start_batches(shared.now)
        if shared.now >= self._sweep_at:
            self._sweep()
        self._service.after_iteration()

    def _step(self, connection: Connection, step: Callable[..., None], *args: Any) -> None:
        """Run one step of one connection, and update the memory count. A failure closes only this connection."""
        try:
            step(*args)
        except OSError:  # The client has gone.
            connection.close()
        except Exception:
            self._fail(connection)
        buffered = connection.buffered_bytes()
        if buffered != connection.counted_bytes:
            self._buffered_bytes += buffered - connection.counted_bytes
            connection.counted_bytes = buffered

    def _fail(self, connection: Connection) -> None:
        self._log.exception("a connection failed and is closed")
        connection.close()

    def _dispatch(self) -> None:
        """Queue the complete requests for the loop or for a thread."""
        ready = self.shared.ready_requests
        for job in ready:
            if job[1].path in self._non_blocking_paths:
                self._loop_jobs.appendleft(job)  # It does not block, so it need not wait behind slower requests.
            elif self._has_threads:
                (self._calls.queued_large_jobs if is_large(job) else self._calls.queued_jobs).append(job)
            else:
                (self._large_loop_jobs if is_large(job) else self._loop_jobs).append(job)
            self._requests_left -= 1
            if self._requests_left == 0:
                self._log.info("Autorestarting worker after current request.")
                self.stop()
        ready.clear()

    def _call_in_loop(self) -> None:
        # Run a stage in three phases (receive, call, respond), so that the code of each phase stays in the CPU cache.
        # Also, a response wakes its client, which may preempt this process. Sending all in a row makes this rarer.
        self._dispatch()
        if not (self._loop_jobs or self._large_loop_jobs):
            return
        until = time.monotonic() + _SWEEP_SECONDS
        completed: list[Completed] = []
        while (waiting := self._loop_jobs or self._large_loop_jobs) and time.monotonic() < until:
            job = waiting.popleft()
            if is_current(job):
                try:
                    completed.append((job[0], job[1], self._calls.call(job[1])))
                except Exception:
                    self._fail(job[0])
        current_request.set(None)
        for connection, request, response in completed:
            self._step(connection, connection.respond, request, response)

    def _free_memory(self) -> None:
        sheddable = [connection for connection in self.shared.connections if connection.state != RESPONDING]
        for connection in nlargest(_MAX_STEPS_PER_STAGE, sheddable, key=attrgetter("counted_bytes")):
            if self._buffered_bytes > self._max_buffered_bytes and connection.counted_bytes:
                self._step(connection, connection.shed)

    def _sweep(self) -> None:
        # Checking all connections now and then costs less than a timer per request.
        shared = self.shared
        if self._on_sweep:
            self._on_sweep()
        if not shared.stopping:
            self._listen(True)
        else:
            for connection in list(shared.connections):
                self._step(connection, partial(connection.stop, at_once=self._stopping_at_once))
        expired = [connection for connection in shared.connections if connection.deadline <= shared.now]
        for connection in expired[:_MAX_EXPIRED_PER_ITERATION]:
            self._step(connection, connection.expire)
        if len(expired) <= _MAX_EXPIRED_PER_ITERATION:
            self._sweep_at = shared.now + _SWEEP_SECONDS

    def _listen(self, listening: bool) -> None:
        if listening == self._listening:
            return
        self._listening = listening
        for listener in self.listeners:
            listener.sock.setblocking(False)
            events = select.POLLIN if listening else 0
            self.shared.watch(listener.sock.fileno(), events, partial(self._accept, listener))

    def _accept(self, listener: Listener) -> None:
        for _ in range(_MAX_ACCEPTS_PER_ITERATION):
            try:
                sock, peer = listener.sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._log.warning("cannot accept connections for now: %s", error)
                self._listen(False)
                return
            full = len(self.shared.connections) >= self._max_connections + listener.reserved_connections
            if full and self.shared.connections_waiting_for_client:
                longest_inactive = next(iter(self.shared.connections_waiting_for_client))
                self._step(longest_inactive, longest_inactive.close)
                full = False
            try:
                sock.setblocking(False)
                connection = self.connect(listener, sock, peer)
            except OSError:  # The client has gone.
                sock.close()
                continue
            if full:
                self._step(connection, connection.reject, HTTPError(503, "The service has too many connections."))
                self._step(connection, connection.close)

    def connect(self, listener: Listener, sock: socket.socket, peer: Any) -> Connection:
        """Serve a client on a connected, non-blocking socket; ``peer`` is its address."""
        environ = self._base_environ.copy()
        server = sock.getsockname()
        if isinstance(peer, tuple):
            environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = peer[0], str(peer[1])
        if isinstance(server, tuple):
            environ["SERVER_NAME"], environ["SERVER_PORT"] = server[0], str(server[1])
        connection = Connection(self.shared, listener, sock, environ, TLS(self._tls) if self._tls else None)
        self.shared.connections.add(connection)
        self._step(connection, connection.watch)
        return connection


def _allow_descriptors(connections: int) -> int:
    """Raise the limit of descriptors if necessary and allowed; return the possible number of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_DESCRIPTORS
    soft = max(soft, needed if hard == resource.RLIM_INFINITY else min(needed, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(connections, soft - _OTHER_DESCRIPTORS))
