"""A base class of stores that commit the plants of concurrent calls in one transaction (group commit).

``submit`` appends a plant to the current batch and returns at once. The thread that first asks for the result of one
of the batch's plants is its leader: it waits for a connection, collects the plants that have joined meanwhile, commits
them, and records an outcome for each. The other threads are followers: they wait for the leader until their deadline.
A batch takes no further plants once it is collected or full. Several batches may commit at the same time.
"""

import abc
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import NoneType
from typing import Any

from plants.stores import (
    COLUMNS,
    INT64_MAX,
    INT64_MIN,
    GroupCommitStore,
    OwnerProcess,
    Plant,
    PlantIdInUse,
    PlantRefused,
    PlantStoreError,
    StoreUnavailable,
)
from plants.stores.outage import CircuitBreaker

_MAX_CHARACTERS = 2_000_000  # per batch, so that a batch of the largest plants commits in time
_TYPES = tuple((column.type, NoneType) if column.nullable else column.type for column in COLUMNS)
_TEXTS = tuple(index for index, column in enumerate(COLUMNS) if column.type is str)
_SAMPLE = Plant._make(None if column.nullable else column.type(1) for column in COLUMNS)

Outcomes = list[Exception | None]  # For each plant, why it was not stored, or None.


class PlantRejected(Exception):
    """One plant made the whole transaction fail.

    :param reason: the error for that plant.
    :param may_be_stored: whether the others may nevertheless be stored; otherwise they are not.
    """

    def __init__(self, reason: Exception, *, may_be_stored: bool = False) -> None:
        self.reason = reason
        self.may_be_stored = may_be_stored


class _Batch:
    """Plants of one commit."""

    def __init__(self) -> None:
        self.plants: list[Plant] = []
        self.characters = 0
        self.outcomes: Outcomes = []  # empty until the commit
        self.leader_lock = threading.Lock()


