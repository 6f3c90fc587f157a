"""The calls of the application: where each is made, and what its response waits for. Every queue and thread is here.

In: ``put`` queues complete exchanges. If one is over before its call begins, the call never begins.
Out: ``completed`` returns each exchange whose response is ready. If the call has left work in ``server.pending``, it is
over, but its response waits for the work: no thread does. Only the loop's thread begins the work, and any thread
reports its outcome by ``done``. A byte in a pipe wakes the loop. The queues ``in_loop`` wait for ``call_in_loop``.
"""

import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final

from plants.server.config import SMALL_BODY_BYTES
from plants.server.exchange import Exchange, current
from plants.server.response import make_response

_FIRST_ERROR: Final = 400  # the lowest status of an error
_MAX_CALL_SECONDS: Final = 0.1  # for the calls in the loop, per iteration


class Calls:
    """The queues of exchanges that wait for their calls, or are complete."""

    def __init__(self, threads: int, log: Any, wake_fd: int) -> None:
        """Start the threads; if ``threads`` is 0, the loop makes all calls.

        :param wake_fd: a byte is written to it if an exchange is completed outside the loop's thread.
        """
        self._log = log
        self._wake_fd = wake_fd
        self._woken = False
        self._outcomes: deque[list[tuple[Any, BaseException | None]]] = deque()
        # Exchanges do not wait behind slower ones: those that never block, those of strangers, and those with a large
        # body have queues of their own.
        self._others = Queue(self, threads)
        self._public = Queue(self, min(threads, 1))
        self._quick = Queue(self, 1) if threads else self._public
        self._large = Queue(self, min(threads, 1))
        queues = (self._public, self._others, self._large)
        self.in_loop: list[deque[Exchange]] = [deque() if threads else queue.exchanges for queue in queues]

    def put(self, exchanges: list[Exchange]) -> None:
        """Call the application for complete requests: soon in the loop, or when a thread is free."""
        for exchange in exchanges:
            if not exchange.blocks:
                self._quick.put(exchange)
            elif exchange.public:
                self._public.put(exchange)
            elif len(exchange.body.content) > SMALL_BODY_BYTES:
                self._large.put(exchange)
            else:
                self._others.put(exchange)

    def call_in_loop(self) -> None:
        """Make calls that wait for the loop's thread, for a limited time."""
        # First call, then respond, so that the code of each stays in the CPU cache. Also, a response wakes its client,
        # which may preempt this process. Sending all in a row makes this rarer.
        until = time.monotonic() + _MAX_CALL_SECONDS
        *small, large = self.in_loop
        while any(small) and time.monotonic() < until:
            for exchanges in small:  # They take turns, so that no flood of one delays the other.
                if exchanges:
                    self.call(exchanges.popleft())
        if large:  # Only one, because parsing a mebibyte may take 20 ms.
            self.call(large.popleft())

    def call(self, exchange: Exchange) -> None:
        """Call the application for an exchange, unless it is over. Any thread may do so."""
        body = exchange.body.content  # Get it before the check, because the end of an exchange drops it.
        if exchange.over:
            return
        current.request = exchange
        try:
            exchange.response = exchange.call(body)
        except BaseException:  # A CancelledError or a SystemExit must end neither the loop nor a thread.
            self._log.exception("the application failed")
        current.request = None
        self._outcomes.append([(exchange, None)])

    def completed(self) -> list[Exchange]:
        """Start all pending work, so that one commit can include it; return the exchanges that are complete."""
        self._woken = False  # Reset first, so that a later outcome wakes the loop again.
        completed: list[Exchange] = []
        while self._outcomes:
            for exchange, error in self._outcomes.popleft():
                response = exchange.response
                if error:
                    self._fail(exchange, error)
                elif exchange.pending and response and response.status < _FIRST_ERROR:
                    self._begin(exchange)
                    continue
                completed.append(exchange)
        return completed

    def _begin(self, exchange: Exchange) -> None:
        """Begin the next pending work of an exchange, unless the exchange is over."""
        if not exchange.over:
            try:
                begin, exchange.fail = exchange.pending.pop(0)
                begin(self.done, exchange)
            except BaseException as error:
                self._outcomes.append([(exchange, error)])

    def _fail(self, exchange: Exchange, error: BaseException) -> None:
        current.request = exchange  # so that a line in the log has its id
        exchange.response = None
        try:
            exchange.response = make_response(exchange, *exchange.fail(error))
        except BaseException:
            self._log.exception("the response to a failure failed")
        current.request = None

    def done(self, outcomes: list[tuple[Any, BaseException | None]]) -> None:
        """Report the outcomes of work: of each exchange, why it failed, or None. Any thread may do so."""
        # If the reporter has passed something else, it fails here, and not the loop.
        self._outcomes.append([(exchange, error) for exchange, error in outcomes if not exchange.over])
        self.wake()

    def wake(self) -> None:
        """Wake the loop, because an exchange may be complete."""
        if not self._woken:
            self._woken = True
            with suppress(BlockingIOError):  # If the pipe is full, the loop wakes anyway.
                os.write(self._wake_fd, b"\0")


class Queue:
    """A queue of exchanges, and the threads that call the application for them; without threads, the loop does."""

    def __init__(self, calls: Calls, threads: int) -> None:
        """Start the threads."""
        self.exchanges: deque[Exchange] = deque()
        self._calls = calls
        self._threads = threads
        self._changed = threading.Condition()  # guards the queue, if there are threads
        for _ in range(threads):
            # Daemon threads, because a call that is stuck must not delay the end of the process.
            threading.Thread(target=self._work, name="plants.server", daemon=True).start()

    def put(self, exchange: Exchange) -> None:
        """Add an exchange."""
        if not self._threads:
            self.exchanges.append(exchange)
            return
        with self._changed:
            # Drop the exchanges that are over because they waited too long. They are the oldest, at the front.
            while self.exchanges and self.exchanges[0].over:
                self.exchanges.popleft()
            self.exchanges.append(exchange)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.exchanges)
                exchange = self.exchanges.popleft()
            self._calls.call(exchange)
            self._calls.wake()
            del exchange  # Do not hold the last request in memory while waiting.
