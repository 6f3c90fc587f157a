"""The threads that call an application which waits, many requests at a time."""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from plants.server.answer import Answer
from plants.server.connection import Connection
from plants.server.request import Request

Job = tuple[Connection, Request]
Outcome = tuple[Connection, Request, Answer]


class Threads:
    """Threads that answer requests, and say so by a byte in a pipe."""

    def __init__(self, count: int, most: int, run: Callable[[Sequence[Request]], list[Answer]], wake_fd: int) -> None:
        """Start the threads.

        :param most: about how many requests ``run`` gets at the most.
        :param run: gives the answers to some requests, in order; it never fails.
        :param wake_fd: where a byte is written when there are outcomes.
        """
        self._most = most
        self._run = run
        self._wake_fd = wake_fd
        self._jobs: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
        self._outcomes: deque[Outcome] = deque()
        self._is_woken = False
        for _ in range(count):
            threading.Thread(target=self._work, name="plants.server", daemon=True).start()

    def put(self, jobs: list[Job]) -> None:
        """Let the threads answer requests."""
        for start in range(0, len(jobs), self._most):
            self._jobs.put(jobs[start : start + self._most])

    def outcomes(self) -> Iterator[Outcome]:
        """Give the answers that there are."""
        self._is_woken = False  # First, so that an answer that comes from here on wakes the worker again.
        while self._outcomes:
            yield self._outcomes.popleft()

    def _work(self) -> None:
        while True:
            # A request that was refused in the meantime, since it had waited for too long, is not carried out.
            jobs = [job for job in self._take() if job[0].request is job[1]]
            answers = self._run([request for _, request in jobs])
            self._outcomes.extend((*job, answer) for job, answer in zip(jobs, answers, strict=True))
            del jobs, answers  # What has been answered is not kept while this waits.
            if not self._is_woken:
                self._is_woken = True
                with suppress(BlockingIOError):  # A full pipe wakes the worker too.
                    os.write(self._wake_fd, b"\0")

    def _take(self) -> list[Job]:
        jobs = self._jobs.get()
        with suppress(queue.Empty):
            while len(jobs) < self._most:
                jobs += self._jobs.get_nowait()
        return jobs
