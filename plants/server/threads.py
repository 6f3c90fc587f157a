"""Calls of the application, in the loop's thread or in threads of their own.

In: complete requests. If one is rejected before its call begins, the call never begins.
Out: ``Caller.completed``, which only the loop's thread calls; a byte in a pipe wakes the loop. If the application has
left work in ``server.pending``, the call is over, but its request is complete only when the work is: no thread waits.
Only the loop's thread calls the hooks of the service.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, Final

from plants.server.connection import Connection
from plants.server.request import Request
from plants.server.response import Headers, Response, make_response

Job = tuple[Connection, Request]
Done = Callable[[BaseException | None], Callable[[], None] | None]
# Begins work of one request, and returns the status, the headers and the body of the response to a failure of it.
Pending = tuple[Any, Callable[[BaseException], tuple[str, Headers, bytes]]]

current: Final = threading.local()  # ``request`` is the one that this thread responds to, or None.


class Call:
    """One call of a WSGI application (PEP 3333)."""

    def __init__(self, request: Request, body: bytes | bytearray) -> None:
        self.pending: list[Pending] = []
        self._request = request
        self._status: str = ""
        self._headers: Headers = []
        self._blocks: list[bytes] = []
        request.environ["wsgi.input"] = BytesIO(body)
        request.environ["server.pending"] = self.pending

    def response(self) -> Response:
        """Call the application of the request's listener, and read its response."""
        request = self._request
        iterable: Any = request.listener.application(request.environ, self._start_response)
        try:
            self._blocks.extend(iterable)
        finally:
            if hasattr(iterable, "close"):
                iterable.close()
            request.environ.pop("wsgi.input", None)  # Drop the body.
        body = b"".join(self._blocks)
        return make_response(self._status, self._headers, body, is_head=request.method == "HEAD")

    def _start_response(
        self, status: str, headers: Sequence[tuple[str, str]], _exc_info: Any = None
    ) -> Callable[[bytes], None]:
        # No byte has been sent yet, so another call, such as that of an error handler, may replace the response.
        self._status = status
        self._headers = list(headers)
        return self._blocks.append


class Caller:
    """The caller of the applications, and the queue of complete requests with their responses."""

    def __init__(self, log: Any, wake_fd: int) -> None:
        """Write a byte to ``wake_fd`` if a request is completed outside the loop's thread."""
        self._log = log
        self._wake_fd = wake_fd
        self._woken = False
        self._work_to_begin: deque[tuple[Job, Response, list[Pending]]] = deque()
        self._completed: deque[tuple[Job, Response | None]] = deque()

    def call(self, job: Job) -> None:
        """Call the application for a request, unless it was rejected while it waited. Any thread may do so."""
        connection, request = job
        body = request.body.content  # Get it before the check, because a rejection ends with dropping it.
        if connection.request is not request:
            return
        current.request = request
        call = Call(request, body)
        response: Response | None = None
        try:
            response = call.response()
        except BaseException:  # A CancelledError or a SystemExit must end neither the loop nor a thread.
            self._log.exception("the application failed")
        if call.pending and response and response.status[0] < "4":
            self._work_to_begin.append((job, response, call.pending))
        else:
            self._completed.append((job, response))
        current.request = None

    def begin_work(self) -> None:
        """Begin the work that calls have left. The work of many calls begins together, so that they can share it."""
        with suppress(IndexError):  # Nothing is left, or another thread has begun it.
            while True:
                self._begin(*self._work_to_begin.popleft())

    def _begin(self, job: Job, response: Response, pending: list[Pending]) -> None:
        """Begin the first work of a request; the rest follows, if it succeeds."""
        (begin, fail), *rest = pending
        key = (job, response, fail, rest)
        try:
            begin(self._done_batch, key)
        except BaseException as error:
            self._done_batch([(key, error)])

    def _done_batch(self, outcomes: Any) -> None:
        for key, error in outcomes:
            self._done(key[0], key[1], key[2], key[3], error)
        self.wake()

    def _done(self, job: Job, response: Response, fail: Any, rest: list[Pending], error: Any) -> Callable[[], None]:
        if rest and not error:
            self._begin(job, response, rest)
        else:
            self._completed.append((job, self._failure(job[1], fail, error) if error else response))
        # If each outcome woke the loop, the loop and the thread that reports a batch would wait for each other.
        return self.wake

    def _failure(self, request: Request, fail: Any, error: BaseException) -> Response | None:
        before = getattr(current, "request", None)  # A store may commit for other requests in a call of its own.
        current.request = request  # so that a line in the log has its id
        try:
            return make_response(*fail(error), is_head=request.method == "HEAD")
        except BaseException:
            self._log.exception("the response to a failure failed")
            return None
        finally:
            current.request = before

    def wake(self) -> None:
        """Wake the loop, because a request may be complete."""
        if not self._woken:
            self._woken = True
            with suppress(BlockingIOError):  # If the pipe is full, the loop wakes anyway.
                os.write(self._wake_fd, b"\0")

    def completed(self) -> list[tuple[Job, Response | None]]:
        """Return the requests that are complete, each with its response, or None if the application failed."""
        self._woken = False  # Reset first, so that a later response wakes the loop again.
        return [self._completed.popleft() for _ in range(len(self._completed))]


class Threads:
    """Threads that call the application."""

    def __init__(self, caller: Caller, threads: int) -> None:
        """Start the threads."""
        self._caller = caller
        self._changed = threading.Condition()  # guards the queue
        self.queued_jobs: deque[Job] = deque()
        for _ in range(threads):
            # Daemon threads, because a call that is stuck must not delay the end of the process.
            threading.Thread(target=self._work, name="plants.server", daemon=True).start()

    def put(self, job: Job) -> None:
        """Call the application for this request as soon as a thread is free."""
        with self._changed:
            queued = self.queued_jobs
            # Drop requests that were rejected because they waited too long. They are the oldest, at the front.
            while queued and queued[0][0].request is not queued[0][1]:
                queued.popleft()
            queued.append(job)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.queued_jobs)
                job = self.queued_jobs.popleft()
            self._caller.call(job)
            self._caller.begin_work()
            self._caller.wake()
            del job  # Do not hold the last request in memory while waiting.
