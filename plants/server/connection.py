"""One client's connection: its state, and its deadline in that state."""

import contextlib
import socket
from collections import deque
from selectors import EVENT_READ, EVENT_WRITE
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from typing import Final, Protocol

from plants.server.answer import Answer, to_bytes
from plants.server.request import NO_BODY, Environ, Limits, Refused, Request, check_growing_head

# How long a worker that stops waits for a new request, or for a client to close.
STOPPING_SECONDS: Final = 0.25
# RFC 9112, section 9.6: the server still reads for a while after the last answer, or a reset could destroy it.
_LINGER_SECONDS = 2.0
# A whole TLS record, so that nothing stays in OpenSSL's buffer.
_READ_BYTES = 16384
_NOTHING: Final = memoryview(b"")


class _Worker(Protocol):
    """What a connection needs of its worker; ``now`` and all other times are seconds of one clock."""

    connections: "set[Connection]"
    later: "deque[Connection]"
    limits: Limits
    now: float
    alive: bool
    keepalive: float
    request_timeout: float
    answer_timeout: float

    def watch(self, connection: "Connection", before: int, events: int) -> None: ...
    def take(self, connection: "Connection", request: Request) -> None: ...
    def identify(self, request: Request) -> None: ...
    def answered(self, request: Request, answer: Answer) -> None: ...
    def refusal(self, refused: Refused, request: Request) -> Answer: ...


# What a connection waits for; after the semicolon, what happens at the deadline.
OPEN: Final = "open"  # the first byte; 408
RECEIVING: Final = "receiving"  # the rest of a request; 408
ANSWERING: Final = "answering"  # the application; 503
WRITING: Final = "writing"  # the client, which reads the answer; the connection is closed
IDLE: Final = "idle"  # the next request; the connection is closed
CLOSING: Final = "closing"  # the client, which closes in its turn; the connection is closed
CLOSED: Final = "closed"  # nothing


