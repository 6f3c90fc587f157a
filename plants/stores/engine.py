"""What one process has of a store. In an outage one caller tries, the others are refused, and the log has two lines."""

import abc
import logging
import mmap
import threading
import time
from collections.abc import Callable
from typing import Self, TypeVar

from plants.stores import Plant, StoreUnavailable

_REST = 0.5  # seconds without a success that make a failure an outage; then, between two attempts
_QUIET = 1.0  # seconds without a refusal, after which an outage is over for the log: one that flickers is one

MEND = "it is not made again, for ids in use would be free: put it back, or restart the service to begin with none"

_T = TypeVar("_T")

Fates = dict[int, Exception]  # Why the plants of these ids are not kept.

_log = logging.getLogger(__name__)


class StoreUnusable(StoreUnavailable):
    """What is there is not what the store has made, or it is gone: only an operator can mend it."""


class PlantRefused(Exception):
    """A plant cannot be kept, while others may be; ``reason`` is what its caller is told."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason


class Engine(abc.ABC):
    """The connections of one process to a store, and whether they can be used.

    A method ends at its deadline, a ``time.monotonic()``, and raises StoreUnavailable if it cannot do its work.

    :param was_made: a byte that all processes share, which is not 0 once the store has had its file or its table.
    """

    def __init__(self, patience: float, was_made: mmap.mmap) -> None:
        self._patience = patience
        self._was_made = was_made
        self._is_closed = False
        self._reason: str | None = None  # why the store is unavailable
        self._next_attempt = self._worked_at = self._refused_at = 0.0
        self._refused = 0
        self._lock = threading.Lock()

    @abc.abstractmethod
    def keep(self, plants: list[Plant], deadline: float) -> Fates:
        """Keep plants of different ids; give why some are not.

        :raises StoreUnavailable: it is not known which are kept.
        :raises PlantRefused: none is kept.
        """

    @abc.abstractmethod
    def find(self, plant_id: int, deadline: float) -> Plant | None:
        """Give the plant of this id, or None."""

    @abc.abstractmethod
    def check(self, deadline: float) -> None:
        """Return if plants can be written now, and the table has the store's shape."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finish what has begun, and give back the connections for good."""

    def use(self, work: Callable[[Self, float], _T], deadline: float) -> _T:
        """Give what the work gives. In an outage check the store first, for all.

        What fails while others succeed (a row that is locked) is no reason to refuse the others.

        :raises StoreUnavailable: the work raised it, or the store is unavailable and another caller tries now.
        """
        if time.monotonic() > deadline:
            raise StoreUnavailable("no time left")
        reason = self._reason
        if reason:
            with self._lock:
                if self.refuses():
                    raise StoreUnavailable(reason)
                self._next_attempt = deadline
        try:
            if reason:
                self.check(deadline)
                self._reason = None
            result = work(self, deadline)
        except StoreUnavailable as error:
            now = time.monotonic()
            if reason or now - self._worked_at > _REST or isinstance(error, StoreUnusable):
                self._reason = str(error)
                self._next_attempt = now + _REST
            raise
        self._worked_at = time.monotonic()
        with self._lock:
            if self._refused and self._worked_at - self._refused_at > _QUIET:
                _log.warning("the store is available again; requests refused meanwhile: %d", self._refused)
                self._refused = 0
        return result

    def refuses(self) -> bool:
        """Say whether a use would be refused at once."""
        return bool(self._reason) and time.monotonic() < self._next_attempt

    def counted(self, error: Exception) -> Exception:
        """Give what a request is told; the first StoreUnavailable begins the outage in the log."""
        if isinstance(error, StoreUnavailable):
            with self._lock:
                self._refused += 1
                self._refused_at = time.monotonic()
                if self._refused == 1:
                    line = " ".join(str(error).split())
                    _log.warning("the store is unavailable: %s", line[:500])
        return error
