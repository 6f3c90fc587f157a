"""One client's connection: its state, and the deadline of that state."""

import contextlib
import socket
from collections import deque
from select import POLLIN, POLLOUT
from typing import Any, Final

from plants.server.request import NO_BODY, Environ, HTTPError, Limits, Listener, Request, Timeouts, check_growing_head
from plants.server.response import Response, to_bytes
from plants.server.service import Service
from plants.server.tls import READ_BYTES, TLS

# While the worker stops, it waits this long for a new request, and for a client to close.
STOPPING_SECONDS: Final = 0.25
# RFC 9112, section 9.6: after the last response the server continues to read, because a reset could destroy the
# response. It closes the connection after this long without input, and at the latest after the request timeout.
_LINGER_SECONDS: Final = 2.0
_MAX_ENCRYPTED_BYTES: Final = 16384  # one TLS record; the next is encrypted after the socket has accepted this one
_EMPTY: Final = memoryview(b"")

# The states: what the connection waits for -> what the server does at the deadline.
OPEN: Final = "open"  # first byte -> respond with 408; while stopping or in the TLS handshake, close
RECEIVING: Final = "receiving"  # rest of the request -> respond with 408
RESPONDING: Final = "responding"  # application -> respond with 503
WRITING: Final = "writing"  # client to read the response -> close
IDLE: Final = "idle"  # next request -> close
CLOSING: Final = "closing"  # client to close its side -> close
CLOSED: Final = "closed"  # nothing


class Shared:
    """State that all connections of an event loop share.

    ``poll`` is a ``select.epoll`` or ``select.poll`` object, and ``handlers`` maps the file descriptors that it watches
    to what handles their events. ``now`` is the time of the current iteration (``time.monotonic()``).
    ``unfinished_connections`` have received bytes that are not parsed yet, because one step parses little.
    ``ready_requests`` have arrived completely, or have a body that is too large.
    """

    def __init__(self, poll: Any, service: Service, limits: Limits, timeouts: Timeouts) -> None:
        self.poll = poll
        self.handlers: dict[int, Any] = {}
        self.service = service
        self.limits = limits
        self.timeouts = timeouts
        self.now: float = 0.0
        self.stopping: bool = False
        self.connections: set[Connection] = set()
        # Connections that wait for their client, the longest inactive first. A client is active when it completes a
        # head, sends part of a body, or reads part of a response.
        self.connections_waiting_for_client: dict[Connection, None] = {}
        self.unfinished_connections: deque[Connection] = deque()
        self.ready_requests: list[tuple[Connection, Request]] = []

    def watch(self, descriptor: int, events: int, handler: Any) -> None:
        """Watch a file descriptor for these events (0: none)."""
        if not events:
            del self.handlers[descriptor]
            self.poll.unregister(descriptor)
        elif descriptor in self.handlers:
            self.poll.modify(descriptor, events)
        else:
            self.poll.register(descriptor, events)
            self.handlers[descriptor] = handler


