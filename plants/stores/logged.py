"""The log of the outages of stores that do not log them themselves, such as those of other packages."""

import logging
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from plants.stores import Plant, PlantStore, StoreUnavailable

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class LoggedStore(PlantStore):
    """A store that logs the first and the last failure of an outage of another store."""

    def __init__(self, store: PlantStore) -> None:
        self._store = store
        self._lock = Lock()
        self._failure_count = 0  # in this outage
        self._last_failure = ""

    def add(self, plant: Plant) -> None:
        return self._call(lambda: self._store.add(plant))

    def get(self, plant_id: int) -> Plant | None:
        return self._call(lambda: self._store.get(plant_id))

    def check(self) -> None:
        return self._call(self._store.check)

    def close(self) -> None:
        self._store.close()

    def _call(self, method: Callable[[], _T]) -> _T:
        try:
            result = method()
        except StoreUnavailable as error:
            self._record_failure(" ".join(str(error).split()))
            raise
        if self._failure_count:
            self._record_end()
        return result

    def _record_failure(self, reason: str) -> None:
        with self._lock:
            self._failure_count += 1
            self._last_failure = reason
            if self._failure_count == 1:
                _log.warning("the store is unavailable: %s", reason)

    def _record_end(self) -> None:
        with self._lock:
            count, self._failure_count = self._failure_count, 0
            if count:  # No other thread has logged the end.
                _log.warning(
                    "the store is available again after %d failed calls; the last: %s", count, self._last_failure
                )
