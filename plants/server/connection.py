"""One client's connection: its state, and the deadline of that state.

In: bytes from the socket. They become an ``Exchange``, which goes to ``LoopState.ready_exchanges`` when its request is
complete. Out: the ``Response`` that the loop passes to ``respond``, or that of the hooks to an ``HTTPError``.
The loop calls ``ready`` for each event of the socket, ``continue_reading`` for each of ``unfinished_connections``,
``expire`` after ``deadline``, and ``respond``, ``turn_away``, ``limit_wait`` and ``close``: all in the loop's thread,
each inside ``Loop.step``. One step reads, parses or sends a bounded amount. The hook ``after_head`` decides whether the
body is kept. ``state`` has the table of states; what a connection holds is bounded in each of them, see ``config``.
"""

import contextlib
import socket
from typing import Any, Final

from plants.server.config import SMALL_BODY_BYTES, SMALL_RESPONSE_BYTES
from plants.server.exchange import Exchange
from plants.server.poll import READABLE, WRITABLE
from plants.server.request import NO_BODY, Environ, HTTPError, Listener, check_growing_head
from plants.server.response import Response, to_bytes
from plants.server.state import CLOSED, CLOSING, IDLE, OPEN, RECEIVING, RESPONDING, WRITING, LoopState, State
from plants.server.tls import HANDSHAKE, READ_BYTES, TLS

_FULL: Final = (503, "The service has too many connections.")
# While the worker stops, it waits this long for a new request, and for a client to close.
STOPPING_SECONDS: Final = 0.25
_MAX_LINGERING: Final = 32  # connections of clients that were turned away


