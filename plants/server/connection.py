"""One client's connection: its state, and the deadline of that state.

In: bytes from the socket. They become a ``Request``, which goes to ``Shared.ready_requests`` when it is complete.
Out: the ``Response`` that the loop passes to ``respond``, or that of the service to an ``HTTPError``.
The loop calls ``ready`` for each event of the socket, ``continue_reading`` for each of ``unfinished_connections``,
``expire`` after ``deadline``, and ``respond``, ``reject``, ``stop`` and ``close``: all in the loop's thread, each
inside ``Loop.step``. One step reads, parses or sends a bounded amount. The service's hook ``after_head`` decides
whether the body is kept. What a connection holds is bounded in each state; see ``bounds``.
"""

import contextlib
import socket
import time
from ssl import SSLError
from typing import Any, Final

from plants.server.bounds import SMALL_BODY_BYTES, SMALL_RESPONSE_BYTES, Config, network_of
from plants.server.poll import READABLE, WRITABLE, SystemPoll
from plants.server.request import NO_BODY, Environ, HTTPError, Listener, Request, check_growing_head
from plants.server.response import Response, to_bytes
from plants.server.service import Service
from plants.server.tls import READ_BYTES, TLS

FULL: Final = (503, "The service has too many connections.")
# While the worker stops, it waits this long for a new request, and for a client to close.
STOPPING_SECONDS: Final = 0.25

# The states: what a connection waits for; the states that may follow, besides CLOSED; what it does at its deadline.
OPEN: Final = "open"  # the first request; RECEIVING; closes
RECEIVING: Final = "receiving"  # the rest of the request; RESPONDING, WRITING; responds with 408
RESPONDING: Final = "responding"  # the application; WRITING; responds with 503
WRITING: Final = "writing"  # the client to read the response; IDLE, CLOSING; closes
IDLE: Final = "idle"  # the next request; RECEIVING; closes
CLOSING: Final = "closing"  # the client to close its side; closes
CLOSED: Final = "closed"


class Shared:
    """State that all connections of an event loop share.

    ``handlers`` maps the file descriptors that ``poll`` watches to what handles their events. ``now`` is the time of
    the current iteration (``time.monotonic()``). ``evictable`` are the connections that may be closed to make room,
    longest inactive first: those that wait for a client without a checked token, with the client's network, and the
    idle ones of the other clients, with None. ``trusted`` are all connections whose client has shown a token.
    ``place_holders`` have a large body or a large response. ``turned_away`` counts clients that the worker had no room
    for. ``unfinished_connections`` have received bytes that are not parsed yet, because one step parses little.
    ``ready_requests`` have arrived completely.
    """

    def __init__(self, service: Service, config: Config) -> None:
        self.poll: Any = SystemPoll()
        self.handlers: dict[int, Any] = {}
        self.service = service
        self.config = config
        self.evictable: dict[Connection, Any] = {}
        self.trusted: set[Connection] = set()
        self.place_holders: set[Connection] = set()
        self.turned_away: int = 0
        self.now: float = time.monotonic()
        self.stopping: bool = False
        self.connections: set[Connection] = set()
        self.unfinished_connections: set[Connection] = set()
        self.ready_requests: list[tuple[Connection, Request]] = []

    def take_place(self, connection: "Connection") -> bool:
        """Return whether the connection has a place now, for a large body and for the response to it."""
        if connection not in self.place_holders and len(self.place_holders) >= self.config.places:
            self.turned_away += 1
            return False
        self.place_holders.add(connection)
        return True

    def watch(self, descriptor: int, events: int, handler: Any) -> None:
        """Watch a file descriptor for these events (0: none)."""
        if not events:
            if self.handlers.pop(descriptor, None):
                self.poll.unregister(descriptor)
        elif descriptor in self.handlers:
            self.poll.modify(descriptor, events)
        else:
            self.poll.register(descriptor, events)
            self.handlers[descriptor] = handler


