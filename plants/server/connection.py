"""One client's connection: what state it is in, and until when it may stay there."""

import contextlib
import socket
from enum import Enum, auto
from selectors import EVENT_READ, EVENT_WRITE
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from typing import Any, Final, Protocol

from plants.server.answer import Answer, to_bytes
from plants.server.request import NO_BODY, Environ, Limits, Refused, Request, check_growing_head

# A worker that stops waits no longer than this for a request on its way, or for a client to close.
STOPPING_SECONDS = 0.25
# RFC 9112, section 9.6: a connection that is closed is still read from, or a reset could destroy the last answer.
_LINGER_SECONDS = 2.0
# A whole TLS record, so that OpenSSL keeps nothing back.
_READ_BYTES = 16384
_NOTHING: Final = memoryview(b"")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Owner(Protocol):
    """What a connection needs of its worker; times are seconds of one clock."""

    cfg: Any
    connections: "set[Connection]"
    limits: Limits
    now: float
    alive: bool
    request_timeout: float
    answer_timeout: float

    def watch(self, connection: "Connection", before: int, events: int) -> None:
        """Wait for other events of the socket than before."""

    def go_on_later(self, connection: "Connection") -> None:
        """Call ``go_on`` when the others have had their turn."""

    def take(self, connection: "Connection", request: Request) -> None:
        """Have a request answered that has arrived whole."""

    def identify(self, request: Request) -> None:
        """Take note of a request."""

    def answered(self, request: Request, answer: Answer) -> None:
        """Take note of an answer."""

    def refusal(self, refused: Refused, request: Request) -> Answer:
        """Give the answer to a request that is refused."""


class State(Enum):
    """What a connection waits for, and what happens at its deadline."""

    OPEN = auto()  # the first byte; then 408
    RECEIVING = auto()  # the rest of a request; then 408
    ANSWERING = auto()  # the application; then 503
    WRITING = auto()  # the client, which reads the answer; then it is closed
    IDLE = auto()  # the next request; then it is closed
    CLOSING = auto()  # the client, which closes in its turn; then it is closed
    CLOSED = auto()  # nothing


# The lookup of a member in its class costs as much as a call.
OPEN, RECEIVING, ANSWERING, WRITING, IDLE, CLOSING, CLOSED = State


