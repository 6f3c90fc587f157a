"""What those stores share that keep many plants with one commit."""

import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from plants.stores import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.stores.engine import Engine, Fates, PlantRefused

_MOST_TEXT = 2_000_000  # characters a commit, so that one with the largest plants ends in time

_T = TypeVar("_T")


class BatchStore(PlantStore):
    """A store that keeps the plants of many calls with one commit.

    The calls run as if every plant were kept whose id no other plant of the batch has. Then all these plants are
    written at once. If all are kept, everything that the calls were told is true; else those calls run again that used
    the id of one that is not, and now ``add`` says what became of their plants.

    :param new_engine: gives what a process needs that uses the store for the first time; nothing is connected yet.
    :param patience: how many seconds a call takes at most, about.
    """

    max_batch = 256
    multiprocess = True

    def __init__(self, new_engine: Callable[[float, mmap.mmap], Engine], patience: float) -> None:
        self._was_made = mmap.mmap(-1, 1)
        self._new_engine = partial(new_engine, patience, self._was_made)
        self._patience = patience
        self._engines: dict[int, Engine] = {}
        self._thread = _Thread()

    def add(self, plant: Plant) -> None:
        if fate := self._fate_of(plant):
            raise self._engine().counted(fate)

    def get(self, plant_id: int) -> Plant | None:
        batch = self._thread.batch
        if batch and batch.fates is None and plant_id in batch.added:
            batch.uses.append((batch.call, plant_id))
            return batch.added[plant_id][1]
        return self._ask(lambda engine, deadline: engine.find(plant_id, deadline))

    def check(self) -> None:
        self._ask(lambda engine, deadline: engine.check(deadline))

    def together(self, calls: Sequence[Callable[[], _T]]) -> list[_T]:
        if self._thread.batch:
            return super().together(calls)
        batch = self._thread.batch = _Batch(time.monotonic() + self._patience)
        if self._engine().refuses():
            batch.fates = {}  # Each call is refused at once, and none runs twice.
        results: list[_T] = []
        try:
            for batch.call, call in enumerate(calls):
                results.append(call())
            if batch.added:
                fates = batch.fates = self._keep([plant for _, plant in batch.added.values()])
                again = sorted({call for call, plant_id in batch.uses if plant_id in fates})
                for batch.call in again:
                    results[batch.call] = calls[batch.call]()
        finally:
            del self._thread.batch
        return results

    def prepare(self, *, make: bool = True) -> None:
        if not make:
            self._was_made[0] = 1
        with closing(self._new_engine()) as engine:
            engine.check(time.monotonic() + self._patience)

    def close(self) -> None:
        self._engine().close()

    def _fate_of(self, plant: Plant) -> Exception | None:
        """Say why a plant that is added is not kept."""
        batch = self._thread.batch
        if batch:
            own = batch.call, plant
            if batch.fates is None:
                batch.uses.append((batch.call, plant.id))
                return None if batch.added.setdefault(plant.id, own) is own else PlantIdInUse(plant.id)
            fate = batch.fates.get(plant.id)
            if isinstance(fate, PlantIdInUse) or batch.added.get(plant.id) == own:
                batch.added.pop(plant.id, None)  # A call is told once; if it adds its plant again, the id is in use.
                return fate
        return self._keep([plant]).get(plant.id)

    def _keep(self, plants: list[Plant]) -> Fates:
        if len(plants) == 1 or sum(len(plant.name) + len(plant.tag or "") for plant in plants) < _MOST_TEXT:
            try:
                return self._use(lambda engine, deadline: engine.keep(plants, deadline))
            except StoreUnavailable as error:
                # Each has its own: an exception that is raised again and again collects its tracebacks.
                return {plant.id: StoreUnavailable(str(error)) for plant in plants}
            except PlantRefused as error:
                if len(plants) == 1:
                    return {plants[0].id: error.reason}
        middle = len(plants) // 2
        return self._keep(plants[:middle]) | self._keep(plants[middle:])

    def _ask(self, work: Callable[[Engine, float], _T]) -> _T:
        try:
            return self._use(work)
        except StoreUnavailable as error:
            self._engine().counted(error)
            raise

    def _use(self, work: Callable[[Engine, float], _T]) -> _T:
        batch = self._thread.batch
        return self._engine().use(work, batch.deadline if batch else time.monotonic() + self._patience)

    def _engine(self) -> Engine:
        # A parent's engine stays in the dictionary of its child, unused: its connections and its locks are the
        # parent's, and to close them here would be to close them there.
        pid = os.getpid()
        return self._engines.get(pid) or self._engines.setdefault(pid, self._new_engine())


class _Batch:
    """What calls add together."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.call: int  # that runs
        self.added: dict[int, tuple[int, Plant]] = {}  # by its id, each plant and the call that added it
        self.uses: list[tuple[int, int]] = []  # calls, and ids of which they were told something
        self.fates: Fates | None = None  # None while the calls run as if all were kept


class _Thread(threading.local):
    """The batch that this thread runs, if it does."""

    batch: _Batch | None = None