class Connection:
    """One connection of an event loop; ``deadline`` is a time like ``Shared.now``."""

    def __init__(self, shared: Shared, listener: Listener, sock: socket.socket, base: Environ) -> None:
        """Wait for the first request; ``base`` has the environ keys that all requests of the connection share."""
        self.sock = sock
        self.state: str = OPEN
        self.deadline: float = shared.now + shared.config.request_seconds
        self.request: Request | None = None
        self._shared = shared
        self._listener = listener
        self._base = base
        self._tls = TLS(shared.config.tls) if shared.config.tls else None
        self._input: bytes = b""  # received and not parsed yet
        self._output: bytes = b""  # not accepted by the socket yet
        self._close_after_response: bool = False
        self._watched_events: int = 0
        self._network: Any = network_of(base["REMOTE_ADDR"])  # None once the client has shown a token
        self.watch()
        self._note_activity()
        shared.connections.add(self)

    def watch(self, events: int = READABLE) -> None:
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
        elif self not in self._shared.unfinished_connections:
            self._receive()

    def continue_reading(self) -> None:
        """Continue with received bytes that did not fit into one step, and then with the end of the client's data."""
        if self._is_reading():
            if self._tls and self._tls.has_more:
                self._decrypt(self._tls, b"")
            else:
                self._parse()
        if self._tls and self._tls.closed and self._is_reading() and self not in self._shared.unfinished_connections:
            self._receive_plaintext(b"")

    def _is_reading(self) -> bool:
        return self.state in (OPEN, RECEIVING, IDLE) and not self._output

    def respond(self, request: Request, response: Response | None) -> None:
        """Send the response (None: of a failure), unless the request was rejected meanwhile or the client has gone."""
        if self.request is not request:
            return
        if response is None:
            self.reject(HTTPError(500))
            return
        shared = self._shared
        # The response is the last one if
        # 1. the request ends the connection, or
        # 2. connections are not kept alive, or
        # 3. the worker stops, and no other request has been received.
        is_stopping = shared.stopping and not self._input
        close = not request.keep_alive or not shared.config.keepalive_seconds or is_stopping
        self._finish_request(request, response, close=close)

    def reject(self, error: HTTPError) -> None:
        """Send an error response and close the connection."""
        if self._tls and not self._tls.established:
            self.close()  # Before the TLS handshake is complete, no response can be sent.
            return
        request = self.request or self._begin_request()
        if not request.head_parsed:
            self._shared.service.after_head(request)  # Only for what it sets; the response is the error's.
        self._finish_request(request, self._shared.service.error_response(error, request), close=True)

    def expire(self) -> None:
        """Handle a missed deadline: 503, 408, or close."""
        if self.state == RESPONDING:
            self.reject(HTTPError(503, "The request could not be answered in time."))
        elif self.state == RECEIVING:
            self.reject(HTTPError(408))
        else:
            if self.state in (OPEN, IDLE):
                self._send_close_notify()
            self.close()

    def stop(self) -> None:
        """Wait at most STOPPING_SECONDS for a new request, or for the client to close."""
        if self.state in (OPEN, IDLE, CLOSING) and self not in self._shared.unfinished_connections:
            self.deadline = min(self.deadline, self._shared.now + STOPPING_SECONDS)

    def close(self) -> None:
        """Close the connection and release everything that it holds."""
        if self.state == CLOSED:
            return
        self._enter(CLOSED, 0.0)
        self._drop_request()
        self._input = b""
        self._output = b""
        self._tls = None
        self._shared.connections.discard(self)
        self._shared.trusted.discard(self)
        self.watch(0)
        self.sock.close()

    def _enter(self, state: str, seconds: float) -> None:
        """Change the state, for at most this long."""
        shared = self._shared
        self.state = state
        self.deadline = shared.now + seconds
        if state in (IDLE, CLOSING, CLOSED):
            shared.place_holders.discard(self)
        if self._network is not None:
            self._note_activity()
        elif state == IDLE:
            shared.evictable[self] = None
        else:
            shared.evictable.pop(self, None)

    def _note_activity(self) -> None:
        """If the worker is full, close this connection after those that have been inactive for longer."""
        evictable = self._shared.evictable
        evictable.pop(self, None)
        if self._network is not None and self.state not in (RESPONDING, CLOSED):
            evictable[self] = self._network

    def _receive(self) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        if self.state == CLOSING and data:
            return
        if self._tls and data:
            self._decrypt(self._tls, data)
        else:
            self._receive_plaintext(data)

    def _decrypt(self, tls: TLS, ciphertext: bytes) -> None:
        try:
            data = tls.receive(ciphertext)
            if tls.has_more or tls.closed:
                self._shared.unfinished_connections.add(self)
            if data:
                self._receive_plaintext(data)
        except SSLError as error:
            if getattr(error, "reason", "") != "HTTP_REQUEST":  # Only errors of OpenSSL have a reason.
                raise
            self._tls = None
            self.reject(HTTPError(400, "This port speaks TLS, and the request is plain HTTP."))
        finally:
            # Send the next flight of the handshake, an alert or the answer to a KeyUpdate. If the application is called
            # now, they are sent with its response.
            if self.state not in (RESPONDING, CLOSED):
                self._send(b"")

    def _receive_plaintext(self, data: bytes) -> None:
        """Parse received data; no data is the end of the client's data."""
        if data:
            self._input = self._input + data if self._input else data
            self._parse()
        elif self.state == RECEIVING:
            self.reject(HTTPError(400))
        else:
            self.close()

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
        self._enter(RECEIVING, shared.config.request_seconds)
        self.request = request = Request(self._listener, self._base, shared.now)
        return request

    def _parse_head(self, request: Request) -> bool:
        config = self._shared.config
        end = self._input.find(b"\r\n\r\n")
        if end < 0:
            check_growing_head(self._input, config)
            return False
        request.parse_head(self._input[: end + 4].decode("latin-1"), config)
        self._input = self._input[end + 4 - request.body.overlap :]
        response = self._shared.service.after_head(request)
        if request.trusted and self._network is not None:
            self._trust()
        if response:
            self._finish_request(request, response, close=True)
        return response is None

    def _trust(self) -> None:
        """From now on, close this connection to make room only while it is idle.

        :raises HTTPError: the clients that have shown a token have too many connections, and none of them is idle.
        """
        shared = self._shared
        if len(shared.trusted) >= shared.config.connections:
            shared.turned_away += 1
            idle = next((other for other, network in shared.evictable.items() if network is None), None)
            if idle is None:
                raise HTTPError(*FULL)
            idle.close()
        shared.trusted.add(self)
        self._network = None

    def _parse_body(self, request: Request) -> None:
        shared = self._shared
        body = request.body
        limit = shared.config.body_bytes
        unread_bytes = len(self._input)
        if not body.complete and body.size <= limit:
            self._input = body.feed(self._input)
        if body.size > limit:
            raise HTTPError(413, f"The body is larger than {limit} bytes.")
        if len(body.content) > SMALL_BODY_BYTES and not shared.take_place(self):
            raise HTTPError(503, "The service is receiving as much as it can hold.")
        if not body.complete:
            if request.awaits_continue:
                request.awaits_continue = False
                self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
            if 0 < len(self._input) < unread_bytes:
                self._shared.unfinished_connections.add(self)
            self._note_activity()
            return
        if body.size:
            request.environ["CONTENT_LENGTH"] = str(body.size)
        request.environ["server.stopping"] = shared.stopping
        self._enter(RESPONDING, shared.config.response_seconds)
        shared.ready_requests.append((self, request))

    def _finish_request(self, request: Request, response: Response, *, close: bool) -> None:
        data = to_bytes(response, request, close=close)
        self._close_after_response = close
        self._drop_request()
        if close:
            self._input = b""
        self._shared.service.before_response(request, response)
        self._enter(WRITING, self._shared.config.request_seconds)
        self._send(data)

    def _drop_request(self) -> None:
        request, self.request = self.request, None  # A call of the application that has not begun never does.
        if request:
            request.body = NO_BODY  # A thread may still hold the request.

    def _send(self, data: bytes) -> None:
        """Send data. With TLS, this also sends what TLS itself has to send."""
        if self._tls:
            data = self._tls.encrypt(data)
        if data:
            self._output = self._output + data if self._output else data
            self._flush()

    def _flush(self) -> None:
        """Send as much as the socket accepts. After a response, wait for the next request, or close."""
        try:
            sent = self.sock.send(self._output)
        except BlockingIOError:
            sent = 0
        if sent < len(self._output):
            self._hold_output(memoryview(self._output)[sent:])
            return
        self._output = b""
        if self.state == WRITING:
            if self._close_after_response:
                self._linger()
                return
            self._enter(IDLE, self._shared.config.keepalive_seconds)
        if self._input or (self._tls and (self._tls.has_more or self._tls.closed)):
            self._shared.unfinished_connections.add(self)
        self.watch()

    def _hold_output(self, rest: memoryview) -> None:
        """Wait until the socket accepts more; without a place, hold no more than a small response.

        The server receives nothing more until then, so what TLS itself has to send stays small.
        """
        if len(rest) > SMALL_RESPONSE_BYTES and not self._shared.take_place(self):
            self.close()
            return
        self._output = bytes(rest)  # A view would hold everything that has been sent, too.
        if self.state == WRITING:
            self._note_activity()
        self.watch(WRITABLE)

    def _linger(self) -> None:
        """Continue to read, because a reset could destroy the last response (RFC 9112, section 9.6)."""
        self._enter(CLOSING, self._shared.config.request_seconds)
        self._send_close_notify()
        self.sock.shutdown(socket.SHUT_WR)
        self.watch()

    def _send_close_notify(self) -> None:
        if self._tls:
            with contextlib.suppress(OSError):  # A client that reads nothing does not get it.
                self.sock.send(self._tls.close())
