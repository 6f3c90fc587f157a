"""The event loop: it serves all connections of a worker process. A slow or broken one does not delay the others.

``run`` repeats one iteration, in one thread: wait for events; accept, and read from every connection that is ready;
call the application, or pass requests to threads; send the responses; every 0.1 s, check the deadlines. Each kind of
work in an iteration is bounded: one step for each connection, in which it reads and parses little; 0.1 s of calls, and
one with a large body; some hundreds of new connections. So a client never waits for more than the work of one
iteration. Whatever the loop does for one connection it does in ``step``, and a failure there closes only this
connection. A signal handler may call ``stop``, and only the loop's thread may call everything else.
"""

import math
import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from plants.server.calls import Calls
from plants.server.config import Config
from plants.server.connection import STOPPING_SECONDS, Connection
from plants.server.hooks import Hooks
from plants.server.poll import READABLE
from plants.server.request import Environ, Listener
from plants.server.state import RESPONDING, LoopState, network_of

_MAX_ACCEPTS_PER_ITERATION: Final = 256
_MAX_EXPIRED_PER_ITERATION: Final = 32
_SWEEP_SECONDS: Final = 0.1  # between two checks of all deadlines
# After max_requests, the next worker accepts clients when this one has ended, so slow clients must not delay that.
_RETIRING_SECONDS: Final = 1.0
_REPORT_SECONDS: Final = 10.0  # between two warnings that clients are turned away or cannot be accepted
_OTHER_DESCRIPTORS: Final = 100  # reserved for listeners, logs, the store and the connections beyond the maximum


