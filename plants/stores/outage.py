"""Outages of a store: their log, and a circuit breaker, so that one caller retries while the others fail fast."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from plants.stores import Plant, PlantStore, StoreUnavailable

RETRY_SECONDS = 0.5  # The store is down for this long after a failed attempt.
FRESH_SECONDS = 0.5  # A probe this soon after a successful write does not call the store.
_CHECK_SECONDS = 2.0  # how long a probe waits for another caller's check
QUIET_SECONDS = 1.0  # An outage ends after this long without a failure, so a flapping store logs one outage.

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class CircuitBreaker:
    """A circuit breaker, and the log of its store's outages: a line when one starts, and one when it ends.

    A failure starts an outage in the log even if it does not open the breaker.

    :param check: raises StoreUnavailable if a plant cannot be added.
    """

    def __init__(self, check: Callable[[float], None]) -> None:
        self.written_at = 0.0  #: when the store last accepted a write
        self._check = check
        self._lock = threading.Lock()
        self._probe_lock = threading.Lock()
        self._reason: str | None = None  # why the store is down
        self._down_until = 0.0
        self._failed_at = 0.0
        self._rejected_requests: int | None = None  # in the outage whose start has been logged

    def record_failure(self, error: StoreUnavailable, *, rejected: int = 1) -> None:
        """Count rejected requests; log the first failure as the start of an outage."""
        with self._lock:
            self._failed_at = time.monotonic()
            if self._rejected_requests is None:
                self._rejected_requests = 0
                _log.warning("the store is unavailable: %s", " ".join(str(error).split()))
            self._rejected_requests += rejected

    def record_success(self) -> None:
        """Log the end of the outage if the last failure is long ago."""
        if self._rejected_requests is None:
            return
        with self._lock:
            if self._rejected_requests is not None and time.monotonic() - self._failed_at > QUIET_SECONDS:
                _log.warning("the store is available again; requests rejected meanwhile: %d", self._rejected_requests)
                self._rejected_requests = None

    def run(self, work: Callable[[float], _T], deadline: float) -> _T:
        """Return what the work returns. If the store is down, check it first.

        A failure does not open the breaker if another call has written meanwhile: a row may be locked, for example.

        :raises StoreUnavailable: the work raised it, the store is down, or there is no time left.
        """
        began = time.monotonic()
        if began > deadline:
            raise StoreUnavailable("no time left")
        reason = self._reason
        if reason:
            with self._lock:
                self.raise_if_open()
                self._down_until = deadline  # Until this attempt ends, all others fail at once.
        try:
            if reason:
                self._check(deadline)
                self._reason = None
            result = work(deadline)
        except StoreUnavailable as error:
            if reason or self.written_at <= began:
                self._down_until = time.monotonic() + RETRY_SECONDS
                self._reason = str(error)
            raise
        self.record_success()
        return result

    def probe(self, deadline: float) -> None:
        """Check the store unless a plant has just been added or another caller has just checked it.

        :raises StoreUnavailable: a plant cannot be added.
        """
        self.raise_if_open()
        if not self._probe_lock.acquire(timeout=max(0, deadline - time.monotonic())):
            raise StoreUnavailable("no response in time")
        try:
            if self.written_at <= max(self._failed_at, time.monotonic() - FRESH_SECONDS):
                self.run(self._check, deadline)
                self.written_at = time.monotonic()
        except StoreUnavailable as error:
            self.record_failure(error, rejected=0)
            raise
        finally:
            self._probe_lock.release()

    def raise_if_open(self) -> None:
        """Reject a call during an outage.

        :raises StoreUnavailable: the store is down; the message is that of the last failure.
        """
        reason = self._reason
        if reason and time.monotonic() < self._down_until:
            raise StoreUnavailable(reason)


class LoggedStore(PlantStore):
    """Another store, such as that of another package, with a log of its outages. Probes share its check."""

    def __init__(self, store: PlantStore) -> None:
        self._store = store
        self._breaker = CircuitBreaker(self._check)

    def add(self, plant: Plant) -> None:
        try:
            # An asynchronous store returns a coroutine, which the application rejects.
            added: object = self._store.add(plant)
        except StoreUnavailable as error:
            self._breaker.record_failure(error)
            raise
        self._breaker.record_success()
        return added  # type: ignore[return-value]  # None, unless the store is not as declared

    def get(self, plant_id: int) -> Plant | None:
        return self._store.get(plant_id)

    def check(self) -> None:
        self._breaker.probe(time.monotonic() + _CHECK_SECONDS)

    def _check(self, _deadline: float) -> None:
        checked: object = self._store.check()
        if checked is not None:  # An asynchronous store returns a coroutine, and has checked nothing.
            raise TypeError(f"check() of the store returned {type(checked).__name__}, not None")

    def close(self) -> None:
        self._store.close()
