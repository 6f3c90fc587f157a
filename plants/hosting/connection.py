"""A client's connection: whole requests come in, answers go out, and every wait for the client has a deadline."""

import asyncio
import math
from collections.abc import Generator
from datetime import timedelta
from enum import Enum, auto
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from gunicorn.asgi.parser import (
    CallbackRequest,
    LimitRequestHeaders,
    LimitRequestLine,
    ParseError,
    PythonProtocol,
    UnsupportedTransferCoding,
)

from plants.hosting.bridge import Exchange, Head, Refused, error_answer
from plants.stores import StoreUnavailable

if TYPE_CHECKING:
    from plants.hosting.worker import Worker

# A worker that stops waits no longer than this for a request on its way, or for a client to close.
STOPPING_SECONDS = 0.25
# RFC 9112, section 9.6: a connection that is closed is still read from, or a reset could destroy the last answer.
_LINGER_SECONDS = 2.0
_LONGEST_REPEAT = 4096
# A worker holds no more than so many bodies of the largest size, however many connections send one.
_BODIES_HELD = 64

_Answer = Generator[tuple[bytes, bool]]

_REFUSALS = (
    (LimitRequestLine, Refused(41400, "The request line is too long.")),
    (LimitRequestHeaders, Refused(43100, "The header fields are too many or too large.")),
    (UnsupportedTransferCoding, Refused(50100, "The only transfer coding is chunked.")),
    (Exception, Refused(40000)),
)


class _TooLarge(Exception):
    """The body is over the limit."""


class _State(Enum):
    OPEN = auto()  # No byte has come yet.
    RECEIVING = auto()
    ANSWERING = auto()
    IDLE = auto()
    CLOSING = auto()


