"""The committer: a thread that commits the plants of concurrent requests together (group commit).

In: ``submit`` queues an entry. Out: the thread passes the outcomes of a commit to the ``done`` of its entries, all of
one ``done`` at once. What arrives during a commit is the next batch. If a commit fails as a whole, the store is down:
whatever is queued fails, and the committer tries an empty batch every half a second, until one succeeds. No exception
ends the thread.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from plants.stores import COLUMNS, Done, Plant, StoreUnavailable
from plants.stores.health import NO_RESPONSE, Health, Outcomes

MAX_BATCH = 256  # plants per commit
RETRY_SECONDS = 0.5  # between two attempts in an outage
CLOSED: Final = "the store is closed"
_MAX_CHARACTERS = 2_000_000  # per batch, so that a batch of the largest plants commits in time
_MIN_COMMIT_SECONDS = 0.002  # After a shorter commit, waiting for its clients costs more than it saves.
_MAX_RETURN = 0.6  # of a commit: clients that take longer to send again are served faster in two groups.
_MAX_SKIPPED = 63  # commits between two waits for clients
_texts_of = itemgetter(*(index for index, column in enumerate(COLUMNS) if column.type is str))

# A plant, or None for a check; the number of its characters; until when it may wait in the queue; its ``done`` and key.
# A class with names would make each create slower.
_Entry = tuple[Plant | None, int, float, Done, Any]

_log = logging.getLogger(__name__)


class Committer:
    """A queue, and the thread that commits what is queued.

    :param commit: commits the plants that its argument, ``collect``, returns. It calls ``collect`` once, when it can
        begin, because entries join the batch until then.
    :param disconnect: called by the thread when it ends, and if a commit stored no plant although it could have, so
        that the next one looks at the store afresh.
    :param timeout: how long an entry may wait in the queue, in seconds.
    :raises StoreUnavailable: the thread cannot start.
    """

    def __init__(
        self,
        commit: Callable[[Callable[[], list[Plant]]], Outcomes],
        disconnect: Callable[[], None],
        health: Health,
        timeout: float,
    ) -> None:
        self._commit = commit
        self._disconnect = disconnect
        self._health = health
        self._timeout = timeout
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()  # None only wakes the thread.
        self._client_wait = ClientWait(self._queue)
        self._closed = False
        # A daemon thread, because a commit that is stuck must not delay the end of the process.
        self._thread = threading.Thread(target=self._run, name="plants.stores", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # The process may not have another thread.
            raise StoreUnavailable(str(error)) from None

    def submit(self, plant: Plant | None, done: Done, key: Any) -> None:
        """Queue a plant, whose members have their types, or a check (None) for the next commit."""
        characters = sum(map(len, filter(None, _texts_of(plant)))) if plant else 0
        self._queue.put((plant, characters, time.monotonic() + self._timeout, done, key))

    def close(self, timeout: float) -> None:
        """Commit what is queued, and end the thread; after ``timeout`` seconds, fail what is still queued."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout)
        self._fail(self._queued(), CLOSED)

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                self._commit_batch(batch)
            except BaseException:  # such as a MemoryError
                with suppress(BaseException):
                    _log.exception("the committer failed, and continues")
            del batch  # Do not hold the last plants in memory while waiting.
        self._disconnect()

    def _next_batch(self) -> list[_Entry] | None:
        """Return a batch with its first entry, an empty one if a check is due in an outage, or None to end."""
        entry = None
        while not entry:
            try:
                entry = self._queue.get(not self._closed, RETRY_SECONDS if self._health.open else None)
            except queue.Empty:
                return None if self._closed else []
        return [entry]

    def _queued(self) -> Iterator[_Entry]:
        """Remove and yield what is queued, without waiting."""
        with suppress(queue.Empty):
            while True:
                if entry := self._queue.get_nowait():
                    yield entry

    def _commit_batch(self, batch: list[_Entry]) -> None:
        is_retry = not batch
        self._fill(batch)
        self._client_wait.wait(len(batch))
        self._health.commit_deadline = time.monotonic() + self._timeout
        try:
            outcomes = self._commit(partial(self._collect, batch))
        except BaseException as error:
            self._health.down_reason = reason = _reason(error)
            self._health.record_failure(reason, rejected=0)
            self._fail(chain(batch, self._queued()), reason)
            self._disconnect()
            return
        finally:
            self._health.commit_deadline = math.inf
        self._client_wait.note_commit(len(batch))
        # If all were late, no plant could be stored, which says nothing of the store.
        reason = self._health.record(outcomes) if batch or is_retry else ""
        remaining = iter(outcomes)
        check_outcome = StoreUnavailable(reason) if reason else None
        _pass_on([(entry, _own(next(remaining) if entry[0] else check_outcome)) for entry in batch])
        if reason:
            self._disconnect()

    def _collect(self, batch: list[_Entry]) -> list[Plant]:
        self._fill(batch)
        self._client_wait.began = time.monotonic()
        return [plant for plant, *_ in batch if plant]

    def _fill(self, batch: list[_Entry]) -> None:
        """Add what is queued while the batch has room; fail what has waited too long, which takes no room."""
        now = time.monotonic()
        entries = chain(batch[:], self._queued())
        batch.clear()
        late = []
        room = _MAX_CHARACTERS
        while len(batch) < MAX_BATCH and room > 0 and (entry := next(entries, None)):
            if entry[2] < now:
                late.append(entry)
            else:
                batch.append(entry)
                room -= entry[1]
        self._fail(late, NO_RESPONSE)

    def _fail(self, entries: Iterable[_Entry], reason: str) -> None:
        failed = [(entry, StoreUnavailable(reason)) for entry in entries]
        if failed:
            self._health.record_failure(reason, rejected=sum(bool(plant) for (plant, *_), _ in failed))
            _pass_on(failed)


