"""A base class of stores that commit the plants of concurrent calls in one transaction (group commit).

The store has the connections: one for the committer, which no other thread uses, and one for each ``get``. The
committer has the queue and the batches, and the store's health decides whether a plant is queued at all.
"""

import abc
import mmap
import os
import queue
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from types import NoneType
from typing import Any, Final

from plants.stores import COLUMNS, INT64_MAX, INT64_MIN, OwnerProcess, Plant, PlantStore, StoreUnavailable, Wait
from plants.stores.committer import CLOSED, Committer
from plants.stores.health import NO_RESPONSE, Health, Outcomes

GRACE_SECONDS = 0.8  # Connecting to a server whose first host is silent takes 2 s.
_TYPES = tuple((column.type, NoneType) if column.nullable else column.type for column in COLUMNS)


class GroupCommitStore(PlantStore):
    """A store that commits the plants of several calls at once, in a thread of its own.

    A connection is any object with a method ``close``, which is called after a commit that stored no plant although it
    could have.

    :param timeout: how long a commit may take, in seconds. A plant waits 0.8 s longer for its commit to begin,
        because connecting may take that long. So no method waits for more than twice this time and 0.8 s.
    """

    worker_threads = 0
    multiprocess = True

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._had_table = mmap.mmap(-1, 1)  # one byte, which all processes share that are forked from this one
        self._closed = False
        self._owner = OwnerProcess()
        self._health = Health()
        self._connection: Any = None  # the committer's
        self._committer: Committer | None = None  # from the first use on

    @abc.abstractmethod
    def _connect(self) -> Any:
        """Open a connection, and check the table.

        Create a missing file or table only while ``_may_create`` is true, and set ``_had_table[0]`` to 1 afterwards.
        """

    @abc.abstractmethod
    def _insert(self, connection: Any, collect: Callable[[], list[Plant]]) -> Outcomes:
        """Store plants in one transaction; return each outcome. Of plants with the same id, only the first is stored.

        If there are none, fail as an insert would, as far as that can be seen without writing; but write if the store
        is down, because only a write shows that it can be used again.

        :param collect: returns the plants. Call it only when the transaction can begin, because plants join the batch
            until that call. Call it once.
        :raises StoreUnavailable: no plant is stored, or it is not known which.
        """

    @abc.abstractmethod
    def _find(self, connection: Any, plant_id: int) -> Plant | None:
        """Return the plant with this id, or None."""

    @property
    def _may_create(self) -> bool:
        """Whether no process of the service has ever had the table. If one had, its ids must not be free again."""
        return not self._had_table[0]

    def add(self, plant: Plant) -> None:
        if not all(map(isinstance, plant, _TYPES)):  # In a batch, the plant could make all plants fail.
            raise TypeError("a member of a plant has a wrong type")
        self._wait_for(self._begin(plant))

    def check(self) -> None:
        self._wait_for(self._begin(None))

    def begin(self, plant: Plant | None) -> Wait | None:
        # A subclass may override these, and a tracing agent may replace them on the object or on any of its classes, at
        # any time. Then they may block.
        name = "check" if plant is None else "add"
        if getattr(type(self), name) is _OWN[name] and name not in vars(self):
            return self._begin(plant)
        call = super().begin
        return lambda done, key: threading.Thread(
            target=lambda: done([(key, _error_of(call, plant))]), name="plants.stores", daemon=True
        ).start()

    def _begin(self, plant: Plant | None) -> Wait | None:
        """Raise what is known, or return the function that queues the plant or the check."""
        self._owner.check()
        if self._closed:
            raise StoreUnavailable(CLOSED)
        self._health.raise_if_down(rejected=1 if plant else 0)
        if not plant and self._health.is_fresh():
            return None
        return partial((self._committer or self._start_committer()).submit, plant)

    def _start_committer(self) -> Committer:
        # Make the lock at the first use, because gevent may have patched it since the store was made. If calls compete,
        # they get the same lock, because setdefault() is atomic.
        with vars(self).setdefault("_start_lock", threading.Lock()):
            self._committer = self._committer or Committer(
                self._commit, self._drop_connection, self._health, self.timeout + GRACE_SECONDS
            )
            return self._committer

    def _wait_for(self, wait: Wait | None) -> None:
        if not wait:
            return
        outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()  # Look it up now, because of gevent.
        wait(outcomes.put, None)
        try:
            errors = [error for _, error in outcomes.get(timeout=2 * self.timeout + GRACE_SECONDS) if error]
        except queue.Empty:
            raise StoreUnavailable(NO_RESPONSE) from None
        if errors:
            raise errors.pop()  # Without pop(), the exception and this frame would refer to each other.

    def _commit(self, collect: Callable[[], list[Plant]]) -> Outcomes:
        self._connection = self._connection or self._connect()
        return self._insert(self._connection, collect)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def get(self, plant_id: int) -> Plant | None:
        self._owner.check()
        if self._closed:
            raise StoreUnavailable(CLOSED)
        if not INT64_MIN <= plant_id <= INT64_MAX:
            return None
        with closing(self._connect()) as connection:
            return self._find(connection, plant_id)

    def prepare(self) -> None:
        with closing(self._connect()) as connection:
            self._insert(connection, list)

    def close(self) -> None:
        if self._owner.pid not in {0, os.getpid()}:
            return  # What this process has inherited belongs to its parent.
        self._closed = True
        if self._committer:
            self._committer.close(self.timeout)


_OWN: Final = {"add": GroupCommitStore.add, "check": GroupCommitStore.check}


def _error_of(call: Callable[[Any], object], plant: Plant | None) -> Any:
    try:
        call(plant)
    except BaseException as error:
        return error
    return None
