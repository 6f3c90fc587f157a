"""The health of a store, and the log of its outages.

A store is *down* after a commit or a connection failed as a whole, until a later one succeeds. It is *failing* for some
seconds if no plant of a commit was stored, and some could have been. Otherwise it is *up*: a plant that the table
refuses and an id in use say nothing about the store.
"""

import logging
import math
import threading
import time
from collections.abc import Callable

from plants.stores import Plant, PlantStore, StoreUnavailable

FRESH_SECONDS = 0.5  # A check this soon after a success does not ask the store.
FAILING_SECONDS = 5.0  # A load balancer sends no plants to a failing store, so without an end none could succeed.
QUIET_SECONDS = 1.0  # An outage ends after this long without a failure, so a flapping store logs one outage.
REASON_SECONDS = 10.0  # between two lines about the reasons of one outage
NO_RESPONSE = "no response in time"

Outcomes = list[Exception | None]  # For each plant of a commit, why it was not stored, or None.

_log = logging.getLogger(__name__)


class Health:
    """Whether a store is up, failing or down; ``clock`` returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._now = clock
        self.down_reason = ""  #: why the last commit or connection failed as a whole, or an empty string
        self.open = False  #: whether the start of an outage was logged, but not its end
        self.commit_deadline = math.inf  #: when the commit in progress should have ended
        self._last_check = ("", 0.0)  # why the store is failing, or an empty string; until when checks rely on that
        self._lock = threading.Lock()
        self._failed_at = 0.0
        self._logged_reason = ("", 0.0)  # the last one, and when it was logged
        self._rejected_requests = 0  # since the start of the outage

    def raise_if_down(self, *, rejected: int) -> None:
        """Raise StoreUnavailable, and count the rejected requests, if no plant can be added now."""
        reason = self.down_reason
        if not reason and self.commit_deadline < self._now():  # The commit is stuck.
            reason = NO_RESPONSE
        if reason:
            self.record_failure(reason, rejected=rejected)
            raise StoreUnavailable(reason)

    def is_fresh(self) -> bool:
        """Return whether the store succeeded so recently that a check need not ask it.

        :raises StoreUnavailable: the store is failing.
        """
        reason, until = self._last_check
        if self._now() > until:
            return False
        if reason:
            raise StoreUnavailable(reason)
        return True

    def record(self, outcomes: Outcomes) -> str:
        """Record the outcomes of a commit that did not fail as a whole, or of a check if there are none.

        Return why the commit stored no plant although it could have, or an empty string.
        """
        self.down_reason = ""
        if reasons := [str(error) or repr(error) for error in outcomes if isinstance(error, StoreUnavailable)]:
            self.record_failure(reasons[0], rejected=len(reasons))
        now = self._now()
        if reasons and None not in outcomes:
            self._last_check = (reasons[0], now + FAILING_SECONDS)
            return reasons[0]
        was_failing, until = self._last_check
        # A check does not see what only a row fails for.
        if None in outcomes or not (outcomes or (was_failing and now < until)):
            self._last_check = ("", now + FRESH_SECONDS)
            self._log_end(now)
        return ""

    def record_failure(self, reason: str, *, rejected: int) -> None:
        """Count rejected requests; log the start of an outage, and each new reason of it."""
        now = self._now()
        with self._lock:  # It may be older than gevent's patches, so write to the log, which may block, after this.
            logged, logged_at = self._logged_reason
            is_new = not self.open or (reason != logged and now > logged_at + REASON_SECONDS)
            if is_new:
                self._logged_reason = (reason, now)
            self.open = True
            self._rejected_requests += rejected
            self._failed_at = now
        if is_new:
            _log.warning("the store is unavailable: %s", " ".join(reason.split()))

    def _log_end(self, now: float) -> None:
        with self._lock:
            if not self.open or now - self._failed_at <= QUIET_SECONDS:
                return
            self.open = False
            rejected, self._rejected_requests = self._rejected_requests, 0
        _log.warning("the store is available again; requests rejected meanwhile: %d", rejected)


class LoggedStore(PlantStore):
    """A store of another package, for the application, with a log of its outages. Checks share a call that succeeds."""

    def __init__(self, store: PlantStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._health = Health(clock)

    def add(self, plant: Plant) -> None:
        try:
            added: object = self._store.add(plant)
        except StoreUnavailable as error:
            self._health.record([error])
            raise
        self._health.record([None])
        return added  # type: ignore[return-value]  # An asynchronous store returns a coroutine, which begin() rejects.

    def get(self, plant_id: int) -> Plant | None:
        return self._store.get(plant_id)

    def check(self) -> None:
        if self._health.is_fresh():
            return
        try:
            self._store.check()
        except StoreUnavailable as error:
            self._health.record_failure(str(error), rejected=0)
            raise
        self._health.record([])
