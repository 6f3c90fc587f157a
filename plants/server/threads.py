"""Calls of the application: in the event loop, or in threads that each handle a batch of requests."""

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
_LARGE_BODY_BYTES = 32_768  # A request with a larger body waits for those with smaller ones.

Job = tuple[Connection, Request]
Completed = tuple[Connection, Request, Response]

# The request that this thread responds to.
current_request: Final[ContextVar[Request | None]] = ContextVar("current_request", default=None)


def is_current(job: Job) -> bool:
    """Return whether the request still needs a response; it may have been rejected, or its client may have gone."""
    return job[0].request is job[1]


def is_large(job: Job) -> bool:
    """Return whether the application may take long for this request, because of its body."""
    return len(job[1].body.content) > _LARGE_BODY_BYTES


class Calls:
    """The calls of the applications. Each call returns a response, even if the application fails."""

    def __init__(self, service: Service, log: Any, wake_fd: int, *, threads: int, max_batch: int) -> None:
        """Start ``threads`` threads, which write a byte to ``wake_fd`` when they have completed a batch."""
        self._service = service
        self._log = log
        self._wake_fd = wake_fd
        self._woken = False
        self._max_batch = max_batch
        self.queued_jobs: deque[Job] = deque()
        self.queued_large_jobs: deque[Job] = deque()
        self._previous_backlog = 0
        self._free_threads = threads
        self._batches: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
        self._completed_batches: deque[tuple[list[Completed], list[Job]]] = deque()
        for _ in range(threads):
            threading.Thread(target=self._work, name="plants.server", daemon=True).start()

    def call(self, request: Request) -> Response:
        """Return the response to one request."""
        current_request.set(request)
        return self._finish(self._start(request), request)

    def _start(self, request: Request) -> Call | None:
        """Call the application; return None if it fails."""
        try:
            return Call(request)
        except BaseException:  # An asyncio.CancelledError or a SystemExit must end neither the loop nor a thread.
            self._log.exception("the application failed")
            return None

    def _finish(self, call: Call | None, request: Request) -> Response:
        """Return the response of a call. If the call failed, or fails now, return an error response."""
        try:
            if call:
                return call.response()
        except BaseException:
            self._log.exception("the application failed")
        request.keep_alive = False
        return self._service.error_response(HTTPError(500), request)

    def can_start(self) -> bool:
        """Return whether requests wait and a thread is free."""
        return bool((self.queued_jobs or self.queued_large_jobs) and self._free_threads)

    def start_batches(self, now: float) -> None:
        """Pass queued requests to free threads. While more arrive, leave them queued for up to ``_GATHER_SECONDS``."""
        # Drop requests that were rejected because they waited too long. They are the oldest, so they are at the front.
        for queued in (self.queued_jobs, self.queued_large_jobs):
            while queued and not is_current(queued[0]):
                queued.popleft()
        queued = self.queued_jobs
        more_follow = len(queued) > self._previous_backlog and now < queued[0][1].started + _GATHER_SECONDS
        while self._free_threads and not more_follow and (queued := self.queued_jobs or self.queued_large_jobs):
            self._free_threads -= 1
            jobs: list[Job] = []
            batch_bytes = 0
            while queued and len(jobs) < self._max_batch and batch_bytes < _MAX_BATCH_BYTES:
                job = queued.popleft()
                if is_current(job):
                    jobs.append(job)
                    batch_bytes += len(job[1].body.content)
            self._batches.put(jobs)
        self._previous_backlog = len(self.queued_jobs)

    def completed(self) -> Iterator[Completed]:
        """Yield the responses of the batches that the threads have completed."""
        self._woken = False  # Reset first, so that a later batch wakes the loop again.
        while self._completed_batches:
            self._free_threads += 1
            completed, not_called = self._completed_batches.popleft()
            queued = self.queued_large_jobs if not_called and is_large(not_called[0]) else self.queued_jobs
            queued.extendleft(reversed(not_called))
            yield from completed

    def _work(self) -> None:
        while True:
            jobs = self._batches.get()
            self._completed_batches.append(self._run_batch(jobs))
            del jobs  # Do not hold the last requests in memory while waiting.
            if not self._woken:
                self._woken = True
                with suppress(BlockingIOError):  # If the pipe is full, the loop wakes anyway.
                    os.write(self._wake_fd, b"\0")

    def _run_batch(self, jobs: list[Job]) -> tuple[list[Completed], list[Job]]:
        """Return the completed requests, and those for which the application was not called.

        Iterate the first response only after the last call. An application can then defer work, such as a commit,
        to the iteration, and do it once for the whole batch.
        """
        until = time.monotonic() + _MAX_CALL_SECONDS
        calls = []
        for _, request in jobs:
            current_request.set(request)
            calls.append(self._start(request))
            if time.monotonic() > until:
                break
        completed: list[Completed] = []
        for (connection, request), call in zip(jobs, calls, strict=False):
            current_request.set(request)
            try:
                completed.append((connection, request, self._finish(call, request)))
            except BaseException:  # The connection ends at its deadline.
                self._log.exception("the error response failed")
        current_request.set(None)
        return completed, jobs[len(calls) :]
