"""Calls the application: in the loop, or in threads that answer many requests at a time."""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from plants.server.answer import Answer, WSGIApplication, call_application
from plants.server.connection import Connection
from plants.server.request import Refused, Request

_GATHER_SECONDS = 0.005  # A request waits no longer for others.

Job = tuple[Connection, Request]
Outcome = tuple[Connection, Request, Answer]


def is_awaited(job: Job) -> bool:
    """Say whether a client still waits for this answer: a request that waited too long has been refused."""
    return job[0].request is job[1]


class _Worker(Protocol):
    log: Any
    wsgi: WSGIApplication
    most_together: int

    def refusal(self, refused: Refused, request: Request) -> Answer: ...
    def together(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]: ...


class _Current(threading.local):
    request: Request | None = None


# The request that this thread answers.
current: Final = _Current()


class Calls:
    """Calls a worker's application. Each call gives an answer, even if the application fails."""

    def __init__(self, worker: _Worker, wake_fd: int) -> None:
        """Threads write a byte to ``wake_fd`` when they have outcomes."""
        self._worker = worker
        self._wake_fd = wake_fd
        self._is_woken = False
        self._lock = threading.Lock()
        self.gathered: list[Job] = []  # requests for the threads, which may become one batch
        self._seen = 0  # so many of them were there at the last look
        self._waiting: deque[Job] = deque()
        self._turns: queue.SimpleQueue[None] = (
            queue.SimpleQueue()
        )  # one item for each look at what waits that a thread must take
        self._outcomes: deque[Outcome] = deque()

    def start(self, threads: int) -> None:
        """Start so many threads."""
        for _ in range(threads):
            threading.Thread(target=self._work, name="plants.server", daemon=True).start()

    def call(self, request: Request) -> Answer:
        """Give the answer to one request."""
        current.request = request
        try:
            return call_application(self._worker.wsgi, request)
        except (Exception, SystemExit):
            self._worker.log.exception("the application failed", extra={"environ": request.environ})
            return self._failed(request)
        finally:
            current.request = None

    def _failed(self, request: Request) -> Answer:
        request.keep_alive = False
        return self._worker.refusal(Refused(500), request)

    def pass_on(self, now: float) -> None:
        """Pass the gathered requests to the threads, once no more come right after them."""
        jobs, seen = self.gathered, self._seen
        self._seen = len(jobs)
        if not jobs or (seen < len(jobs) and now < jobs[0][1].started + _GATHER_SECONDS):
            return
        self.gathered, self._seen = [], 0
        with self._lock:
            # Forget requests that were refused because they waited too long: the oldest come first.
            while self._waiting and not is_awaited(self._waiting[0]):
                self._waiting.popleft()
            self._waiting.extend(jobs)
        for _ in range(0, len(jobs), self._worker.most_together):
            self._turns.put(None)

    def outcomes(self) -> Iterator[Outcome]:
        """Give the answers that the threads have finished."""
        self._is_woken = False  # Reset first, so that a later answer wakes the worker again.
        while self._outcomes:
            yield self._outcomes.popleft()

    def _work(self) -> None:
        while True:
            self._turns.get()
            with self._lock:
                count = min(len(self._waiting), self._worker.most_together)
                jobs = [job for job in (self._waiting.popleft() for _ in range(count)) if is_awaited(job)]
            if not jobs:
                continue
            answers = self._call_together([request for _, request in jobs])
            self._outcomes.extend((*job, answer) for job, answer in zip(jobs, answers, strict=True))
            del jobs, answers  # Do not keep the last requests in memory while waiting.
            if not self._is_woken:
                self._is_woken = True
                with suppress(BlockingIOError):  # If the pipe is full, the worker wakes anyway.
                    os.write(self._wake_fd, b"\0")

    def _call_together(self, requests: Sequence[Request]) -> list[Answer]:
        try:
            answers = self._worker.together([partial(self.call, request) for request in requests])
            if len(answers) != len(requests):
                raise ValueError(f"there are {len(answers)} answers to {len(requests)} requests")
        except Exception:
            self._worker.log.exception("the application failed for %d requests together", len(requests))
            return [self._failed(request) for request in requests]
        return answers
