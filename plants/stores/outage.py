"""Outages of a store: whether it is down, and a line in the log when an outage begins and one when it ends."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from plants.stores import Plant, PlantStore, StoreUnavailable

FRESH_SECONDS = 0.5  # A check this soon after a success does not call the store.
QUIET_SECONDS = 1.0  # An outage ends after this long without a failure, so a flapping store logs one outage.

_log = logging.getLogger(__name__)


class Outage:
    """The outage of a store, if there is one."""

    def __init__(self) -> None:
        self.reason: str | None = None  #: why the store is down; None if it is not known to be down
        self.is_logged = False  #: whether the start of an outage was logged, but not its end
        self._lock = threading.Lock()
        self._failed_at = 0.0
        self._rejected_requests = 0  # since the start of the outage

    def record_failure(self, reason: str, *, rejected: int = 1) -> None:
        """Count rejected requests; log the first failure as the start of an outage."""
        with self._lock:  # It may be older than gevent's patches, so write to the log, which may block, after this.
            begins = not self.is_logged
            self.is_logged = True
            self._rejected_requests += rejected
            self._failed_at = time.monotonic()
        if begins:
            _log.warning("the store is unavailable: %s", " ".join(reason.split()))

    def record_success(self) -> None:
        """The store is not down; log the end of the outage if the last failure is long ago."""
        self.reason = None
        with self._lock:
            if not self.is_logged or time.monotonic() - self._failed_at <= QUIET_SECONDS:
                return
            self.is_logged = False
            rejected, self._rejected_requests = self._rejected_requests, 0
        _log.warning("the store is available again; requests rejected meanwhile: %d", rejected)


class LoggedStore(PlantStore):
    """Another store, such as that of another package, with a log of its outages. Checks share a call that succeeds."""

    def __init__(self, store: PlantStore) -> None:
        self._store = store
        self._outage = Outage()
        self._checked_at = 0.0

    def add(self, plant: Plant) -> None:
        with self._recording(rejected=1):
            # An asynchronous store returns a coroutine, which the application rejects.
            return self._store.add(plant)

    def get(self, plant_id: int) -> Plant | None:
        return self._store.get(plant_id)

    def check(self) -> None:
        if time.monotonic() > self._checked_at + FRESH_SECONDS:
            with self._recording(rejected=0):
                self._store.check()
            self._checked_at = time.monotonic()

    @contextmanager
    def _recording(self, *, rejected: int) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            self._outage.record_failure(str(error), rejected=rejected)
            raise
        self._outage.record_success()

    def close(self) -> None:
        self._store.close()
