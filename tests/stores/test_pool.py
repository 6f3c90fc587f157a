"""A connection pool that cannot connect."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Never

import pytest

from plants.stores import StoreUnavailable
from plants.stores.pool import ConnectionPool, PoolConnection


def test_an_exception_while_connecting_is_unavailable() -> None:
    def connect() -> Never:
        raise MemoryError

    pool = ConnectionPool[PoolConnection](connect, max_connections=1)
    with pytest.raises(StoreUnavailable, match=r"^MemoryError$"):
        pool.acquire(time.monotonic() + 60)


def test_closing_a_pool_fails_the_callers_that_wait() -> None:
    connecting, gate = threading.Event(), threading.Event()

    def connect() -> Never:
        connecting.set()
        gate.wait(60)
        raise MemoryError

    pool = ConnectionPool[PoolConnection](connect, max_connections=1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.acquire, time.monotonic() + 60)
        assert connecting.wait(60)
        pool.close()
        with pytest.raises(StoreUnavailable, match=r"^the store is closed$"):
            waiting.result()
        gate.set()