class Connection:
    """One connection of a worker.

    The worker calls a method of it only in ``Worker.step``, so that what happens here ends no other connection.
    ``deadline`` is a time of the worker's clock, in seconds; ``counted`` is what the worker counts for it, in bytes.
    """

    __slots__ = (
        "_base", "_closes", "_input", "_is_behind", "_output", "_watched", "_worker",
        "counted", "deadline", "request", "sock", "state",
    )  # fmt: skip

    def __init__(self, worker: Owner, sock: socket.socket, base: Environ) -> None:
        """Wait for the first request; ``base`` is what the environs of all requests have in common."""
        self._worker = worker
        self._base = base
        self._closes = False  # The connection is closed after the answer that is being written.
        self._input = b""  # what was received and is not understood yet
        self._is_behind = False  # There is more in the input that can be read now.
        self._output = _NOTHING  # what could not be sent yet
        self._watched = 0
        self.sock = sock
        self.state = OPEN
        self.deadline = worker.now + (worker.request_timeout if worker.alive else STOPPING_SECONDS)
        self.request: Request | None = None
        self.counted = 0

    def held(self) -> int:
        """Give the number of bytes that are kept for this connection."""
        body = len(self.request.body.content) if self.request else 0
        return body + len(self._input) + len(self._output)

    # What the worker calls

    def watch(self, events: int = EVENT_READ) -> None:
        """Let the worker wait for the client to send, to read, or (0) for neither."""
        if events != self._watched:
            self._worker.watch(self, self._watched, events)
            self._watched = events

    def ready(self) -> None:
        """Go on: the client has sent, or has read."""
        if self.state is WRITING:
            self._send(self._output)
        elif self.state is ANSWERING:
            self.watch(0)  # Not sooner: most clients send nothing now, and are spared two system calls.
        elif not self._is_behind:
            self._receive()

    def go_on(self) -> None:
        """Go on with what was received and could not be read in one step."""
        self._is_behind = False
        if self.state is IDLE or self.state is RECEIVING:
            self._read(self.request or self._begin())

    def answer(self, request: Request, answer: Answer) -> None:
        """Send the answer to a request, unless it has been refused or the client has gone."""
        if self.request is request:
            worker = self._worker
            # A worker that stops still answers what it has received, and takes nothing more.
            is_last = not worker.cfg.keepalive or not (worker.alive or self._input)
            self._reply(request, answer, closes=is_last or not request.keep_alive)

    def refuse(self, refused: Refused) -> None:
        """Answer without the application, and close the connection."""
        if isinstance(self.sock, SSLSocket) and not self.sock.version():
            self.close()  # There is no TLS yet to answer in.
            return
        request = self.request or self._begin()
        if not request.has_head:
            self._worker.identify(request)
        self._reply(request, self._worker.refusal(refused, request), closes=True)

    def expire(self) -> None:
        """End what takes longer than its deadline."""
        if self.state is ANSWERING:
            self.refuse(Refused(503, "The request could not be answered in time."))
        elif self.state is RECEIVING or (self.state is OPEN and self._worker.alive):
            self.refuse(Refused(408))
        else:
            self.close()

    def shed(self) -> None:
        """End what holds the most, since all connections together hold too much."""
        if self.state is RECEIVING:
            self.refuse(Refused(503, "The service is receiving as much as it can hold."))
        else:
            self.close()

    def stop(self) -> None:
        """Take no request after those that have been received."""
        if self.state in {OPEN, IDLE} and not self._input:
            self.deadline = min(self.deadline, self._worker.now + STOPPING_SECONDS)

    def drop(self) -> None:
        """Close the connection unless a request has been received whole."""
        if self.state in {OPEN, RECEIVING, IDLE}:
            self.close()

    def close(self) -> None:
        """Close the connection, and let go of all that is held for it."""
        if self.state is not CLOSED:
            self.state = CLOSED
            self._let_go()
            self._input = b""
            self._output = _NOTHING
            self._worker.connections.discard(self)
            try:
                self.watch(0)
            finally:
                self.sock.close()

    # A request comes in

    def _receive(self) -> None:
        try:
            data = self.sock.recv(_READ_BYTES)
        except (BlockingIOError, SSLWantReadError):
            return
        if not data:
            if self.state is RECEIVING:
                self.refuse(Refused(400))
            else:
                self.close()
        elif self.state is not CLOSING:
            self._input = self._input + data if self._input else data
            self._read(self.request or self._begin())

    def _begin(self) -> Request:
        worker = self._worker
        self.state = RECEIVING
        self.deadline = worker.now + worker.request_timeout
        self.request = Request(self._base, worker.now)
        return self.request

    def _read(self, request: Request) -> None:
        try:
            if request.has_head or self._read_head(request):
                self._read_body(request)
        except Refused as refused:
            self.refuse(refused)

    def _read_head(self, request: Request) -> bool:
        limits = self._worker.limits
        end = self._input.find(b"\r\n\r\n")
        if end < 0:
            check_growing_head(self._input, limits)
            return False
        end += 4
        request.read_head(self._input[:end].decode("latin-1"), limits)
        self._input = self._input[end:]
        self._worker.identify(request)
        return True

    def _read_body(self, request: Request) -> None:
        worker = self._worker
        body = request.body
        limit = worker.limits.body
        given = self._input
        if not body.is_whole and body.size <= limit:
            self._input = body.take(given)
        if body.size > limit:
            # The application is told the length, to refuse the body in its turn: a token is judged first.
            request.environ["CONTENT_LENGTH"] = str(body.size)
            request.body = NO_BODY
            request.keep_alive = False
        elif not body.is_whole:
            if request.awaits_continue and not given:
                self.sock.sendall(_CONTINUE)
            request.awaits_continue = False
            if 0 < len(self._input) < len(given):
                self._is_behind = True
                worker.go_on_later(self)
            return
        elif body.size:
            request.environ["CONTENT_LENGTH"] = str(body.size)
        request.environ["server.stopping"] = not worker.alive
        self.state = ANSWERING
        self.deadline = worker.now + worker.answer_timeout
        worker.take(self, request)

    # An answer goes out

    def _reply(self, request: Request, answer: Answer, *, closes: bool) -> None:
        data = to_bytes(answer, request, closes=closes)
        self._closes = closes
        self._let_go()
        if closes:
            self._input = b""
        self._worker.answered(request, answer)
        self._send(data)

    def _let_go(self) -> None:
        if self.request:
            self.request.body = NO_BODY  # A thread may still refer to the request.
            self.request = None

    def _send(self, data: bytes | memoryview) -> None:
        worker = self._worker
        wanted = EVENT_WRITE
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, SSLWantWriteError):
            sent = 0
        except SSLWantReadError:
            sent, wanted = 0, EVENT_READ
        if sent < len(data):
            self._output = memoryview(data)[sent:]
            if self.state is not WRITING:
                self.state = WRITING
                self.deadline = worker.now + worker.request_timeout
            self.watch(wanted)
            return
        self._output = _NOTHING
        if self._closes:
            self._linger()
        else:
            self.state = IDLE
            self.deadline = worker.now + worker.cfg.keepalive
            if self._input:
                self._is_behind = True
                worker.go_on_later(self)
            self.watch()

    def _linger(self) -> None:
        worker = self._worker
        self.state = CLOSING
        self.deadline = worker.now + (_LINGER_SECONDS if worker.alive else STOPPING_SECONDS)
        if isinstance(self.sock, SSLSocket):
            with contextlib.suppress(OSError):
                self.sock.unwrap()  # This sends TLS's own end; the client's is not waited for.
        self.sock.shutdown(socket.SHUT_WR)
        self.watch()