class ClientWait:
    """A wait, before a commit, for the clients of the last one: they may send again when they have their responses.

    Without it, two groups of clients take turns, and each client waits for the commits of both groups. If fewer than
    half of the missing clients come, or if they come so late that two groups would commit more, the wait was in vain,
    and some commits follow without one.
    """

    def __init__(self, entries: "queue.SimpleQueue[Any]") -> None:
        self._entries = entries
        self._expected = 0  # the entries of the last commit, and those that were queued at its end
        self.began = 0.0  #: when the commit began
        self._ended = 0.0
        self._commits_without = 0
        self._skipped = 0

    def note_commit(self, size: int) -> None:
        """Note that a commit has ended, whose batch had this size."""
        self._ended = time.monotonic()
        self._expected = min(size + self._entries.qsize(), MAX_BATCH)

    def wait(self, size: int) -> None:
        """Wait until as many entries are queued as are expected beside a batch of this size, or for a short time."""
        missing = self._expected - size
        seconds = self._ended - self.began  # of the last commit; if that failed, not above 0
        if seconds < _MIN_COMMIT_SECONDS or missing <= 0:
            return
        if self._skipped < self._commits_without:
            self._skipped += 1
            return
        until = time.monotonic() + seconds / 4
        while (arrived := self._entries.qsize()) < missing and time.monotonic() < until:
            time.sleep(seconds / 32)
        # A busy event loop delays the end of a sleep, so the wait itself may have taken far longer.
        in_vain = 2 * arrived < missing or time.monotonic() > self._ended + _MAX_RETURN * seconds
        self._skipped = 0
        self._commits_without = min(4 * self._commits_without + 3, _MAX_SKIPPED) if in_vain else 0


def _pass_on(outcomes: list[tuple[_Entry, Any]]) -> None:
    """Pass each outcome to the ``done`` of its entry, and all outcomes of one ``done`` at once."""
    by_done: dict[Done, list[tuple[Any, Exception | None]]] = {}
    for (_, _, _, done, key), outcome in outcomes:
        by_done.setdefault(done, []).append((key, outcome))
    for done, results in by_done.items():
        try:
            done(results)
        except BaseException:  # The others must get their outcomes.
            _log.exception("the outcomes of a commit were lost")


def _own(outcome: Exception | None) -> Exception | None:
    """Return an exception for one caller: one that is raised repeatedly collects tracebacks, and so whole batches."""
    if isinstance(outcome, StoreUnavailable):
        return StoreUnavailable(str(outcome))
    return outcome and outcome.with_traceback(None)


def _reason(error: BaseException) -> str:
    if isinstance(error, StoreUnavailable):
        return str(error)
    _log.error("a commit failed", exc_info=error)
    return f"{type(error).__name__}; the log has the details"
