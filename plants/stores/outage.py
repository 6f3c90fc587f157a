"""A circuit breaker: during an outage of the store one caller retries while the others fail fast."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from plants.stores import StoreUnavailable, StoreUnusable

RETRY_SECONDS = 0.5  # between attempts; a failure opens the breaker if no call has succeeded for this long
FRESH_SECONDS = 0.5  # A probe this soon after a successful write does not call the store.
QUIET_SECONDS = 1.0  # An outage ends after this long without a failure, so a flapping store logs one outage.

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class CircuitBreaker:
    """A circuit breaker, which also logs the start and the end of an outage.

    :param check: raises StoreUnavailable if a plant cannot be added.
    """

    def __init__(self, check: Callable[[float], None]) -> None:
        self._check = check
        self._probe_lock = threading.Lock()
        self._lock = threading.Lock()
        self._reason: str | None = None  # why the store is unavailable
        self._next_attempt_at = self._succeeded_at = self._written_at = self._failed_at = 0.0
        self._outage_logged = False  # The start of an outage has been logged, but not its end.
        self._rejected_requests = 0  # in this outage

    def run(self, work: Callable[[float], _T], deadline: float) -> _T:
        """Return what the work returns. In an outage, check the store first.

        If other calls succeed, a failure (for example, because a row is locked) does not open the breaker.

        :raises StoreUnavailable: the work raised it, the breaker is open, or there is no time left.
        """
        reason = self._reason
        if reason:
            with self._lock:
                self.raise_if_open()
                self._next_attempt_at = deadline
        if time.monotonic() > deadline:
            raise StoreUnavailable("no time left")
        try:
            if reason:
                self._check(deadline)
                self._reason = None
            result = work(deadline)
        except StoreUnavailable as error:
            now = time.monotonic()
            is_outage = reason or work == self._check or isinstance(error, StoreUnusable)
            if is_outage or now - self._succeeded_at > RETRY_SECONDS:
                self._reason = str(error)
                self._next_attempt_at = now + RETRY_SECONDS
            raise
        self._succeeded_at = time.monotonic()
        with self._lock:
            if self._outage_logged and self._succeeded_at - self._failed_at > QUIET_SECONDS:
                _log.warning("the store is available again; requests rejected meanwhile: %d", self._rejected_requests)
                self._outage_logged = False
                self._rejected_requests = 0
        return result

    def probe(self, deadline: float) -> None:
        """Check the store unless a plant has just been added or another caller has just checked it.

        :raises StoreUnavailable: a plant cannot be added.
        """
        self.raise_if_open()
        if not self._probe_lock.acquire(timeout=max(0, deadline - time.monotonic())):
            raise StoreUnavailable("no response in time")
        try:
            if time.monotonic() - self._written_at > FRESH_SECONDS:
                self.run(self._check, deadline)
                self.record_write()
        except StoreUnavailable as error:
            self.record_failure(error, rejected=0)
            raise
        finally:
            self._probe_lock.release()

    def raise_if_open(self) -> None:
        """Reject a call during an outage.

        :raises StoreUnavailable: the breaker is open; the message is that of the last failure.
        """
        reason = self._reason
        if reason and time.monotonic() < self._next_attempt_at:
            raise StoreUnavailable(reason)

    def record_write(self) -> None:
        """Note that the store has just accepted a write."""
        self._written_at = time.monotonic()

    def record_failure(self, error: Exception, *, rejected: int = 1) -> None:
        """Count rejected requests; log the first failure as the start of an outage, even if the breaker is closed."""
        if not isinstance(error, StoreUnavailable):
            return
        with self._lock:
            self._failed_at = time.monotonic()
            self._written_at = 0.0  # The next probe checks the store.
            self._rejected_requests += rejected
            if not self._outage_logged:
                self._outage_logged = True
                _log.warning("the store is unavailable: %s", " ".join(str(error).split()))