class BatchStore(GroupCommitStore):
    """Base class of the stores with group commit.

    A deadline is a ``time.monotonic()`` value, by which a method returns or raises StoreUnavailable.

    :param timeout: about how long a call waits, in seconds, before it raises StoreUnavailable.
    """

    max_batch = 256
    multiprocess = True

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._may_create = True  # until this process or, before a fork, its parent has had the file or the table
        self._closed = False
        self._owner = OwnerProcess()
        self._breaker = CircuitBreaker(self._check)
        self._failure: Exception | None = None  # of the last batch of which no plant was stored, until one is
        self._last_stored = _SAMPLE  # The table may refuse the sample.
        self._lock = threading.Lock()  # guards the batches
        self._uncollected_batches = [_Batch()]  # Only the last one takes plants.

    @abc.abstractmethod
    def _insert(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        """Store plants in one transaction; return each outcome. Of plants with the same id, only the first is stored.

        :param collect: returns the plants. Call it only when a connection is ready, because plants join the batch
            until the first call. Later calls return the same plants.
        :raises StoreUnavailable: it is not known which plants are stored.
        :raises PlantRejected: the plants should be added again, in smaller batches.
        """

    @abc.abstractmethod
    def _find(self, plant_id: int, deadline: float) -> Plant | None:
        """Return the plant with this id, or None."""

    @abc.abstractmethod
    def _check(self, deadline: float) -> None:
        """Raise StoreUnavailable if plants cannot be added now, or if the table could lose a plant.

        Create what is missing if ``_may_create``.
        """

    @abc.abstractmethod
    def _try_insert(self, plant: Plant, deadline: float) -> None:
        """Insert a plant, and roll back; raise a PlantStoreError if that fails."""

    @abc.abstractmethod
    def _disconnect(self, deadline: float) -> None:
        """Close the connections, each after the transaction that it is running."""

    def submit(self, plant: Plant) -> Callable[[], None]:
        self._owner.check()
        deadline = time.monotonic() + self._timeout
        characters = _count_characters(plant)
        with self._lock:
            batch = self._uncollected_batches[-1]
            if len(batch.plants) >= self.max_batch or batch.characters >= _MAX_CHARACTERS:
                batch = _Batch()
                self._uncollected_batches.append(batch)
            index = len(batch.plants)
            batch.plants.append(plant)
            batch.characters += characters
        return partial(self._result, batch, index, deadline)

    def get(self, plant_id: int) -> Plant | None:
        self._owner.check()
        deadline = time.monotonic() + self._timeout
        return self._find(plant_id, deadline) if INT64_MIN <= plant_id <= INT64_MAX else None

    def check(self) -> None:
        self._owner.check()
        deadline = time.monotonic() + self._timeout
        self._breaker.probe(deadline)
        if failure := self._failure:
            for sample in (_SAMPLE, self._last_stored):
                with suppress(PlantStoreError):
                    self._try_insert(sample._replace(id=random.getrandbits(62)), deadline)
                    self._failure = None
                    return
            raise StoreUnavailable(f"no plant is stored: {failure}")

    def prepare(self, *, create: bool = True) -> None:
        self._owner.check(claim=False)
        self._may_create = self._may_create and create
        deadline = time.monotonic() + self._timeout
        try:
            self._check(deadline)
        finally:
            self._disconnect(deadline)

    def close(self) -> None:
        if self._owner.pid not in {0, os.getpid()}:
            return  # What this process has inherited belongs to its parent.
        deadline = time.monotonic() + self._timeout
        with self._lock:
            batches = self._uncollected_batches.copy()
        for batch in batches:
            if batch.plants:
                with suppress(StoreUnavailable):
                    self._await_commit(batch, deadline)
        self._closed = True
        self._disconnect(deadline)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _result(self, batch: _Batch, index: int, deadline: float) -> None:
        """Return once this plant of the batch is stored, or raise its error."""
        try:
            error = (batch.outcomes or self._await_commit(batch, deadline))[index]
        except StoreUnavailable as unavailable:
            error = unavailable
        if error:
            if isinstance(error, StoreUnavailable):
                self._breaker.record_failure(error)
            try:
                raise error
            finally:
                del error, batch  # Otherwise, the exception and this frame would refer to each other.

    def _await_commit(self, batch: _Batch, deadline: float) -> Outcomes:
        """Return the outcomes once this thread, the leader, or another one has committed the batch.

        :raises StoreUnavailable: the leader does not finish in time, or is retrying in an outage.
        """
        if not batch.leader_lock.acquire(blocking=False):
            self._breaker.raise_if_open()
            if not batch.leader_lock.acquire(timeout=max(0, deadline - time.monotonic())):
                raise StoreUnavailable("no response in time")
        try:
            return batch.outcomes or self._commit(batch, deadline)
        finally:
            batch.leader_lock.release()

    def _commit(self, batch: _Batch, deadline: float) -> Outcomes:
        def collect() -> list[Plant]:
            with self._lock:
                if batch in self._uncollected_batches:
                    self._uncollected_batches.remove(batch)
                    if not self._uncollected_batches:
                        self._uncollected_batches.append(_Batch())
            return batch.plants

        self._owner.check()  # The plant may have been submitted before a fork.
        outcomes: Outcomes = []
        try:
            outcomes = self._insert_or_bisect(collect, deadline)
        finally:
            # If the leader is interrupted, for example by Ctrl-C, no follower is left waiting.
            batch.outcomes = outcomes or [StoreUnavailable("the commit was interrupted") for _ in collect()]
            plants, batch.plants = batch.plants, []
        if None in outcomes:
            self._failure = None
            self._last_stored = plants[outcomes.index(None)]
            self._breaker.written_at = time.monotonic()
        else:
            failures = (each for each in outcomes if isinstance(each, PlantRefused | StoreUnavailable))
            self._failure = next(failures, self._failure)
        return outcomes

    def _insert_or_bisect(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        try:
            return self._breaker.run(partial(self._insert, collect), deadline)
        except StoreUnavailable as error:
            # Each caller gets its own exception, because one that is raised repeatedly collects tracebacks.
            return [type(error)(*error.args) for _ in collect()]
        except PlantRejected as error:
            plants = collect()
            if len(plants) == 1:
                return [error.reason]
            # Bisect the batch, so that only the rejected plants fail.
            middle = len(plants) // 2
            outcomes: Outcomes = []
            for half in (plants[:middle], plants[middle:]):
                outcomes += self._insert_or_bisect(half.copy, deadline)
            if error.may_be_stored:
                unknown = "the id is in use, perhaps by this plant"
                outcomes = [StoreUnavailable(unknown) if isinstance(each, PlantIdInUse) else each for each in outcomes]
            return outcomes


def _count_characters(plant: Plant) -> int:
    # If a member has the wrong type, raise now. In a batch, the plant could make all plants fail.
    if not all(map(isinstance, plant, _TYPES)):
        raise TypeError("a member of a plant has a wrong type")
    members: tuple[Any, ...] = plant
    characters = 0
    for index in _TEXTS:
        characters += len(members[index] or "")
    return characters
