"""What those stores share that keep many plants with one commit."""

import abc
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from plants.stores import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.stores.outage import Outage

Fates = dict[int, Exception]  # Why the plants of these ids are not kept.

_Told = dict[Plant, Exception | None]
_T = TypeVar("_T")


class Engine(abc.ABC):
    """What one process has of a store: its connections, and whether they can be used.

    Each method ends at its deadline, a ``time.monotonic()``, and raises StoreUnavailable if it cannot do its work.

    :param was_made: the byte is 1 once the store has had its file or its table.
    """

    def __init__(self, patience: float, was_made: mmap.mmap) -> None:
        self.outage = Outage()
        self.patience = patience
        self.was_made = was_made
        self.closed = False

    @abc.abstractmethod
    def keep(self, plants: list[Plant], deadline: float) -> Fates:
        """Keep plants of different ids; give why some are not. If this raises, it is not known which are kept."""

    @abc.abstractmethod
    def find(self, plant_id: int, deadline: float) -> Plant | None:
        """Give the plant of this id, or None."""

    @abc.abstractmethod
    def check(self, deadline: float) -> None:
        """Return if plants can be written now, and the table has the store's shape."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """Give back the connections; the next use makes new ones."""

    def close(self) -> None:
        """Finish what waits, and give back the connections for good."""
        self.closed = True
        self.disconnect()


class BatchStore(PlantStore):
    """A store that keeps the plants of many calls with one commit.

    The calls run as if every plant were kept whose id no other plant of the batch has. Then all these plants are
    written at once. If all are kept, everything that the calls were told is true; else those calls run again that were
    told otherwise, and now ``add`` says what became of their plants.

    No call takes longer than about ``patience``, in seconds. While the store is unavailable one caller each half second
    tries, and the others are told at once.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._thread = _Thread()
        self._engines: dict[int, Engine] = {}
        self._was_made = mmap.mmap(-1, 1)  # All processes that inherit this object share it.

    @abc.abstractmethod
    def _new_engine(self) -> Engine:
        """Give what a process needs that uses the store for the first time; nothing is connected yet."""

    def add(self, plant: Plant) -> None:
        if batch := self._thread.batch:
            batch.add(plant)
        elif fates := self._keep([plant], time.monotonic() + self._patience):
            raise self._engine().outage.counted(fates[plant.id])

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
        deadline = time.monotonic() + self._patience
        results: dict[int, _T] = {}
        again: dict[int, _Told] = {number: {} for number in range(len(calls))}
        while again:
            batch = self._thread.batch = _Batch(self._engine().outage, again)
            try:
                for batch.call in again:
                    results[batch.call] = calls[batch.call]()
            finally:
                self._thread.batch = None
            fates = batch.new and self._keep(batch.new, deadline)
            again = batch.wrongly_told(fates) if fates else {}
        return [results[number] for number in range(len(calls))]

    def prepare(self, *, make: bool = True) -> None:
        if not make:
            self._was_made[0] = 1
        engine = self._engine()
        try:
            engine.check(time.monotonic() + self._patience)
        finally:
            engine.disconnect()

    def close(self) -> None:
        self._engine().close()

    def _keep(self, plants: list[Plant], deadline: float) -> Fates:
        try:
            return self._use(lambda engine, deadline: engine.keep(plants, deadline), deadline)
        except StoreUnavailable as error:
            # Each has its own: an exception that is raised again and again collects its tracebacks.
            return {plant.id: StoreUnavailable(str(error)) for plant in plants}

    def _ask(self, work: Callable[[Engine, float], _T]) -> _T:
        try:
            return self._use(work, time.monotonic() + self._patience)
        except StoreUnavailable as error:
            self._engine().outage.counted(error)
            raise

    def _use(self, work: Callable[[Engine, float], _T], deadline: float) -> _T:
        engine = self._engine()
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
        return self._engines.get(pid) or self._engines.setdefault(pid, self._new_engine())


class _Batch:
    """One run of calls: what they add, and what they are told."""

    def __init__(self, outage: Outage, told: dict[int, _Told]) -> None:
        """Take what each call is told of the plants that it added in an earlier run: None if they are kept."""
        self.call = 0
        self.new: list[Plant] = []
        self._outage = outage
        self._told = told
        self._plants: dict[int, Plant] = {}
        self._uses: list[tuple[int, Plant, Literal["added", "in use", "read"]]] = []

    def add(self, plant: Plant) -> None:
        told = self._told[self.call]
        if plant.id in self._plants:
            self._uses.append((self.call, plant, "in use"))
            raise PlantIdInUse(plant.id)
        if plant not in told:
            self.new.append(plant)
            self._uses.append((self.call, plant, "added"))
        elif fate := told[plant]:
            raise self._outage.counted(fate)
        self._plants[plant.id] = plant

    def get(self, plant_id: int) -> Plant | None:
        plant = self._plants.get(plant_id)
        if plant:
            self._uses.append((self.call, plant, "read"))
        return plant

    def wrongly_told(self, fates: Fates) -> dict[int, _Told]:
        """Give the calls that were told what is not true, and what each is to be told of its plants."""
        again: dict[int, _Told] = {}
        for call, plant, use in self._uses:
            if plant.id in fates and not (use == "in use" and isinstance(fates[plant.id], PlantIdInUse)):
                again[call] = self._told[call]
        for call, plant, use in self._uses:
            fate = fates.get(plant.id)
            if call in again and (use == "added" or (use == "in use" and type(fate) is StoreUnavailable)):
                again[call][plant] = fate
        return again


class _Thread(threading.local):
    """The batch that this thread runs, if it does."""

    batch: _Batch | None = None
