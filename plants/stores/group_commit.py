"""A base class of stores that commit the plants of concurrent calls in one transaction (group commit).

In: ``submit`` queues a plant. Out: the committer, a thread of the store, passes the outcome to ``done``.
The committer has a connection of its own. It takes all plants that are queued, and commits them in one transaction.
What arrives meanwhile is the next batch.
If a commit fails, the store is down: whatever is queued fails, ``raise_if_down`` raises, and the committer tries an
empty batch every half a second, until one succeeds.
"""

import abc
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any, Final

from plants.stores import (
    COLUMNS,
    INT64_MAX,
    INT64_MIN,
    OwnerProcess,
    Plant,
    PlantRefused,
    PlantStore,
    StoreUnavailable,
)
from plants.stores.outage import FRESH_SECONDS, Outage

MAX_BATCH = 256  # plants per commit
RETRY_SECONDS = 0.5  # between two attempts in an outage
REFUSED_SECONDS = 5.0  # After a commit of which every plant was refused, ``check`` fails for this long.
_MAX_CHARACTERS = 2_000_000  # per batch, so that a batch of the largest plants commits in time
_GRACE_SECONDS = 0.5  # ``add`` waits this much longer than the committer, whose error names the reason.
NO_RESPONSE = "no response in time"
_CLOSED = "the store is closed"
_TYPES = tuple((column.type, NoneType) if column.nullable else column.type for column in COLUMNS)
_texts_of = itemgetter(*(index for index, column in enumerate(COLUMNS) if column.type is str))

Done = Callable[[Exception | None], Callable[[], None] | None]
Outcomes = list[Exception | None]  # For each plant, why it was not stored, or None.
# A plant, or None for a check; the number of its characters; how long it may wait in the queue; its ``done``. A class
# with names would make each create slower.
_Entry = tuple[Plant | None, int, float, Done]

_log = logging.getLogger(__name__)