class Connection:
    """One connection of a worker.

    The worker calls each method in one guarded step, so a failure here ends no other connection.
    ``deadline`` is a time of the worker's clock; ``counted`` is what the worker counts for it, in bytes.
    """

    def __init__(self, worker: _Worker, sock: socket.socket, base: Environ) -> None:
        """Wait for the first request; ``base`` has the environ keys that all requests of the connection share."""
        self.sock = sock
        self.state: str = OPEN
        self.deadline: float = worker.now + (worker.request_timeout if worker.alive else STOPPING_SECONDS)
        self.request: Request | None = None
        self.counted: int = 0
        self._worker = worker
        self._base = base
        self._input = b""  # bytes received and not parsed yet
        self._has_more = False  # The input has more that can be parsed now.
        self._output = _NOTHING  # bytes that the socket did not take yet
        self._closes = False  # The connection is closed after the answer that is being sent.
        self._watched = 0

    def held(self) -> int:
        """Give the number of bytes that are kept for this connection."""
        return len(self._input) + len(self._output) + (len(self.request.body.content) if self.request else 0)

    # What the worker calls

    def watch(self, events: int = EVENT_READ) -> None:
        """Ask the worker to watch the socket for these events (0: none)."""
        if events != self._watched:
            self._worker.watch(self, self._watched, events)
            self._watched = events

    def ready(self) -> None:
        """Continue: the socket is readable or writable."""
        if self.state == WRITING:
            self._send(self._output)
        elif self.state == ANSWERING:
            self.watch(0)  # Only now: most clients send nothing before the answer, and cost two system calls less.
        elif not self._has_more:
            self._receive()

    def parse_more(self) -> None:
        """Continue parsing received bytes that did not fit into one step."""
        self._has_more = False
        if self.state in {IDLE, RECEIVING}:
            self._read_next()

    def answer(self, request: Request, answer: Answer) -> None:
        """Send the answer, unless the request was refused meanwhile or the client has gone."""
        if self.request is request:
            worker = self._worker
            # A worker that stops answers what it has received, then closes.
            is_last = not worker.keepalive or not (worker.alive or self._input)
            self._reply(request, answer, closes=is_last or not request.keep_alive)

    def refuse(self, refused: Refused) -> None:
        """Send a refusal and close the connection."""
        if isinstance(self.sock, SSLSocket) and not self.sock.version():
            self.close()  # The TLS handshake is not finished, so no answer can be sent.
            return
        request = self.request or self._begin()
        if not request.has_head:
            self._worker.identify(request)
        self._reply(request, self._worker.refusal(refused, request), closes=True)

    def expire(self) -> None:
        """Act on a missed deadline: 503, 408, or close."""
        if self.state == ANSWERING:
            self.refuse(Refused(503, "The request could not be answered in time."))
        elif self.state == RECEIVING or (self.state == OPEN and self._worker.alive):
            self.refuse(Refused(408))
        else:
            self.close()

    def free_memory(self) -> None:
        """Free this connection's memory, because all connections together hold too much."""
        if self.state == RECEIVING:
            self.refuse(Refused(503, "The service is receiving as much as it can hold."))
        else:
            self.close()

    def stop(self, *, at_once: bool) -> None:
        """Accept no new request; if ``at_once``, drop requests that have not arrived whole."""
        if at_once and self.state in {OPEN, RECEIVING, IDLE}:
            self.close()
        elif self.state in {OPEN, IDLE} and not self._has_more:
            self.deadline = min(self.deadline, self._worker.now + STOPPING_SECONDS)

    def close(self) -> None:
        """Close the connection and free everything kept for it."""
        if self.state != CLOSED:
            self.state = CLOSED
            self._drop_request()
            self._input, self._output = b"", _NOTHING
            self._worker.connections.discard(self)
            with contextlib.suppress(Exception):  # The socket must be closed whatever fails here.
                self.watch(0)
            self.sock.close()

    # A request comes in

    def _receive(self) -> None:
        try:
            data = self.sock.recv(_READ_BYTES)
        except (BlockingIOError, SSLWantReadError):
            return
        if data:
            if self.state != CLOSING:
                self._input = self._input + data if self._input else data
                self._read_next()
        elif self.state == RECEIVING:
            self.refuse(Refused(400))
        else:
            self.close()

    def _read_next(self) -> None:
        if self.request is None and b"\r\n".startswith(self._input):
            return  # RFC 9112, section 2.2: some clients send an empty line after a request, which begins no other.
        request = self.request or self._begin()
        try:
            if request.has_head or self._read_head(request):
                self._read_body(request)
        except Refused as refused:
            self.refuse(refused)

    def _begin(self) -> Request:
        worker = self._worker
        self.state = RECEIVING
        self.deadline = worker.now + worker.request_timeout
        self.request = Request(self._base, worker.now)
        return self.request

    def _read_head(self, request: Request) -> bool:
        limits = self._worker.limits
        end = self._input.find(b"\r\n\r\n")
        if end < 0:
            check_growing_head(self._input, limits)
            return False
        request.read_head(self._input[: end + 4].decode("latin-1"), limits)
        self._input = self._input[end + 4 - request.body.overlap :]
        self._worker.identify(request)
        return True

    def _read_body(self, request: Request) -> None:
        worker = self._worker
        body = request.body
        limit = worker.limits.body
        before = len(self._input)
        if not body.is_whole and body.size <= limit:
            self._input = body.take(self._input)
        if body.size <= limit and not body.is_whole:
            if request.awaits_continue and before == body.overlap:
                self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.awaits_continue = False
            if 0 < len(self._input) < before:
                self._parse_later()
            return
        if body.size:
            request.environ["CONTENT_LENGTH"] = str(body.size)
        if body.size > limit:
            # The application gets the length and no body, so that it judges the token before the size.
            request.body = NO_BODY
            request.keep_alive = False
        request.environ["server.stopping"] = not worker.alive
        self.state = ANSWERING
        self.deadline = worker.now + worker.answer_timeout
        worker.take(self, request)

    def _parse_later(self) -> None:
        self._has_more = True
        self._worker.later.append(self)

    # An answer goes out

    def _reply(self, request: Request, answer: Answer, *, closes: bool) -> None:
        data = to_bytes(answer, request, closes=closes)
        self._closes = closes
        self._drop_request()
        if closes:
            self._input = b""
        self._worker.answered(request, answer)
        self._send(data)

    def _drop_request(self) -> None:
        if self.request:
            self.request.body = NO_BODY  # A thread may still hold the request; free its body now.
            self.request = None

    def _send(self, data: bytes | memoryview) -> None:
        worker = self._worker
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, SSLWantWriteError):
            sent = 0
        if sent < len(data):
            self._output = memoryview(data)[sent:]
            if self.state != WRITING:
                self.state = WRITING
                self.deadline = worker.now + worker.request_timeout
            self.watch(EVENT_WRITE)
            return
        self._output = _NOTHING
        if self._closes:
            self._linger()
        else:
            self.state = IDLE
            self.deadline = worker.now + worker.keepalive
            if self._input:
                self._parse_later()
            self.watch()

    def _linger(self) -> None:
        worker = self._worker
        self.state = CLOSING
        self.deadline = worker.now + (_LINGER_SECONDS if worker.alive else STOPPING_SECONDS)
        if isinstance(self.sock, SSLSocket):
            with contextlib.suppress(OSError):
                self.sock.unwrap()  # Send TLS's close_notify; do not wait for the client's.
        self.sock.shutdown(socket.SHUT_WR)
        self.watch()