class Connection:
    """One connection of an event loop.

    The loop calls each method in one guarded step, so a failure here closes no other connection. ``deadline`` is a time
    like ``Shared.now``; ``counted_bytes`` is this connection's part of the buffered bytes that the loop has counted.
    """

    def __init__(
        self, shared: Shared, listener: Listener, sock: socket.socket, base: Environ, tls: TLS | None = None
    ) -> None:
        """Wait for the first request; ``base`` has the environ keys that all requests of the connection share."""
        self.sock = sock
        self.state: str = OPEN
        self.deadline: float = shared.now + (STOPPING_SECONDS if shared.stopping else shared.timeouts.request)
        self.request: Request | None = None
        self.counted_bytes: int = 0
        self._shared = shared
        self._listener = listener
        self._base = base
        self._input: bytes = b""  # received and not parsed yet
        self._unfinished: bool = False
        self._tls = tls
        shared.connections_waiting_for_client[self] = None
        self._response: memoryview = _EMPTY  # not sent, and not encrypted yet
        self._output: bytes | memoryview = b""  # not accepted by the socket yet
        self._linger_until: float = 0.0
        self._close_after_response: bool = False
        self._watched_events: int = 0

    def buffered_bytes(self) -> int:
        """Return the number of bytes that this connection holds in memory."""
        body = len(self.request.body.content) if self.request else 0
        return len(self._input) + body + len(self._response) + len(self._output)

    # Called by the loop

    def watch(self, events: int = POLLIN) -> None:
        """Watch the socket for these events (0: none)."""
        if events != self._watched_events:
            self._watched_events = events
            self._shared.watch(self.sock.fileno(), events, self)

    def ready(self) -> None:
        """Continue, because the socket is readable or writable."""
        if self._output:
            self._flush()
        elif self.state == RESPONDING:
            # Unwatch the socket only now. Few clients send before the response, so most requests save two system calls.
            self.watch(0)
        elif not self._unfinished:
            self._receive()

    def parse_more(self) -> None:
        """Continue with received bytes that did not fit into one step."""
        self._unfinished = False
        if self.state in (IDLE, RECEIVING):
            self._parse()

    def respond(self, request: Request, response: Response) -> None:
        """Send the response, unless the request was rejected meanwhile or the client has gone."""
        if self.request is request:
            shared = self._shared
            # If the worker stops or the client has ended TLS, respond to what has been received, then close.
            ended = shared.stopping or (self._tls is not None and self._tls.closed)
            last = not shared.timeouts.keepalive or (ended and not self._input)
            self._finish_request(request, response, close=last or not request.keep_alive)

    def reject(self, error: HTTPError) -> None:
        """Send an error response and close the connection."""
        if self._tls and not self._tls.established:
            self.close()  # Before the TLS handshake is complete, no response can be sent.
            return
        request = self.request or self._begin_request()
        if not request.head_parsed:
            # The response to a malformed or incomplete HEAD request has no body, either (RFC 9110, section 9.3.2).
            if self._input.startswith((b"HEAD ", b"\r\nHEAD ")):
                request.method = "HEAD"
            self._shared.service.after_head(request)
        self._finish_request(request, self._shared.service.error_response(error, request), close=True)

    def expire(self) -> None:
        """Handle a missed deadline: 503, 408, or close."""
        if self.state in (OPEN, IDLE) and not self._unfinished:
            self.ready()  # The request may have arrived while this process was not scheduled.
            if self.state not in (OPEN, IDLE):
                return
        if self.state == RESPONDING:
            self.reject(HTTPError(503, "The request could not be answered in time."))
        elif self.state == RECEIVING or (self.state == OPEN and not self._shared.stopping):
            self.reject(HTTPError(408))
        else:
            if self.state == IDLE:
                self._send_close_notify()
            self.close()

    def shed(self) -> None:
        """Reject the request or close the connection, because all connections together hold too much memory."""
        if self.state == RECEIVING:
            self.reject(HTTPError(503, "The service is receiving as much as it can hold."))
        else:
            self.close()

    def stop(self, *, at_once: bool) -> None:
        """Wait at most STOPPING_SECONDS for a new request; if ``at_once``, drop one that has not arrived completely."""
        if at_once and self.state in (OPEN, RECEIVING, IDLE):
            self.close()
        elif self.state in (OPEN, IDLE) and not self._unfinished:
            self.deadline = min(self.deadline, self._shared.now + STOPPING_SECONDS)

    def close(self) -> None:
        """Close the connection and release everything that it holds."""
        if self.state != CLOSED:
            self.state = CLOSED
            self._drop_request()
            self._input = b""
            self._response = _EMPTY
            self._output = b""
            self._shared.connections.discard(self)
            self._shared.connections_waiting_for_client.pop(self, None)
            with contextlib.suppress(Exception):  # The socket must be closed, even if this fails.
                self.watch(0)
            self.sock.close()

    # Receiving a request

    def _receive(self) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        if self.state == CLOSING and data:
            self.deadline = min(self._shared.now + _LINGER_SECONDS, self._linger_until)
            return
        tls = self._tls
        if tls and data:
            data = self._decrypt(tls, data)
            if not data and not tls.closed:
                return
        if data:
            self._input = self._input + data if self._input else data
            self._parse()
        elif self.state == RECEIVING:
            self.reject(HTTPError(400))
        else:
            self.close()
        # In the state RESPONDING, the response also flushes the pending TLS records.
        if tls and self.state != RESPONDING:
            self._flush_tls(tls)

    def _decrypt(self, tls: TLS, ciphertext: bytes) -> bytes:
        handshaking = not tls.established
        data = b""
        try:
            data = tls.receive(ciphertext)
            if handshaking and tls.established and not data:
                self._receive()  # A request often follows the handshake at once.
        finally:
            if not data and self.state != RESPONDING:
                self._flush_tls(tls)
        return data

    def _flush_tls(self, tls: TLS) -> None:
        """Send the next flight of the handshake, an alert or the answer to a KeyUpdate.

        The server receives nothing more until the socket has accepted these bytes, so the pending output stays small.
        """
        if pending := tls.data_to_send():
            self._output = pending
            self._flush()

    def _parse(self) -> None:
        if self.request is None and b"\r\n".startswith(self._input):
            return  # Some clients send an empty line after a request (RFC 9112, section 2.2). It begins no request.
        request = self.request or self._begin_request()
        try:
            if request.head_parsed or self._parse_head(request):
                self._parse_body(request)
        except HTTPError as error:
            self.reject(error)

    def _begin_request(self) -> Request:
        shared = self._shared
        self.state = RECEIVING
        self.deadline = shared.now + shared.timeouts.request
        self.request = request = Request(self._listener, self._base, shared.now)
        return request

    def _parse_head(self, request: Request) -> bool:
        limits = self._shared.limits
        end = self._input.find(b"\r\n\r\n")
        if end < 0:
            check_growing_head(self._input, limits)
            return False
        request.parse_head(self._input[: end + 4].decode("latin-1"), limits)
        self._input = self._input[end + 4 - request.body.overlap :]
        self._shared.service.after_head(request)
        return True

    def _parse_body(self, request: Request) -> None:
        shared = self._shared
        body = request.body
        limit = shared.limits.body_bytes
        unread_bytes = len(self._input)
        if not body.complete and body.size <= limit:
            self._input = body.feed(self._input)
        if body.size <= limit and not body.complete:
            # Send 100 Continue only if nothing of the body has arrived yet, not even with the head.
            if request.awaits_continue and unread_bytes == body.overlap:
                self._response = memoryview(b"HTTP/1.1 100 Continue\r\n\r\n")
                self._flush()
            request.awaits_continue = False
            if 0 < len(self._input) < unread_bytes:
                self._parse_later()
            self._note_activity()
            return
        if body.size:
            request.environ["CONTENT_LENGTH"] = str(body.size)
        if body.size > limit:
            # The application gets the length without the body, so it can check a token before it rejects the size.
            request.body = NO_BODY
            request.keep_alive = False
        request.environ["server.stopping"] = shared.stopping
        self.state = RESPONDING
        del shared.connections_waiting_for_client[self]
        self.deadline = shared.now + shared.timeouts.response
        shared.ready_requests.append((self, request))

    def _parse_later(self) -> None:
        self._unfinished = True
        self._shared.unfinished_connections.append(self)

    # Sending a response

    def _finish_request(self, request: Request, response: Response, *, close: bool) -> None:
        data = to_bytes(response, request, close=close)
        self._close_after_response = close
        self._drop_request()
        if close:
            self._input = b""
        self._shared.service.before_response(request, response)
        if self._tls or self._output:
            self._response = memoryview(data)
        else:
            self._output = data
        self.state = WRITING
        self.deadline = self._shared.now + self._shared.timeouts.request
        self._flush()

    def _drop_request(self) -> None:
        if self.request:
            self.request.body = NO_BODY  # A thread may still hold the request; release its body now.
            self.request = None

    def _flush(self) -> None:
        """Send as much as the socket accepts. After a response, wait for the next request, or close."""
        shared = self._shared
        while self._output or self._response:
            if not self._output:
                self._encrypt()
            try:
                sent = self.sock.send(self._output)
            except BlockingIOError:
                sent = 0
            if sent < len(self._output):
                self._output = memoryview(self._output)[sent:]
                if self.state == WRITING:
                    self._note_activity()
                self.watch(POLLOUT)
                return
            self._output = b""
        if self.state != WRITING:
            self.watch()
        elif self._close_after_response:
            self._linger()
        else:
            self.state = IDLE
            self.deadline = shared.now + shared.timeouts.keepalive
            shared.connections_waiting_for_client[self] = None
            if self._input:
                self._parse_later()
            self.watch()

    def _note_activity(self) -> None:
        """Note that the client is active. If the worker is full, the loop closes the longest inactive connection."""
        waiting = self._shared.connections_waiting_for_client
        waiting.pop(self, None)
        waiting[self] = None

    def _encrypt(self) -> None:
        tls = self._tls
        if tls:
            tls.send(self._response[:_MAX_ENCRYPTED_BYTES])
            self._output = tls.data_to_send()
            self._response = self._response[_MAX_ENCRYPTED_BYTES:]
        else:
            self._output, self._response = self._response, _EMPTY

    def _linger(self) -> None:
        shared = self._shared
        self.state = CLOSING
        self._note_activity()
        self._linger_until = shared.now + (STOPPING_SECONDS if shared.stopping else shared.timeouts.request)
        self.deadline = min(shared.now + _LINGER_SECONDS, self._linger_until)
        self._send_close_notify()
        self.sock.shutdown(socket.SHUT_WR)
        self.watch()

    def _send_close_notify(self) -> None:
        if self._tls:
            self._tls.close()
            with contextlib.suppress(OSError):  # A client that reads nothing does not get it.
                self.sock.send(self._tls.data_to_send())
