"""While a store cannot be used: one caller tries, the others are refused at once, and the log says so in two lines."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from plants.stores import StoreUnavailable

_REST = 0.5  # seconds without a success that make a failure an outage; then, between two attempts
_QUIET = 1.0  # seconds without a refusal, after which an outage is over for the log: one that flickers is one

MEND = "it is not made again, for ids in use would be free: put it back, or restart the service to begin with none"

_log = logging.getLogger(__name__)


class StoreUnusable(StoreUnavailable):
    """What is there is not what the store has made, or it is gone: only an operator can mend it."""


class Outage:
    """Whether a store can be used, as one process sees it."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._next_attempt = self._worked_at = self._refused_at = 0.0
        self._trial = threading.Lock()
        self._count = threading.Lock()
        self._refused = 0

    @contextmanager
    def attempt(self) -> Iterator[bool]:
        """Use the store in this context, which is given whether this is the one who tries for all.

        What fails while others succeed (a row that is locked) is no reason to refuse the others.

        :raises StoreUnavailable: the store is unavailable and somebody else tries, or has tried just now.
        """
        reason = self._reason
        if reason and (self.refuses() or not self._trial.acquire(blocking=False)):
            raise StoreUnavailable(reason)
        try:
            yield bool(reason)
        except StoreUnavailable as error:
            now = time.monotonic()
            if reason or now - self._worked_at > _REST or isinstance(error, StoreUnusable):
                self._reason = str(error)
                self._next_attempt = now + _REST
            raise
        else:
            self._worked_at = time.monotonic()
            if reason:
                self._reason = None
            with self._count:
                if self._refused and self._worked_at - self._refused_at > _QUIET:
                    _log.warning("the store is available again; requests refused meanwhile: %d", self._refused)
                    self._refused = 0
        finally:
            if reason:
                self._trial.release()

    def refuses(self) -> bool:
        """Say whether a use would be refused at once."""
        return bool(self._reason) and (time.monotonic() < self._next_attempt or self._trial.locked())

    def counted(self, error: Exception) -> Exception:
        """Give what a request is told; the first StoreUnavailable begins the outage in the log."""
        if isinstance(error, StoreUnavailable):
            with self._count:
                self._refused += 1
                self._refused_at = time.monotonic()
                if self._refused == 1:
                    _log.warning("the store is unavailable: %s", one_line(error))
        return error


def one_line(error: object) -> str:
    """Give an error's text as a line of the log takes it."""
    return " ".join(str(error).split())[:500]
