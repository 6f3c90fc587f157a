"""A base class for stores that commit plants in batches (group commit)."""

import mmap
import operator
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from plants.stores import INT64_MAX, INT64_MIN, GroupCommitStore, Plant, StoreUnavailable
from plants.stores.breaker import CircuitBreaker
from plants.stores.connections import CREATED, Connections, Outcomes, PlantRejected, process_identity
from plants.stores.memory import fork_safe_lock

_MAX_CHARACTERS = 2_000_000  # per batch, so that a batch of the largest plants commits in time


class _PendingAdd:
    """The result of a plant in a batch."""

    __slots__ = ("_batch", "_deadline", "_index")

    def __init__(self, batch: "_Batch", index: int, deadline: float) -> None:
        self._batch = batch
        self._index = index
        self._deadline = deadline

    def result(self) -> None:
        batch = self._batch
        try:
            error = (batch.outcomes or batch.commit(self._deadline))[self._index]
        except StoreUnavailable as unavailable:
            error = unavailable
        if error:
            batch.breaker.record_failure(error)
            try:
                raise error
            finally:
                del batch, error, self  # Otherwise, the exception and this frame would refer to each other.


class _Batch:
    """Plants of one commit. The thread that first asks for a result commits for the others (leader/follower)."""

    def __init__(self, breaker: CircuitBreaker, commit: Callable[["_Batch", float], Outcomes]) -> None:
        self.breaker = breaker
        self.plants: list[Plant] = []
        self.characters = 0
        self.outcomes: Outcomes = []  # empty until the commit
        self._commit = commit
        self._leader_lock = threading.Lock()

    def commit(self, deadline: float) -> Outcomes:
        """Return the outcomes once this thread or another one has committed the batch.

        :raises StoreUnavailable: the leader does not finish in time, or is retrying in an outage.
        """
        if not self._leader_lock.acquire(blocking=False):
            self.breaker.raise_if_open()
            if not self._leader_lock.acquire(timeout=max(0, deadline - time.monotonic())):
                raise StoreUnavailable("no response in time")
        try:
            return self.outcomes or self._commit(self, deadline)
        finally:
            self._leader_lock.release()


class BatchStore(GroupCommitStore):
    """Base class of stores that commit the plants of concurrent calls in one transaction.

    :param new_connections: returns the ``Connections`` of a process, which connect at their first use.
    :param timeout: about how long a call waits, in seconds, before it raises StoreUnavailable.
    """

    max_batch = 256
    multiprocess = True

    def __init__(self, new_connections: Callable[[float, mmap.mmap], Connections], timeout: float) -> None:
        # A byte that this process shares with its forks; plants.stores.connections names its values.
        self._shared_state = mmap.mmap(-1, 1)
        self._new_connections = partial(new_connections, timeout, self._shared_state)
        self._timeout = timeout
        self._inherited_connections: list[Connections] = []
        self._start()

    def _start(self) -> None:
        self._connections = self._new_connections()
        self._breaker = CircuitBreaker(self._connections.check)
        self._lock = threading.Lock()
        self._full_batches: set[_Batch] = set()  # full, but no commit has collected their plants yet
        self._batch = self._new_batch()
        self._process = process_identity()

    def _check_fork(self) -> None:
        """In a forked child, replace the connections and the locks."""
        with fork_safe_lock:
            if self._process != process_identity():
                # Keep a reference, because garbage collection would close the parent's connections.
                self._inherited_connections.append(self._connections)
                self._start()

    def submit(self, plant: Plant) -> _PendingAdd:
        self._check_fork()
        deadline = time.monotonic() + self._timeout
        # If a member has the wrong type, raise a TypeError now. In a batch, the plant would make all plants fail.
        operator.index(plant.id)
        characters = str.__len__(plant.name) + str.__len__(plant.tag or "")
        with self._lock:
            batch = self._batch
            if len(batch.plants) >= self.max_batch or batch.characters >= _MAX_CHARACTERS:
                self._full_batches.add(batch)
                batch = self._batch = self._new_batch()
            index = len(batch.plants)
            batch.plants.append(plant)
            batch.characters += characters
        return _PendingAdd(batch, index, deadline)

    def get(self, plant_id: int) -> Plant | None:
        self._check_fork()
        deadline = time.monotonic() + self._timeout
        return self._connections.find(plant_id, deadline) if INT64_MIN <= plant_id <= INT64_MAX else None

    def check(self) -> None:
        self._check_fork()
        self._breaker.probe(time.monotonic() + self._timeout)

    def prepare(self, *, create: bool = True) -> None:
        if not create:
            self._shared_state[0] = CREATED
        with closing(self._new_connections()) as connections:
            connections.check(time.monotonic() + self._timeout)

    def close(self) -> None:
        self._check_fork()
        deadline = time.monotonic() + self._timeout
        with self._lock:
            batches = [*self._full_batches, self._batch]
        for batch in batches:
            if batch.plants:
                with suppress(StoreUnavailable):
                    batch.commit(deadline)
        self._connections.close()

    def _new_batch(self) -> _Batch:
        return _Batch(self._breaker, self._commit)

    def _commit(self, batch: _Batch, deadline: float) -> Outcomes:
        def collect() -> list[Plant]:
            with self._lock:
                self._full_batches.discard(batch)
                if batch is self._batch:
                    self._batch = self._new_batch()
            return batch.plants

        self._check_fork()  # The plant may have been submitted before a fork.
        outcomes: Outcomes = []
        try:
            outcomes = self._insert(collect, deadline)
        finally:
            # If the leader is interrupted, for example by Ctrl-C, no follower is left waiting.
            batch.outcomes = outcomes or [StoreUnavailable("the commit was interrupted") for _ in collect()]
            batch.plants = []
        return outcomes

    def _insert(self, collect: Callable[[], list[Plant]], deadline: float) -> Outcomes:
        try:
            outcomes = self._breaker.run(partial(self._connections.insert, collect), deadline)
        except StoreUnavailable as error:
            # Each caller gets its own exception, because one that is raised repeatedly collects tracebacks.
            return [type(error)(*error.args) for _ in collect()]
        except PlantRejected as error:
            plants = collect()
            if len(plants) == 1:
                return [error.reason]
            # Bisect the batch, so that only the rejected plants fail.
            middle = len(plants) // 2
            first, second = plants[:middle], plants[middle:]
            return self._insert(lambda: first, deadline) + self._insert(lambda: second, deadline)
        if None in outcomes:
            self._breaker.record_write()
        return outcomes
