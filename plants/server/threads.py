"""Calls of the application, and the threads that make them.

In: the loop's complete requests, in ``queued_jobs``. ``start_batches`` passes the queue to free threads, in batches
whose calls all begin before the first response is read, so that an application can defer work, such as a commit, and do
it once for the whole batch.
Out: ``completed`` responses, or None for a call that failed; a byte in a pipe wakes the loop. Only the loop's thread
calls the methods of ``Threads``, and only it calls the hooks of the service. A request is called at most once, by who
claims it; a request that was rejected meanwhile cannot be claimed.
"""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from io import BytesIO
from typing import Any, Final

from plants.server.connection import Connection
from plants.server.request import Request
from plants.server.response import Headers, Response, make_response

# The tests change these, so they are not Final: a compiled constant cannot be changed.
_GATHER_SECONDS = 0.005  # A request waits no longer than this for others to join its batch.
# A batch is full once its bodies reach this total, because the application may need ten times as much memory.
_MAX_BATCH_BYTES = 262_144
_MAX_CALL_SECONDS = 0.3  # per batch; the requests that are left then join the next batch

Job = tuple[Connection, Request]
Completed = tuple[Connection, Request, Response | None]

# The request that this thread responds to.
current_request: Final[ContextVar[Request | None]] = ContextVar("current_request", default=None)


class Call:
    """One call of a WSGI application (PEP 3333): start it, then read its response. Neither raises an exception."""

    def __init__(self, request: Request, body: bytes | bytearray, log: Any) -> None:
        """Call the application of the listener at which the request arrived."""
        self._request = request
        self._log = log
        self._status: str | None = None
        self._headers: Headers = []
        self._writes: list[bytes] = []
        self._iterable: Any = None
        self._failed: bool = False
        environ = request.environ
        environ["wsgi.input"] = BytesIO(body)
        current_request.set(request)
        try:
            self._iterable = request.listener.application(environ, self._start_response)
        except BaseException:  # An asyncio.CancelledError or a SystemExit must end neither the loop nor a thread.
            self._failed = True
            log.exception("the application failed")

    def _start_response(
        self, status: str, headers: Sequence[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        # No byte has been sent yet, so an error may replace the response that was started.
        if self._status is not None and not exc_info:
            raise AssertionError("start_response was called twice")
        self._status = status
        self._headers = list(headers)
        return self._writes.append

    def response(self) -> Response | None:
        """Read the body, close the iterable and return the response, or None if the application failed."""
        if self._failed:
            return None
        try:
            try:
                body = b"".join(self._iterable)
            finally:
                if hasattr(self._iterable, "close") and self._iterable.close:
                    self._iterable.close()
                self._request.environ.pop("wsgi.input", None)  # The body's memory is no longer needed.
            if self._status is None:
                raise AssertionError("the application did not call start_response")
            if self._writes:
                body = b"".join((*self._writes, body))
            return make_response(self._status, self._headers, body, is_head=self._request.method == "HEAD")
        except BaseException:
            self._log.exception("the application failed")
            return None


class Threads:
    """Threads that call the applications."""

    def __init__(self, log: Any, wake_fd: int, *, threads: int, max_batch: int) -> None:
        """Start the threads; each writes a byte to ``wake_fd`` after a batch of at most ``max_batch`` requests."""
        self._log = log
        self._wake_fd = wake_fd
        self._woken = False
        self._max_batch = max_batch
        self.queued_jobs: deque[Job] = deque()
        self._previous_backlog = 0
        self._free_threads = threads
        self._batches: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
        self._completed_batches: deque[tuple[list[Completed], list[Job]]] = deque()
        for _ in range(threads):
            # Daemon threads, because a call that is stuck must not delay the end of the process.
            threading.Thread(target=self._work, name="plants.server", daemon=True).start()

    def can_start(self) -> bool:
        """Return whether requests wait and a thread is free."""
        return bool(self.queued_jobs and self._free_threads)

    def start_batches(self, now: float) -> None:
        """Pass queued requests to free threads. While more arrive, leave them queued for up to ``_GATHER_SECONDS``."""
        queued = self.queued_jobs
        # Drop requests that were rejected because they waited too long. They are the oldest, so they are at the front.
        while queued and queued[0][0].request is not queued[0][1]:
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
            completed, not_called = self._completed_batches.popleft()
            self._free_threads += 1
            self.queued_jobs.extendleft(reversed(not_called))
            yield from completed

    def _work(self) -> None:
        while True:
            jobs = self._batches.get()
            batch = self._run_batch(jobs)
            self._completed_batches.append(batch)
            del jobs, batch  # Do not hold the last requests in memory while waiting.
            if not self._woken:
                self._woken = True
                with suppress(BlockingIOError):  # If the pipe is full, the loop wakes anyway.
                    os.write(self._wake_fd, b"\0")

    def _run_batch(self, jobs: list[Job]) -> tuple[list[Completed], list[Job]]:
        """Return the completed requests, and those for which the application was not called."""
        until = time.monotonic() + _MAX_CALL_SECONDS
        calls: list[tuple[Job, Call]] = []
        done = 0
        for job in jobs:
            done += 1
            body = job[1].claim()
            if body is not None:
                calls.append((job, Call(job[1], body, self._log)))
                if time.monotonic() > until:
                    break
        completed: list[Completed] = []
        for (connection, request), call in calls:
            current_request.set(request)
            completed.append((connection, request, call.response()))
        current_request.set(None)
        return completed, jobs[done:]
