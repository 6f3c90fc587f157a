"""Calls of the application, and the threads that make them.

In: the loop's complete requests, in ``queued_jobs``. ``start_batches`` passes the queue to free threads, in batches. A
thread calls the application for the whole batch before it reads the responses that wait for work, such as a commit,
which the application does once for all of them (``server.pending``).
Out: ``completed`` responses, or None for a call that failed; a byte in a pipe wakes the loop. Only the loop's thread
calls the methods of ``Threads``, and only it calls the hooks of the service. A thread calls the application only
for a request that it has claimed, which happens at most once, and not after the request was rejected.
"""

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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

Failure = tuple[str, Headers, bytes]  # the status, the headers and the body of a response
Outcome = Callable[[], Failure | None]  # waits for the work of one request

current: Final = threading.local()  # ``request`` is the one that this thread responds to, or None.


class Call:
    """One call of a WSGI application (PEP 3333): start it, then read its response. Neither raises an exception."""

    def __init__(
        self, request: Request, body: bytes | bytearray, log: Any, outcomes: list[Outcome] | None = None
    ) -> None:
        """Call the application of the listener at which the request arrived.

        :param outcomes: an empty list, which becomes ``server.pending``; None if the application must not defer work.
        """
        self._request = request
        self._log = log
        self._status: str | None = None
        self._headers: Headers = []
        self._writes: list[bytes] = []
        self._iterable: Any = None
        self._error: BaseException | None = None
        self._outcomes = outcomes
        environ = request.environ
        if outcomes is not None:
            environ["server.pending"] = outcomes
        environ["wsgi.input"] = BytesIO(body)
        current.request = request
        try:
            self._iterable = request.listener.application(environ, self._start_response)
        except BaseException as error:  # A CancelledError or a SystemExit must end neither the loop nor a thread.
            self._error = error  # Log it later, because it may be the failure of the pending work.

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
        """Wait for the pending work, read the body and return the response, or None if the application failed."""
        request = self._request
        response: Response | None = None
        error, self._error = self._error, None
        outcomes = self._outcomes
        failure = _wait(outcomes) if outcomes else None
        try:
            if not error:
                response = self._read()
        except BaseException as raised:
            error = raised
        request.environ.pop("wsgi.input", None)  # Drop the body.
        if failure and response and response.status[0] in "45":
            failure = None  # This is the response to the failure, perhaps changed by middleware.
        # No reader knows these outcomes, perhaps because a generator has dropped the response.
        if outcomes:
            failure = _wait(outcomes) or failure
            outcomes.clear()  # They refer to this call.
        if failure:
            response = make_response(*failure, is_head=request.method == "HEAD")
        if error:
            # A host may have raised the failure of the pending work, which is no failure of the host.
            self._log.log(logging.DEBUG if failure else logging.ERROR, "the application failed", exc_info=error)
        error = None  # Its traceback refers to this frame.
        return response

    def _read(self) -> Response:
        iterable, self._iterable = self._iterable, None
        try:
            body = b"".join(iterable)
        finally:
            if hasattr(iterable, "close") and iterable.close:
                iterable.close()
        if self._status is None:
            raise AssertionError("the application did not call start_response")
        if self._writes:
            body = b"".join((*self._writes, body))
        return make_response(self._status, self._headers, body, is_head=self._request.method == "HEAD")


def _wait(outcomes: list[Outcome]) -> Failure | None:
    """Wait for pending work, and return the last failure. Only the outcomes of failures stay in the list."""
    failure: Failure | None = None
    waiting = outcomes.copy()
    outcomes.clear()
    for outcome in waiting:
        found = outcome()
        if found:
            failure = found
            outcomes.append(outcome)
    return failure


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
        self._batches: queue.SimpleQueue[deque[Job]] = queue.SimpleQueue()
        self._completed_batches: deque[tuple[list[Completed], deque[Job]]] = deque()
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
            jobs: deque[Job] = deque()
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
            self._completed_batches.append((self._run_batch(jobs), jobs))
            del jobs  # Do not hold the last requests in memory while waiting.
            if not self._woken:
                self._woken = True
                with suppress(BlockingIOError):  # If the pipe is full, the loop wakes anyway.
                    os.write(self._wake_fd, b"\0")

    def _run_batch(self, jobs: deque[Job]) -> list[Completed]:
        """Return the completed requests; those for which the application was not called stay in ``jobs``."""
        until = time.monotonic() + _MAX_CALL_SECONDS
        waiting: list[tuple[Job, Call]] = []
        completed: list[Completed] = []
        while jobs:
            job = jobs.popleft()
            body = job[1].claim()
            if body is not None:
                outcomes: list[Outcome] = []
                call = Call(job[1], body, self._log, outcomes)
                if outcomes:
                    waiting.append((job, call))
                else:
                    completed.append((*job, call.response()))
                if time.monotonic() > until:
                    break
        for (connection, request), call in waiting:
            current.request = request
            completed.append((connection, request, call.response()))
        current.request = None
        return completed