class Connection(asyncio.BufferedProtocol):
    """One connection of a worker, which calls ``expire`` at the ``deadline`` (seconds of the event loop's clock)."""

    __slots__ = (
        "_answer", "_eof", "_exchange", "_head", "_held", "_is_advancing", "_is_held_up", "_parser", "_repeat",
        "_request", "_size_held", "_started", "_state", "_transport", "_worker", "deadline",
    )  # fmt: skip

    def __init__(self, worker: "Worker") -> None:
        cfg = worker.cfg
        self._worker = worker
        self._parser = PythonProtocol(
            on_headers_complete=self._on_head,
            on_body=self._on_body,
            limit_request_line=cfg.limit_request_line,
            limit_request_fields=cfg.limit_request_fields,
            limit_request_field_size=cfg.limit_request_field_size,
        )
        self._state = _State.OPEN
        self._eof = False  # The client sends no more; it may still read.
        self._held = b""  # What came behind the request that is being answered.
        self._is_held_up = False  # The client does not read as fast as it is written to.
        self._is_advancing = False  # The application is at work.
        self._size_held = 0  # Bytes of a body, until it is answered.
        self._answer: _Answer | None = None
        self._head: Head | None = None
        self._repeat: tuple[bytes, Head] | None = None  # The last request's head, in bytes and as it was understood.

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request, unless the worker has too many connections."""
        worker = self._worker
        self._transport = cast(asyncio.Transport, transport)
        self.deadline = worker.now() + (STOPPING_SECONDS if worker.stopping else worker.request_timeout)
        worker.connections.add(self)
        excess = len(worker.connections) - worker.max_connections
        if excess > worker.max_connections:
            self._transport.abort()
        elif excess > 0:
            self._refuse(Refused(50300, "The service has as many connections as it can take."))

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Give the one buffer of the worker: what is read into it is taken before anything else is read."""
        return self._worker.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has been received."""
        data = bytes(self._worker.buffer[:nbytes])
        state = self._state
        if state is _State.ANSWERING:
            # Not sooner: most clients send nothing now, and are spared the two system calls.
            self._transport.pause_reading()
            self._held += data
        elif state is _State.RECEIVING:
            self._feed(data)
        elif state is not _State.CLOSING:
            self._begin(data)

    def eof_received(self) -> bool:
        """Take note that the client sends no more; it may still wait for the answers to what it has sent."""
        self._eof = True
        if self._state is _State.RECEIVING:
            self._refuse(Refused(40000))
        return self._state is _State.ANSWERING and self._transport.can_write_eof()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Let the application end."""
        self._worker.connections.discard(self)
        self._let_go()
        self._state = _State.CLOSING
        self._held = b""
        if not self._is_advancing:
            self._abandon()

    def pause_writing(self) -> None:
        """Ask the application for no more until the client has read, for which it has a deadline too."""
        self._is_held_up = True
        self.deadline = self._worker.now() + self._worker.request_timeout

    def resume_writing(self) -> None:
        """Go on where the client held it up."""
        self._is_held_up = False
        if self._state is _State.ANSWERING:
            self.deadline = math.inf
            if self._answer:
                self._advance()
            else:
                self._wait()

    # What the worker calls

    def expire(self) -> None:
        """End what takes longer than its deadline."""
        if self._state is _State.RECEIVING or (self._state is _State.OPEN and not self._worker.stopping):
            self._refuse(Refused(40800))
        elif self._state in {_State.OPEN, _State.IDLE}:
            self._close(linger=False)
        else:
            self._transport.abort()

    def stop(self) -> None:
        """Take no request after those that have been read."""
        if self._state is _State.ANSWERING:
            self._exchange.keep_alive = self._exchange.keep_alive and bool(self._held)
        elif self._state is not _State.RECEIVING and not self._transport.get_write_buffer_size():
            self.deadline = min(self.deadline, self._worker.now() + STOPPING_SECONDS)

    def drop(self) -> None:
        """Close the connection unless a request has been received whole."""
        if self._state in {_State.OPEN, _State.RECEIVING, _State.IDLE}:
            self._transport.abort()

    # A request comes in

    def _begin(self, data: bytes) -> None:
        self._state = _State.RECEIVING
        self.deadline = self._worker.now() + self._worker.request_timeout
        if self._repeat:
            raw, head = self._repeat
            end = len(raw) + head.body_length
            # A client mostly sends the head of its last request again, to the byte: its meaning is known.
            if len(data) >= end and data.startswith(raw):
                self._exchange = Exchange(head)
                self._exchange.body.write(data[len(raw) : end])
                self._exchange.receive()
                self._call(data[end:])
                return
        self._head = None
        self._feed(data)
        end = data.find(b"\r\n\r\n") + 4
        is_repeatable = self._head and self._head.is_repeatable and end <= _LONGEST_REPEAT
        self._repeat = (data[:end], self._head) if is_repeatable else None

    def _next(self) -> None:
        if self._held and not self._answer:
            data, self._held = self._held, b""
            self._begin(data)

    def _feed(self, data: bytes) -> None:
        parser = self._parser
        try:
            parser.feed(data)
        except _TooLarge:
            self._exchange.receive_too_much()
            self._call(b"")
        except Refused as refused:
            self._refuse(refused)
        except (ParseError, ValueError) as error:  # ValueError: a Content-Length of more than 4,300 digits
            self._refuse(next(refused for kind, refused in _REFUSALS if isinstance(error, kind)))
        else:
            if parser.is_complete:
                held = parser.remaining()
                parser.reset()
                self._exchange.receive()
                self._call(held)
            elif self._eof:
                self._refuse(Refused(40000))
            else:
                self._transport.resume_reading()

    def _on_head(self) -> bool:
        worker = self._worker
        self._head = head = Head(self._parser, worker.environ_of(self._transport))
        self._exchange = Exchange(head)
        if worker.is_observed:
            self._request = CallbackRequest.from_parser(self._parser, is_ssl=worker.cfg.is_ssl)
        if head.body_length > worker.max_body_bytes:
            raise _TooLarge
        if head.awaits_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return False

    def _on_body(self, chunk: bytes) -> None:
        worker = self._worker
        body = self._exchange.body
        body.write(chunk)
        self._size_held += len(chunk)
        worker.size_held += len(chunk)
        if body.tell() > worker.max_body_bytes:
            raise _TooLarge
        if worker.size_held > _BODIES_HELD * worker.max_body_bytes:
            raise Refused(50300, "The service is receiving as much as it can hold.")

    def _let_go(self) -> None:
        self._worker.size_held -= self._size_held
        self._size_held = 0

    def _refuse(self, refused: Refused) -> None:
        worker = self._worker
        answer = error_answer(refused.code, refused.message, has_no_body=self._parser.method == b"HEAD")
        self._transport.write(answer)
        if worker.is_observed:
            status = HTTPStatus(refused.code // 100)
            response = SimpleNamespace(status=f"{status} {status.phrase}", headers=(), sent=None)
            unread = dict.fromkeys(("REQUEST_METHOD", "RAW_URI", "SERVER_PROTOCOL"), "-")
            worker.log.access(response, (), worker.environ_of(self._transport) | unread, timedelta())
        self._close()

    def _close(self, *, linger: bool = True) -> None:
        worker = self._worker
        transport = self._transport
        self._state = _State.CLOSING
        self._held = b""
        self._let_go()
        if transport.get_write_buffer_size():
            self.deadline = worker.now() + worker.request_timeout
        else:
            self.deadline = worker.now() + (STOPPING_SECONDS if worker.stopping else _LINGER_SECONDS)
        if linger and not self._eof and transport.can_write_eof():
            transport.resume_reading()
            transport.write_eof()
        else:
            transport.close()

    # An answer goes out

    def _call(self, held: bytes) -> None:
        worker = self._worker
        exchange = self._exchange
        self._state = _State.ANSWERING
        self.deadline = math.inf
        self._held = held
        worker.count_request()
        if not worker.keepalive or (not held and (worker.stopping or self._eof)):
            exchange.keep_alive = False
        exchange.environ["plants.stopping"] = worker.stopping
        self._answer = exchange.answer(worker.wsgi)
        if worker.is_observed:
            self._started = worker.now()
            try:
                worker.cfg.pre_request(worker, self._request)
            except Exception:
                worker.log.exception("the pre_request hook failed")
                self._end_answer()
                self._refuse(Refused(50000))
                return
        self._advance()

    def _advance(self) -> None:
        if self._answer and not self._is_advancing:
            self._is_advancing = True
            self._worker.run_application(self._next_block, self._answer, self._deliver)

    def _next_block(self, answer: _Answer) -> tuple[bytes, bool] | None:
        try:
            return next(answer)
        except Exception:
            self._worker.log.exception("the application failed in the middle of an answer")
            return None

    def _deliver(self, outcome: tuple[bytes, bool] | StoreUnavailable | None) -> None:
        self._is_advancing = False
        if isinstance(outcome, StoreUnavailable):
            # The application had its answer, but what the answer says is not so.
            self._worker.log.warning("the store is unavailable: %s", outcome)
            outcome = self._exchange.take_back(50300)
        if not outcome or self._state is _State.CLOSING:
            self._transport.abort()
            self._abandon()
            return
        block, is_last = outcome
        self._transport.write(block)
        self._exchange.has_begun = True
        if is_last:
            self._end_answer()
            if self._exchange.stays_open:
                self._wait()
            else:
                self._close()
        elif not self._is_held_up:
            self._worker.loop.call_soon(self._advance)  # The others have their turn.

    def _abandon(self) -> None:
        if self._answer:
            self._worker.run_application(self._close_answer, self._answer, self._end_answer)

    def _close_answer(self, answer: _Answer) -> None:
        try:
            answer.close()
        except Exception:
            self._worker.log.exception("the application failed at the end of an answer that was broken off")

    def _end_answer(self, _outcome: None = None) -> None:
        worker = self._worker
        self._let_go()
        self._answer = None
        if worker.is_observed:
            environ = self._exchange.environ
            elapsed = timedelta(seconds=worker.now() - self._started)
            worker.log.access(self._exchange, self._request, environ, elapsed)
            try:
                worker.cfg.post_request(worker, self._request, environ, self._exchange)
            except Exception:
                worker.log.exception("the post_request hook failed")

    def _wait(self) -> None:
        worker = self._worker
        if self._is_held_up:
            return
        if self._held:
            worker.loop.call_soon(self._next)
        elif self._eof:
            self._close()
        else:
            self._state = _State.IDLE
            self.deadline = worker.now() + (STOPPING_SECONDS if worker.stopping else worker.keepalive)
            self._transport.resume_reading()