class Connection:
    """One connection of an event loop; ``deadline`` is a time like ``LoopState.now``."""

    def __init__(self, shared: LoopState, listener: Listener, sock: socket.socket, base: Environ, network: Any) -> None:
        """Wait for the first request; ``base`` has the environ keys that all requests of the connection share."""
        self.sock = sock
        self.state: State = OPEN
        self.deadline: float = shared.now + shared.seconds[OPEN]
        self.exchange: Exchange | None = None
        self.trusted: bool = False
        self._shared = shared
        self._listener = listener
        self._base = base
        self._tls = TLS(shared.config.tls) if shared.config.tls else None
        self._input: bytes = b""  # received and not parsed yet
        self._output: bytes = b""  # not accepted by the socket yet
        self._close_after_response: bool = False
        self._watched_events: int = 0
        self._network = network
        self._evictable: dict[Any, Any] = shared.strangers  # This one is in it if a full worker may close it.
        self._evictable[self] = self._network
        self.watch()
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
        elif self.state is RESPONDING:
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

    def respond(self, exchange: Exchange) -> None:
        """Send the response, or that to a failure, unless the exchange is over."""
        if exchange.over:
            return
        response = exchange.response
        if response is None:
            self.reject(HTTPError(500))
            return
        shared = self._shared
        # If the worker stops, the response is the last one, unless another request has been received.
        is_stopping = shared.stopping and not self._input
        close = not exchange.keep_alive or not shared.config.keepalive_seconds or is_stopping
        self._finish(exchange, response, close=close)

    def reject(self, error: HTTPError) -> None:
        """Send an error response and close the connection."""
        if self._tls and not self._tls.established:
            self.close()  # Before the TLS handshake is complete, no response can be sent.
            return
        exchange = self.exchange or self._begin_exchange()
        if not exchange.head_parsed:
            self._shared.hooks.after_head(exchange)  # Only for what it sets; the response is the error's.
        self._finish(exchange, self._shared.hooks.error_response(error, exchange), close=True)

    def turn_away(self) -> None:
        """Reject a client that the worker has no room for, and linger for it in the place of an earlier one."""
        lingering = self._shared.lingering
        if len(lingering) >= _MAX_LINGERING:
            next(iter(lingering)).close()
        self._shared.turned_away += 1
        self._evictable.pop(self)
        self._evictable = lingering
        self.reject(HTTPError(*_FULL))

    def expire(self) -> None:
        """Handle a missed deadline: respond with the error of the state, or close."""
        if self.state.late:
            self.reject(HTTPError(*self.state.late))
            return
        if not self._output:
            self._send_close_notify()
        self.close()

    def limit_wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the client, and less for a new request or for the client to close."""
        if self.state in (OPEN, IDLE, CLOSING) and self not in self._shared.unfinished_connections:
            seconds = STOPPING_SECONDS
        if self.state is not RESPONDING:
            self.deadline = min(self.deadline, self._shared.now + seconds)

    def close(self) -> None:
        """Close the connection and release everything that it holds."""
        if self.state is CLOSED:
            return
        self._enter(CLOSED)
        self._drop_exchange()
        self._input = b""
        self._output = b""
        self._tls = None
        self._shared.connections.discard(self)
        self._shared.trusted.discard(self)
        self.watch(0)
        self.sock.close()

    def _enter(self, state: State) -> None:
        """Change the state, its deadline, and whether a full worker may close this connection."""
        if state.name not in self.state.successors and state is not CLOSED:
            raise RuntimeError(f"a connection that is {self.state.name} cannot become {state.name}")
        shared = self._shared
        self.state = state
        self.deadline = shared.now + shared.seconds[state]
        if not state.keeps_slot:
            shared.slot_holders.discard(self)
        self._evictable.pop(self, None)
        if state.evicts == "anybody" or (not self.trusted and self._is_evicted_as_stranger(state.evicts)):
            self._evictable[self] = self._network

    def _is_evicted_as_stranger(self, evicts: str) -> bool:
        return evicts == "strangers" or bool(evicts == "public" and self.exchange and self.exchange.public)

    def _receive(self) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        if self.state is CLOSING and data:
            return
        if self._tls and data:
            self._decrypt(self._tls, data)
        else:
            self._receive_plaintext(data)

    def _decrypt(self, tls: TLS, ciphertext: bytes) -> None:
        if not tls.begun and not ciphertext.startswith(HANDSHAKE):
            self._tls = None
            self.reject(HTTPError(400, "This port speaks TLS, and the request is plain HTTP."))
            return
        try:
            data = tls.receive(ciphertext)
            if tls.has_more or tls.closed:
                self._shared.unfinished_connections.add(self)
            if data:
                self._receive_plaintext(data)
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
        elif self.state is RECEIVING:
            self.reject(HTTPError(400))
        else:
            self.close()

    def _parse(self) -> None:
        if self.exchange is None and b"\r\n".startswith(self._input):
            return  # Some clients send an empty line after a request (RFC 9112, section 2.2). It begins no request.
        exchange = self.exchange or self._begin_exchange()
        try:
            if exchange.head_parsed or self._parse_head(exchange):
                self._parse_body(exchange)
        except HTTPError as error:
            self.reject(error)

    def _begin_exchange(self) -> Exchange:
        self._enter(RECEIVING)
        self.exchange = exchange = Exchange(self, self._listener, self._base, self._shared.now)
        return exchange

    def _parse_head(self, exchange: Exchange) -> bool:
        config = self._shared.config
        end = self._input.find(b"\r\n\r\n")
        if end < 0:
            check_growing_head(self._input, config)
            return False
        exchange.parse_head(self._input[: end + 4].decode("latin-1"), config)
        self._input = self._input[end + 4 - exchange.body.overlap :]
        response = self._shared.hooks.after_head(exchange)
        if exchange.trusted and not self.trusted:
            self._trust()
        if response:
            self._finish(exchange, response, close=True)
        return response is None

    def _trust(self) -> None:
        """From now on, close this connection to make room only while it is idle.

        :raises HTTPError: the clients that have shown a token have too many connections, and none of them is idle.
        """
        shared = self._shared
        if len(shared.trusted) >= shared.config.connections:
            shared.turned_away += 1
            idle = next(iter(shared.idle_trusted), None)
            if idle is None:
                raise HTTPError(*_FULL)
            idle.close()
        shared.trusted.add(self)
        self._evictable.pop(self)
        self._evictable = shared.idle_trusted
        self.trusted = True

    def _parse_body(self, exchange: Exchange) -> None:
        shared = self._shared
        body = exchange.body
        limit = shared.config.body_bytes
        unread_bytes = len(self._input)
        if not body.complete and body.size <= limit:
            self._input = body.feed(self._input)
        if body.size > limit:
            raise HTTPError(413, f"The body is larger than {limit} bytes.")
        if len(body.content) > SMALL_BODY_BYTES and not shared.acquire_slot(self):
            raise HTTPError(503, "The service is receiving as much as it can hold.")
        if not body.complete:
            if exchange.awaits_continue:
                exchange.awaits_continue = False
                self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
            if 0 < len(self._input) < unread_bytes:
                shared.unfinished_connections.add(self)
            return
        if body.size:
            exchange.environ["CONTENT_LENGTH"] = str(body.size)
        exchange.environ["server.stopping"] = shared.stopping
        self._enter(RESPONDING)
        shared.ready_exchanges.append(exchange)

    def _finish(self, exchange: Exchange, response: Response, *, close: bool) -> None:
        data = to_bytes(response, exchange, close=close)
        self._close_after_response = close
        self._drop_exchange()
        if close:
            self._input = b""
        try:
            self._shared.hooks.before_response(exchange, response)
        except Exception:  # A log that fails must not cost the response.
            self._shared.log.exception("a response was not logged")
        self._enter(WRITING)
        self._send(data)

    def _drop_exchange(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange:
            exchange.over = True
            exchange.body = NO_BODY  # A thread may still hold the exchange.

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
        if self.state is WRITING:
            if self._close_after_response:
                self._linger()
                return
            self._enter(IDLE)
        if self._input or (self._tls and (self._tls.has_more or self._tls.closed)):
            self._shared.unfinished_connections.add(self)
        self.watch()

    def _hold_output(self, rest: memoryview) -> None:
        """Wait until the socket accepts more; without a slot, hold no more than a small response.

        The server receives nothing more until then, so what TLS itself has to send stays small.
        """
        if len(rest) > SMALL_RESPONSE_BYTES and not self._shared.acquire_slot(self):
            self.close()
            return
        self._output = bytes(rest)  # A view would hold everything that has been sent, too.
        self.watch(WRITABLE)

    def _linger(self) -> None:
        """Continue to read, because a reset could destroy the last response (RFC 9112, section 9.6)."""
        self._enter(CLOSING)
        self._send_close_notify()
        self.sock.shutdown(socket.SHUT_WR)
        self.watch()

    def _send_close_notify(self) -> None:
        if self._tls:
            with contextlib.suppress(OSError):  # A client that reads nothing does not get it.
                self.sock.send(self._tls.close())
