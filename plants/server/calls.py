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
        self.waiting: deque[Job] = deque()  # for a thread
        self._seen = 0  # so many waited at the last look
        self._free = 0  # so many threads have nothing to do
        self._batches: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
        self._outcomes: deque[list[Outcome]] = deque()

    def start(self, threads: int) -> None:
        """Start so many threads."""
        self._free = threads
        for _ in range(threads):
            threading.Thread(target=self._work, name="plants.server", daemon=True).start()

    def call(self, request: Request) -> Answer:
        """Give the answer to one request."""
        current.request = request
        try:
            return call_application(self._worker.wsgi, request)
        except (Exception, SystemExit):
            self._worker.log.exception("the application failed")
            return self._failed(request)
        finally:
            current.request = None

    def _failed(self, request: Request) -> Answer:
        request.keep_alive = False
        return self._worker.refusal(Refused(500), request)

    def can_start(self) -> bool:
        """Say whether requests wait, and a thread is free."""
        return bool(self.waiting and self._free)

    def start_batches(self, now: float) -> None:
        """Pass the requests that wait to the threads that are free, once no more come right after them."""
        waiting = self.waiting
        # Forget requests that were refused because they waited too long: the oldest come first.
        while waiting and not is_awaited(waiting[0]):
            waiting.popleft()
        more_come = len(waiting) > self._seen and now < waiting[0][1].started + _GATHER_SECONDS
        while waiting and self._free and not more_come:
            self._free -= 1
            jobs = [waiting.popleft() for _ in range(min(len(waiting), self._worker.most_together))]
            self._batches.put([job for job in jobs if is_awaited(job)])
        self._seen = len(waiting)

    def outcomes(self) -> Iterator[Outcome]:
        """Give the answers that the threads have finished."""
        self._is_woken = False  # Reset first, so that a later answer wakes the worker again.
        while self._outcomes:
            self._free += 1
            yield from self._outcomes.popleft()

    def _work(self) -> None:
        while True:
            jobs = self._batches.get()
            answers = self._call_together([request for _, request in jobs])
            self._outcomes.append([(*job, answer) for job, answer in zip(jobs, answers, strict=True)])
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