class Loop:
    """An event loop for the connections of HTTP/1.1 clients."""

    def __init__(
        self, config: Config, listeners: Sequence[Listener], hooks: Hooks, log: Any, wake_fds: Sequence[int]
    ) -> None:
        """Start the threads.

        :param log: a logger with ``info``, ``warning``, ``error`` and ``exception``.
        :param wake_fds: both ends of a pipe; a byte that is written to it wakes the loop.
        """
        self.listeners = listeners
        self._log = log
        connections = allow_descriptors(config.connections)
        if connections < config.connections:
            log.warning("the limit of open files (ulimit -n) allows only %d connections", connections)
            config = replace(config, connections=connections)
        self._requests_left = config.max_requests
        self.shared = LoopState(hooks, config, log)
        self._calls = Calls(config.threads, log, wake_fds[1])
        self.on_sweep: Callable[[], None] = lambda: None  # called about every 0.1 s
        self._sweep_at = 0.0
        self._report_at = 0.0
        self._base_environ: Environ = {
            "REMOTE_ADDR": "",
            "SCRIPT_NAME": "",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "wsgi.input_terminated": True,
            "wsgi.multithread": True,
            "wsgi.run_once": False,
            "wsgi.url_scheme": "https" if config.tls else "http",
            "wsgi.version": (1, 0),
        } | config.environ
        for listener in listeners:
            listener.sock.setblocking(False)
        self.shared.watch(wake_fds[0], READABLE, partial(os.read, wake_fds[0], 4096))

    def pending_request_count(self) -> int:
        """Return the number of requests without a response, queued or in the application."""
        return sum([connection.state is RESPONDING for connection in self.shared.connections])

    def stop(self) -> None:
        """Stop after the requests that have begun to arrive. A signal handler may call this."""
        self.shared.stopping = True

    def run(self, graceful_timeout: float) -> None:
        """Serve until ``stop`` is called, then let the connections finish within ``graceful_timeout`` seconds."""
        shared = self.shared
        while not shared.stopping:
            self.run_once()
        # Clients in the backlog have connected already. Closing the listener now would reset them.
        start = self._sweep_at = shared.now
        while shared.now < start + STOPPING_SECONDS:
            self.run_once()
        for listener in self.listeners:
            self._accept(listener)
            shared.watch(listener.sock.fileno(), 0, None)
            listener.sock.close()
        while shared.connections and shared.now < start + graceful_timeout:
            self.run_once()

    def run_once(self) -> None:
        """Run one iteration."""
        shared = self.shared
        for descriptor, _ in self._events():
            handler = shared.handlers.get(descriptor)  # None if an earlier step of this iteration has closed it
            if isinstance(handler, Connection):
                self.step(handler, handler.ready)
            elif handler:
                handler()
        unfinished, shared.unfinished_connections = shared.unfinished_connections, set()
        for connection in unfinished:
            self.step(connection, connection.continue_reading)
        self._dispatch()
        self._calls.call_in_loop()
        for exchange in self._calls.completed():
            self.step(exchange.connection, exchange.connection.respond, exchange)
        if shared.now >= self._sweep_at:
            self._sweep()
        shared.hooks.after_iteration()

    def _events(self) -> list[tuple[int, int]]:
        """Wait until there is something to do; return the descriptors that are ready, and their events."""
        shared = self.shared
        has_work = shared.unfinished_connections or any(self._calls.in_loop)
        timeout = 0.0 if has_work else max(0.0, self._sweep_at - time.monotonic())
        # By default, epoll returns at most 1,023 events. The others could wait for many iterations.
        events: list[tuple[int, int]] = shared.poll.poll(timeout, shared.config.connections + _OTHER_DESCRIPTORS)
        shared.now = time.monotonic()
        return events

    def step(self, connection: Connection, step: Callable[..., None], *args: Any) -> None:
        """Run one step for one connection. If it fails, close only this connection."""
        try:
            step(*args)
        except OSError:  # The client has gone.
            connection.close()
        except Exception:
            self._log.exception("a connection failed and is closed")
            connection.close()

    def _dispatch(self) -> None:
        """Queue the complete requests."""
        ready = self.shared.ready_exchanges
        self._calls.put(ready)
        if 0 < self._requests_left <= len(ready):
            self._log.info("Autorestarting worker after current request.")
            self.stop()
        self._requests_left -= len(ready)
        ready.clear()

    def _sweep(self) -> None:
        # Checking all connections every 0.1 s costs less than a timer per request.
        shared = self.shared
        self.on_sweep()
        if not shared.stopping:
            for listener in self.listeners:  # again, if accepting has failed
                shared.watch(listener.sock.fileno(), READABLE, partial(self._accept, listener))
        else:
            seconds = _RETIRING_SECONDS if self._requests_left <= 0 else math.inf
            for connection in list(shared.connections):
                self.step(connection, connection.limit_wait, seconds)
        expired = [connection for connection in shared.connections if connection.deadline <= shared.now]
        for connection in expired[:_MAX_EXPIRED_PER_ITERATION]:
            self.step(connection, connection.expire)
        if len(expired) <= _MAX_EXPIRED_PER_ITERATION:
            self._sweep_at = shared.now + _SWEEP_SECONDS
        if shared.turned_away and shared.now >= self._report_at:
            self._report_at = shared.now + _REPORT_SECONDS
            self._log.warning("the worker is full: %d clients were turned away", shared.turned_away)
            shared.turned_away = 0

    def _accept(self, listener: Listener) -> None:
        for _ in range(_MAX_ACCEPTS_PER_ITERATION):
            try:
                sock, peer = listener.sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if self.shared.now >= self._report_at:
                    self._report_at = self.shared.now + _REPORT_SECONDS
                    self._log.warning("cannot accept connections for now: %s", error)
                self.shared.watch(listener.sock.fileno(), 0, None)
                return
            has_room = self._make_room(listener, peer[0] if isinstance(peer, tuple) else "")
            try:
                sock.setblocking(False)
                connection = self.connect(listener, sock, peer)
            except OSError:  # The client has gone.
                sock.close()
                continue
            # Before the next client is accepted, which could replace this one if it has not shown a token.
            self.step(connection, connection.ready if has_room else connection.turn_away)

    def _make_room(self, listener: Listener, host: str) -> bool:
        """Return whether there is room for a new connection, if necessary after closing another one."""
        config = self.shared.config
        extra = config.public_connections + listener.reserved_connections
        if len(self.shared.connections) - len(self.shared.lingering) < config.connections + extra:
            return True
        connection: Connection | None = self.shared.connection_to_evict(network_of(host))
        if connection is None:
            return False
        self.shared.turned_away += 1
        self.step(connection, connection.close)
        return True

    def connect(self, listener: Listener, sock: socket.socket, peer: Any) -> Connection:
        """Serve a client on a connected, non-blocking socket; ``peer`` is its address."""
        environ = self._base_environ.copy()
        server = sock.getsockname()
        for host, port, address in (("REMOTE_ADDR", "REMOTE_PORT", peer), ("SERVER_NAME", "SERVER_PORT", server)):
            if isinstance(address, tuple):
                # On a listener for both versions, an IPv4 address has this prefix.
                environ[host], environ[port] = address[0].removeprefix("::ffff:"), str(address[1])
        return Connection(self.shared, listener, sock, environ, network_of(environ["REMOTE_ADDR"]))


def allow_descriptors(connections: int) -> int:
    """Raise the limit of descriptors if necessary and allowed; return the possible number of connections.

    :raises ValueError: no connection is possible.
    """
    # Linux allows no infinite limit here. On macOS and the BSDs, RLIM_INFINITY is a large number.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = min(connections + _OTHER_DESCRIPTORS, hard)
    if soft < needed:
        with suppress(ValueError):  # macOS rejects more than 10,240 (OPEN_MAX), even if the hard limit is higher.
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
            soft = needed
    if min(connections, soft - _OTHER_DESCRIPTORS) < 1:
        raise ValueError(f"worker_connections={connections} and ulimit -n {soft} allow no connections")
    return min(connections, soft - _OTHER_DESCRIPTORS)