class GroupCommitStore(PlantStore):
    """A store that commits the plants of several calls at once, in a thread of its own.

    Neither ``submit`` nor ``submit_check`` waits: the committer passes the outcome to ``done``, which must not block.
    The outcome is the exception that ``add`` or ``check`` raises, or None. If ``done`` returns a function, it is called
    once for all outcomes that are passed on together.

    A connection is any object with a method ``close``, which is called after an exception.

    :param timeout: about how long each method waits, in seconds, before it raises StoreUnavailable.
    """

    multiprocess = True

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._may_create = True  # until this process or, before a fork, its parent has had the file or the table
        self._closed = False
        self._owner = OwnerProcess()
        self._outage = Outage()
        self._queue: queue.SimpleQueue[_Entry | None]  # None only wakes the committer.
        self._start_lock: threading.Lock
        self._committer: threading.Thread | None = None
        self._due = math.inf  # when the batch of the committer should be done
        self._verdict = ("", 0.0)  # why the last commits stored no plant, or ""; until when checks rely on that
        self._idle_readers: list[Any] = []  # for ``get``; rarely more than one

    @abc.abstractmethod
    def _connect(self) -> Any:
        """Open a connection, and check the table. Create what is missing if ``_may_create``, and then reset that."""

    def _is_usable(self, connection: Any) -> bool:  # noqa: ARG002  # A store may know nothing in advance.
        """Return whether an idle connection can be used, so far as that is known without a statement."""
        return True

    @abc.abstractmethod
    def _insert(self, connection: Any, collect: Callable[[], list[Plant]]) -> Outcomes:
        """Store plants in one transaction; return each outcome. Of plants with the same id, only the first is stored.

        If there are none, fail as an insert would, as far as that can be seen without one.

        :param collect: returns the plants. Call it only when the transaction can begin, because plants join the batch
            until that call. Call it once.
        :raises StoreUnavailable: no plant is stored, or it is not known which.
        """

    @abc.abstractmethod
    def _find(self, connection: Any, plant_id: int) -> Plant | None:
        """Return the plant with this id, or None."""

    def add(self, plant: Plant) -> None:
        if not all(map(isinstance, plant, _TYPES)):  # In a batch, the plant could make all plants fail.
            raise TypeError("a member of a plant has a wrong type")
        self.raise_if_down()
        self._wait(partial(self.submit, plant))

    def check(self) -> None:
        self._wait(self.submit_check)

    def _wait(self, submit: Callable[[Done], None]) -> None:
        outcome: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()  # Look it up now, because of gevent.
        submit(outcome.put)
        try:
            error = outcome.get(timeout=self.timeout + _GRACE_SECONDS)
        except queue.Empty:
            raise StoreUnavailable(NO_RESPONSE) from None
        if error:
            try:
                raise error
            finally:
                del error  # Otherwise, the exception and this frame would refer to each other.

    def submit(self, plant: Plant | None, done: Done) -> None:
        """Queue a plant, whose members have their types, or a check, for the next commit.

        :raises StoreUnavailable: it cannot be queued.
        """
        characters = sum(map(len, filter(None, _texts_of(plant)))) if plant else 0
        if not self._committer:
            self._start_committer()
        self._queue.put((plant, characters, time.monotonic() + self.timeout, done))

    def submit_check(self, done: Done) -> None:
        """Check the store.

        :raises StoreUnavailable: the store is closed, or a plant cannot be added now.
        """
        self.raise_if_down(rejected=0)
        reason, until = self._verdict
        if time.monotonic() > until:
            self.submit(None, done)
        elif reason:
            raise StoreUnavailable(reason)
        else:
            done(None)

    def raise_if_down(self, *, rejected: int = 1) -> None:
        """Raise StoreUnavailable if it is known that a plant cannot be added now."""
        self._owner.check()
        if self._closed:
            raise StoreUnavailable(_CLOSED)
        reason = self._outage.reason
        if not reason and self._due < time.monotonic():  # The committer is stuck.
            reason = NO_RESPONSE
        if reason:
            self._outage.record_failure(reason, rejected=rejected)
            raise StoreUnavailable(reason)

    def get(self, plant_id: int) -> Plant | None:
        self._owner.check()
        if self._closed:
            raise StoreUnavailable(_CLOSED)
        if not INT64_MIN <= plant_id <= INT64_MAX:
            return None
        with ExitStack() as unless_idle:
            reader = self._take_idle_reader() or self._connect()
            unless_idle.callback(reader.close)
            plant = self._find(reader, plant_id)
            if not (self._closed or self._idle_readers):
                unless_idle.pop_all()
                self._idle_readers.append(reader)
        return plant

    def prepare(self) -> None:
        with closing(self._connect()) as connection:
            self._insert(connection, list)

    def close(self) -> None:
        if self._owner.pid not in {0, os.getpid()}:
            return  # What this process has inherited belongs to its parent.
        self._closed = True
        self._make_queue()
        self._queue.put(None)
        if self._committer:
            self._committer.join(self.timeout)
        self._fail(self._queued(), _CLOSED)
        while reader := self._take_idle_reader():
            reader.close()

    def _take_idle_reader(self) -> Any:
        with suppress(IndexError):
            reader = self._idle_readers.pop()
            if self._is_usable(reader):
                return reader
            reader.close()
        return None

    def _make_queue(self) -> None:
        # These block, so make them at the first use: gevent may have patched the modules since the store was made. Of
        # concurrent calls, one sets them, because setdefault() is atomic.
        vars(self).setdefault("_queue", queue.SimpleQueue())
        vars(self).setdefault("_start_lock", threading.Lock())

    def _start_committer(self) -> None:
        self._make_queue()
        with self._start_lock:
            if self._committer:
                return
            # A daemon thread, because a commit that is stuck must not delay the end of the process.
            thread = threading.Thread(target=self._run, name="plants.stores", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # The process may not have another thread.
                raise StoreUnavailable(str(error)) from None
            self._committer = thread

    def _run(self) -> None:
        """Commit batches until the store is closed; the body of the committer."""
        connection = None
        while (batch := self._next_batch()) is not None:
            self._due = time.monotonic() + self.timeout
            connection = self._commit(connection, batch)
            self._due = math.inf
            del batch  # Do not hold the last plants in memory while waiting.
        if connection:
            connection.close()

    def _next_batch(self) -> list[_Entry] | None:
        """Return the first entry of a batch, an empty batch if a check is due in an outage, or None to end."""
        entry = None
        while not entry:
            try:
                entry = self._queue.get(not self._closed, RETRY_SECONDS if self._outage.is_logged else None)
            except queue.Empty:
                return None if self._closed else []
        return [entry]

    def _queued(self) -> Iterator[_Entry]:
        """Remove and yield what is queued, without waiting."""
        with suppress(queue.Empty):
            while True:
                if entry := self._queue.get_nowait():
                    yield entry
        if self._closed:  # This may have removed what should wake the committer.
            self._queue.put(None)

    def _take(self, batch: list[_Entry]) -> list[Plant]:
        """Fill the batch with what is queued, fail what has waited too long, and return its plants."""
        room = _MAX_CHARACTERS - sum(characters for _, characters, _, _ in batch)
        queued = self._queued()
        while len(batch) < MAX_BATCH and room > 0 and (entry := next(queued, None)):
            batch.append(entry)
            room -= entry[1]
        now = time.monotonic()
        if late := [entry for entry in batch if entry[2] < now]:
            batch[:] = [entry for entry in batch if entry[2] >= now]
            self._fail(late, NO_RESPONSE)
        return [plant for plant, _, _, _ in batch if plant]

    def _commit(self, connection: Any, batch: list[_Entry]) -> Any:
        """Commit a batch, and pass on its outcomes; return the connection, a new one, or None after a failure."""
        try:
            if connection and not self._is_usable(connection):
                connection.close()
                connection = None
            connection = connection or self._connect()
            outcomes = self._insert(connection, partial(self._take, batch))
        except BaseException as error:
            if connection:
                connection.close()
            self._go_down(batch, _reason(error))
            return None
        self._note(outcomes)
        remaining = iter(outcomes)
        wakers = set()
        for entry in batch:
            plant, _, _, done = entry
            outcome = next(remaining) if plant else None
            if not outcome:
                wakers.add(done(None))
            elif isinstance(outcome, StoreUnavailable):
                self._fail([entry], str(outcome))
            else:
                wakers.add(done(outcome.with_traceback(None)))  # Its frames would refer to the whole batch.
        _wake(wakers)
        return connection

    def _note(self, outcomes: Outcomes) -> None:
        """Remember what a commit says of the store."""
        if None in outcomes or not outcomes:
            self._verdict = ("", time.monotonic() + FRESH_SECONDS)
            self._outage.record_success()
        elif all(isinstance(each, PlantRefused) for each in outcomes):  # An id in use says nothing.
            self._verdict = (f"no plant is stored: {outcomes[0]}", time.monotonic() + REFUSED_SECONDS)

    def _go_down(self, batch: list[_Entry], reason: str) -> None:
        """Fail the batch, whatever is queued and, until a commit succeeds, what is submitted."""
        self._outage.reason = reason
        self._outage.record_failure(reason, rejected=0)
        self._fail(chain(batch, self._queued()), reason)

    def _fail(self, entries: Iterable[_Entry], reason: str) -> None:
        wakers = set()
        for plant, _, _, done in entries:
            self._outage.record_failure(reason, rejected=1 if plant else 0)
            # Each caller gets its own exception, because one that is raised repeatedly collects tracebacks.
            wakers.add(done(StoreUnavailable(reason)))
        _wake(wakers)


_GROUP_ADD: Final = GroupCommitStore.add


def group_commit_of(store: PlantStore) -> GroupCommitStore | None:
    """Return the store if its ``add`` does no more than ``submit`` and wait, or None.

    A subclass may override ``add``, and a tracing agent may replace it on the object or on any of its classes, at any
    time. A proxy object around a store has a type of its own, and so has no such ``add``.
    """
    kind: Any = type(store)  # isinstance() would believe a proxy.
    if getattr(kind, "add", None) is not _GROUP_ADD or "add" in store.__dict__:
        return None
    return store  # type: ignore[return-value]  # only a GroupCommitStore has this add


def _wake(wakers: set[Callable[[], None] | None]) -> None:
    for waker in wakers:
        if waker:
            waker()


def _reason(error: BaseException) -> str:
    if isinstance(error, StoreUnavailable):
        return str(error)
    _log.error("a commit failed", exc_info=error)
    return f"{type(error).__name__}; the log has the details"
