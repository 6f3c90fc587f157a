"""Calls of the application in threads, and what every call of it has in common.

In: the loop's complete requests, in ``queued_jobs``, and those with a large body, by ``call_alone``. ``start_batches``
passes the queue to free threads, in batches whose calls all begin before the first response is read, so that an
application can defer work, such as a commit, and do it once for the whole batch. One more thread calls the application
for large bodies, one at a time: small requests never wait behind them.
Out: ``completed`` responses; a byte in a pipe wakes the loop. Only the loop's thread calls these methods. A request is
called once, by whoever claims it first; a request that was rejected meanwhile cannot be claimed.
"""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from plants.server.connection import Connection
from plants.server.request import HTTPError, Request
from plants.server.response import Call, Response
from plants.server.service import Service

# The tests change these, so they are not Final: a compiled constant cannot be changed.
_GATHER_SECONDS = 0.005  # A request waits no longer than this for others to join its batch.
# A batch is full once its bodies reach this total, because the application may need ten times as much memory.
_MAX_BATCH_BYTES = 262_144
_MAX_CALL_SECONDS = 0.3  # per batch; the requests that are left then join the next batch

Job = tuple[Connection, Request]
Completed = tuple[Connection, Request, Response]

# The request that this thread responds to.
current_request: Final[ContextVar[Request | None]] = ContextVar("current_request", default=None)


def is_current(job: Job) -> bool:
    """Return whether the request still needs a response; it may have been rejected, or its client may have gone."""
    return job[0].request is job[1]


class Caller:
    """Calls of the applications. Each call returns a response, even if the application fails."""

    def __init__(self, service: Service, log: Any) -> None:
        self._service = service
        self._log = log

    def call(self, request: Request) -> Response:
        """Return the response to one request."""
        return self.finish(self.start(request), request)

    def start(self, request: Request) -> Call | None:
        """Call the application; return None if it fails."""
        current_request.set(request)
        try:
            return Call(request)
        except BaseException:  # An asyncio.CancelledError or a SystemExit must end neither the loop nor a thread.
            self._log.exception("the application failed")
            return None

    def finish(self, call: Call | None, request: Request) -> Response:
        """Return the response of a call. If the call failed, or fails now, return an error response."""
        try:
            if call:
                return call.response()
        except BaseException:
            self._log.exception("the application failed")
        request.keep_alive = False
        return self._service.error_response(HTTPError(500), request)


class Threads:
    """The threads that call the applications."""

    def __init__(self, caller: Caller, log: Any, wake_fd: int, *, threads: int, max_batch: int) -> None:
        """Start ``threads`` threads and the one for large bodies; each writes a byte to ``wake_fd`` after a batch."""
        self._caller = caller
        self._log = log
        self._wake_fd = wake_fd
        self._woken = False
        self._max_batch = max_batch
        self.queued_jobs: deque[Job] = deque()
        self._previous_backlog = 0
        self._free_threads = threads
        self._batches: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
        self._large_jobs: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
        self._completed_batches: deque[tuple[list[Completed], list[Job], int]] = deque()
        for batches, count in ((self._batches, threads), (self._large_jobs, 1)):
            for _ in range(count):
                # Daemon threads, because a call that is stuck must not delay the end of the process.
                threading.Thread(target=self._work, args=(batches,), name="plants.server", daemon=True).start()

    def call_alone(self, job: Job) -> None:
        """Call the application in the thread for large bodies."""
        self._large_jobs.put([job])

    def can_start(self) -> bool:
        """Return whether requests wait and a thread is free."""
        return bool(self.queued_jobs and self._free_threads)

    def start_batches(self, now: float) -> None:
        """Pass queued requests to free threads. While more arrive, leave them queued for up to ``_GATHER_SECONDS``."""
        queued = self.queued_jobs
        # Drop requests that were rejected because they waited too long. They are the oldest, so they are at the front.
        while queued and not is_current(queued[0]):
            queued.popleft()
        more_follow = len(queued) > self._previous_backlog and now < queued[0][1].started + _GATHER_SECONDS
        while self._free_threads and queued and not more_follow:
            self._free_threads -= 1
            jobs: list[Job] = []
            batch_bytes = 0
            while queued and len(jobs) < self._max_batch and batch_bytes < _MAX_BATCH_BYTES:
                job = queued.popleft()
                jobs.append(job)
                batch_bytes += len(job[1].body.content)
            self._batches.put(jobs)
        self._previous_backlog = len(queued)

    def completed(self) -> Iterator[Completed]:
        """Yield the responses of the batches that the threads have completed."""
        self._woken = False  # Reset first, so that a later batch wakes the loop again.
        while self._completed_batches:
            completed, not_called, freed_threads = self._completed_batches.popleft()
            self._free_threads += freed_threads
            self.queued_jobs.extendleft(reversed(not_called))
            yield from completed

    def _work(self, batches: "queue.SimpleQueue[list[Job]]") -> None:
        freed_threads = int(batches is self._batches)
        while True:
            jobs = batches.get()
            completed, not_called = self._run_batch(jobs)
            self._completed_batches.append((completed, not_called, freed_threads))
            del jobs, completed, not_called  # Do not hold the last requests in memory while waiting.
            if not self._woken:
                self._woken = True
                with suppress(BlockingIOError):  # If the pipe is full, the loop wakes anyway.
                    os.write(self._wake_fd, b"\0")

    def _run_batch(self, jobs: list[Job]) -> tuple[list[Completed], list[Job]]:
        """Return the completed requests, and those for which the application was not called."""
        until = time.monotonic() + _MAX_CALL_SECONDS
        calls: list[tuple[Job, Call | None]] = []
        done = 0
        for job in jobs:
            done += 1
            if job[1].claim():
                calls.append((job, self._caller.start(job[1])))
                if time.monotonic() > until:
                    break
        completed: list[Completed] = []
        for (connection, request), call in calls:
            current_request.set(request)
            try:
                completed.append((connection, request, self._caller.finish(call, request)))
            except BaseException:  # The connection ends at its deadline.
                self._log.exception("the error response failed")
        current_request.set(None)
        return completed, jobs[done:]
