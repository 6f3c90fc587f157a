"""A connection pool that serves callers in the order of their arrival."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from plants.stores import StoreUnavailable

_RECONNECT_SECONDS = 1.0  # If a connection is open, the pool waits this long after a failed attempt to open another.


class PoolConnection(Protocol):
    """A connection that a pool can hold."""

    def is_idle(self) -> bool:
        """Return whether the connection has finished its work and can be used again."""

    def has_unread_input(self) -> bool:
        """Return whether unread input is waiting. On an idle connection this almost always means that it was closed."""

    def close(self) -> None:
        """Close the connection."""


_C = TypeVar("_C", bound=PoolConnection)


class ConnectionPool(Generic[_C]):
    """Connections of one process. Each serves one caller at a time.

    If no further connection can be opened, callers wait until one is released. They fail early only if none is open.

    :param connect: opens a connection; it may raise any exception, and take any time.
    """

    def __init__(self, connect: Callable[[], _C], max_connections: int) -> None:
        self._connect = connect
        self._max_connections = max_connections
        self._lock = threading.RLock()  # guards everything below
        self._closed = False
        self._idle_connections: list[_C] = []
        self._open_count = 0  # idle or in use
        self._waiters: deque[Future[_C]] = deque()
        self._connecting = False  # in a thread, one connection at a time
        self._next_attempt_at = 0.0

    @contextmanager
    def connection(self, deadline: float) -> Iterator[_C]:
        """Borrow a connection.

        :raises StoreUnavailable: none is available by the deadline, a ``time.monotonic()`` value.
        """
        connection = self.acquire(deadline)
        try:
            yield connection
        finally:
            self.release(connection)

    def acquire(self, deadline: float) -> _C:
        """Acquire a connection; ``release`` returns it to the pool."""
        waiter: Future[_C] = Future()
        try:
            with self._lock:
                if self._closed:
                    raise StoreUnavailable("the store is closed")
                self._waiters.append(waiter)
                self._serve_waiters()
            return waiter.result(timeout=max(0, deadline - time.monotonic()))
        except BaseException as error:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                elif waiter.done() and not waiter.exception():
                    self.release(waiter.result())  # It came too late for this caller.
            if isinstance(error, TimeoutError):
                reason = "all connections are busy" if self._open_count else "no connection could be made in time"
                raise StoreUnavailable(reason) from None
            raise

    def release(self, connection: _C) -> None:
        """Return a connection to the pool, or close it if it cannot be used again."""
        with self._lock:
            if connection.is_idle() and not self._closed:
                self._idle_connections.append(connection)
            else:
                self._discard(connection)
            self._serve_waiters()

    def close(self) -> None:
        """Close all connections, each at the latest when it is released."""
        with self._lock:
            self._closed = True
            while self._idle_connections:
                self._discard(self._idle_connections.pop())
            self._fail_waiters(StoreUnavailable("the store is closed"))

    def _serve_waiters(self) -> None:
        while self._waiters and self._idle_connections:
            connection = self._idle_connections.pop()
            if connection.has_unread_input():
                self._discard(connection)
            else:
                self._waiters.popleft().set_result(connection)
        if not self._waiters or self._connecting or self._open_count == self._max_connections:
            return
        if self._open_count and time.monotonic() < self._next_attempt_at:
            return
        try:
            # Connect in a thread, because a connection that is too late for this caller can serve a later one.
            threading.Thread(target=self._open, name="plants-connect", daemon=True).start()
            self._connecting = True
        except RuntimeError as error:
            self._note_failed_attempt(StoreUnavailable(f"no connection could be made: {error}"))

    def _open(self) -> None:
        try:
            connection = self._connect()
        except BaseException as error:
            failure = error if isinstance(error, StoreUnavailable) else StoreUnavailable(type(error).__name__)
            with self._lock:
                self._connecting = False
                self._note_failed_attempt(failure)
        else:
            with self._lock:
                self._connecting = False
                self._open_count += 1
                self.release(connection)

    def _discard(self, connection: _C) -> None:
        connection.close()
        self._open_count -= 1

    def _note_failed_attempt(self, failure: StoreUnavailable) -> None:
        self._next_attempt_at = time.monotonic() + _RECONNECT_SECONDS
        if not self._open_count:
            self._fail_waiters(failure)

    def _fail_waiters(self, failure: StoreUnavailable) -> None:
        for waiter in self._waiters:
            # Each caller gets its own exception, because one that is raised repeatedly collects tracebacks.
            waiter.set_exception(type(failure)(*failure.args))
        self._waiters.clear()
