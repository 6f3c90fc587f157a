"""The connection pool, with fake connections."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Never

import pytest

from plants.stores import StoreUnavailable
from plants.stores.breaker import StoreUnusable
from plants.stores.pool import ConnectionPool, PoolConnection
from tests.support.process import wait_until


class FakeConnection:
    """A connection whose state a test sets."""

    def __init__(self) -> None:
        self.idle = True
        self.unread_input = False
        self.closed = False

    def is_idle(self) -> bool:
        return self.idle

    def has_unread_input(self) -> bool:
        return self.unread_input

    def close(self) -> None:
        self.closed = True


def in_a_minute() -> float:
    return time.monotonic() + 60


@pytest.mark.parametrize(
    ("error", "reason"), [(MemoryError(), "MemoryError"), (StoreUnusable("no table"), "no table")], ids=repr
)
def test_an_exception_while_connecting_raises_store_unavailable(error: Exception, reason: str) -> None:
    def connect() -> Never:
        raise error

    pool = ConnectionPool[PoolConnection](connect, max_connections=1)
    with pytest.raises(StoreUnavailable, match=f"^{reason}$"):
        pool.acquire(in_a_minute())


def test_closing_a_pool_fails_the_callers_that_wait() -> None:
    connecting, gate = threading.Event(), threading.Event()

    def connect() -> Never:
        connecting.set()
        gate.wait(60)
        raise MemoryError

    pool = ConnectionPool[PoolConnection](connect, max_connections=1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.acquire, in_a_minute())
        assert connecting.wait(60)
        pool.close()
        with pytest.raises(StoreUnavailable, match=r"^the store is closed$"):
            waiting.result()
        gate.set()


def test_a_connection_is_reused_only_if_idle_with_nothing_unread() -> None:
    pool = ConnectionPool[FakeConnection](FakeConnection, max_connections=1)
    with pool.connection(in_a_minute()) as first:
        pass
    with pool.connection(in_a_minute()) as again:
        assert again is first
    first.unread_input = True
    with pool.connection(in_a_minute()) as second:
        assert (first.closed, second.closed) == (True, False)
        second.idle = False
    assert second.closed
    with pool.connection(in_a_minute()) as third:
        assert third not in (first, second)


def test_a_closed_pool_closes_connections_when_released() -> None:
    pool = ConnectionPool[FakeConnection](FakeConnection, max_connections=2)
    idle, used = pool.acquire(in_a_minute()), pool.acquire(in_a_minute())
    pool.release(idle)
    pool.close()
    assert (idle.closed, used.closed) == (True, False)
    pool.release(used)
    assert used.closed
    with pytest.raises(StoreUnavailable, match=r"^the store is closed$"):
        pool.acquire(in_a_minute())


def test_a_pool_opens_at_most_max_connections() -> None:
    opened: list[FakeConnection] = []

    def connect() -> FakeConnection:
        opened.append(FakeConnection())
        return opened[-1]

    pool = ConnectionPool[FakeConnection](connect, max_connections=2)
    connections = [pool.acquire(in_a_minute()) for _ in range(2)]
    with pytest.raises(StoreUnavailable, match=r"^all connections are busy$"):
        pool.acquire(time.monotonic())
    wait_until(lambda: not pool._connecting)
    assert opened == connections


def test_a_connection_opened_too_late_serves_the_next_caller() -> None:
    attempts: list[threading.Thread] = []
    gate = threading.Event()

    def connect() -> FakeConnection:
        attempts.append(threading.current_thread())
        gate.wait(60)
        return FakeConnection()

    pool = ConnectionPool[FakeConnection](connect, max_connections=2)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"^no connection could be made in time$"):
            pool.acquire(time.monotonic())
    gate.set()
    assert not pool.acquire(in_a_minute()).closed
    assert [(thread.name, thread.daemon) for thread in attempts] == [("plants-connect", True)]


def test_reconnecting_backs_off_only_while_a_connection_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plants.stores.pool._RECONNECT_SECONDS", 60.0)
    connections = [FakeConnection()]
    failures: list[Exception] = []

    def connect() -> FakeConnection:
        if connections:
            return connections.pop()
        failures.append(ConnectionRefusedError())
        raise failures[-1]

    pool = ConnectionPool[FakeConnection](connect, max_connections=3)
    connection = pool.acquire(in_a_minute())
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=r"^all connections are busy$"):
            pool.acquire(time.monotonic())
        wait_until(lambda: not pool._connecting)
    assert len(failures) == 1
    connection.idle = False
    pool.release(connection)
    for number in (2, 3):
        with pytest.raises(StoreUnavailable, match=r"^ConnectionRefusedError$"):
            pool.acquire(in_a_minute())
        assert len(failures) == number
