"""What those stores share that keep many plants with one commit."""

import abc
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from plants.stores import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.stores.outage import Outage

_MOST_TEXT = 2_000_000  # characters a commit, so that one with the largest plants ends in time

_T = TypeVar("_T")


class PlantRefused(Exception):
    """A plant cannot be kept, while others may be; ``reason`` is what its caller is told."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


Fates = dict[int, PlantIdInUse | StoreUnavailable | PlantRefused]  # Why the plants of these ids are not kept.


class Engine(abc.ABC):
    """What one process has of a store: its connections, and whether they can be used.

    Each method ends at its deadline, a ``time.monotonic()``, and raises StoreUnavailable if it cannot do its work.
    """

    def __init__(self) -> None:
        self.outage: Outage = Outage()

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


class BatchStore(PlantStore):
    """A store that keeps the plants of many calls with one commit.

    The calls run as if every plant were kept whose id no other plant of the batch has. Then all these plants are
    written at once. If all are kept, everything that the calls were told is true; else those calls run again that used
    the id of one that is not, and now ``add`` says what became of their plants.

    No call takes longer than about ``patience``, in seconds. While the store is unavailable one caller each half second
    tries, and the others are told at once.

    :param new_engine: gives what a process needs that uses the store for the first time; nothing is connected yet. It
        takes a byte that all processes share, which is 1 once the store has had its file or its table.
    """

    def __init__(self, new_engine: Callable[[mmap.mmap], Engine], patience: float) -> None:
        self._new_engine = new_engine
        self._patience = patience
        self._thread = _Thread()
        self._engines: dict[int, Engine] = {}
        self._was_made = mmap.mmap(-1, 1)

    def add(self, plant: Plant) -> None:
        batch = self._thread.batch
        if not batch:
            self.together([partial(self.add, plant)])
        elif fate := batch.add(plant):
            raise self._engine().outage.counted(fate.reason if isinstance(fate, PlantRefused) else fate)

    def get(self, plant_id: int) -> Plant | None:
        batch = self._thread.batch
        if batch and (plant := batch.get(plant_id)):
            return plant
        return self._ask(lambda engine, deadline: engine.find(plant_id, deadline))

    def check(self) -> None:
        self._ask(lambda engine, deadline: engine.check(deadline))

    def together(self, calls: Sequence[Callable[[], _T]]) -> list[_T]:
        if self._thread.batch:
            return super().together(calls)
        batch = self._thread.batch = _Batch(self._keep, time.monotonic() + self._patience)
        if self._engine().outage.refuses():
            batch.fates = {}  # Each call is refused at once, and none runs twice.
        results: dict[int, _T] = {}
        try:
            for batch.call, call in enumerate(calls):
                results[batch.call] = call()
            again = batch.keep()
            for batch.call in again:
                results[batch.call] = calls[batch.call]()
        finally:
            self._thread.batch = None
        return list(results.values())

    def prepare(self, *, make: bool = True) -> None:
        if not make:
            self._was_made[0] = 1
        engine = self._new_engine(self._was_made)
        try:
            engine.check(time.monotonic() + self._patience)
        finally:
            engine.close()

    def close(self) -> None:
        self._engine().close()

    def _keep(self, plants: list[Plant]) -> Fates:
        if len(plants) == 1 or sum(len(plant.name) + len(plant.tag or "") for plant in plants) < _MOST_TEXT:
            try:
                return self._use(lambda engine, deadline: engine.keep(plants, deadline))
            except StoreUnavailable as error:
                # Each has its own: an exception that is raised again and again collects its tracebacks.
                return {plant.id: StoreUnavailable(str(error)) for plant in plants}
            except PlantRefused as error:
                if len(plants) == 1:
                    return {plants[0].id: error}
        middle = len(plants) // 2
        return self._keep(plants[:middle]) | self._keep(plants[middle:])

    def _ask(self, work: Callable[[Engine, float], _T]) -> _T:
        try:
            return self._use(work)
        except StoreUnavailable as error:
            self._engine().outage.counted(error)
            raise

    def _use(self, work: Callable[[Engine, float], _T]) -> _T:
        engine = self._engine()
        batch = self._thread.batch
        deadline = batch.deadline if batch else time.monotonic() + self._patience
        with engine.outage.attempt() as for_all:
            if time.monotonic() > deadline:
                raise StoreUnavailable("no time left")
            if for_all:
                engine.check(deadline)
            return work(engine, deadline)

    def _engine(self) -> Engine:
        # A parent's engine stays in the dictionary of its child, unused: its connections and its locks are the
        # parent's, and to close them here would be to close them there.
        pid = os.getpid()
        return self._engines.get(pid) or self._engines.setdefault(pid, self._new_engine(self._was_made))


class _Batch:
    """What calls add together; then, while some of them run again, what became of that."""

    def __init__(self, keep: Callable[[list[Plant]], Fates], deadline: float) -> None:
        self.call = 0
        self.deadline = deadline
        self._keep = keep
        self._added: dict[int, tuple[int, Plant]] = {}  # by its id, each plant and the call that added it
        self._uses: list[tuple[int, int]] = []  # calls, and ids of which they were told something
        self.fates: Fates | None = None  # None while the calls run as if all were kept

    def add(self, plant: Plant) -> PlantIdInUse | StoreUnavailable | PlantRefused | None:
        """Give why the plant is not kept."""
        if self.fates is None:
            self._uses.append((self.call, plant.id))
            if plant.id in self._added:
                return PlantIdInUse(plant.id)
            self._added[plant.id] = self.call, plant
            return None
        fate = self.fates.get(plant.id)
        if self._added.get(plant.id) == (self.call, plant):
            del self._added[plant.id]  # Its call is told once; if it adds it again, the id is in use.
        elif not fate or isinstance(fate, PlantRefused):
            fate = self._keep([plant]).get(plant.id)
        return fate

    def get(self, plant_id: int) -> Plant | None:
        """Give the plant that a call of this batch has added, as long as it seems to be kept."""
        if self.fates is None and plant_id in self._added:
            self._uses.append((self.call, plant_id))
            return self._added[plant_id][1]
        return None

    def keep(self) -> list[int]:
        """Keep what the calls added; give those that were told something of a plant that is not kept."""
        fates = self.fates = self._keep([plant for _, plant in self._added.values()]) if self._added else {}
        return sorted({call for call, plant_id in self._uses if plant_id in fates})


class _Thread(threading.local):
    """The batch that this thread runs, if it does."""

    batch: _Batch | None = None
