"""The bridge from events to WSGI: a whole request becomes an environ, an application's answer becomes bytes."""

import io
import re
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from types import TracebackType
from typing import Any
from urllib.parse import unquote
from wsgiref.util import is_hop_by_hop

from gunicorn.http.message import TOKEN_RE
from gunicorn.http.wsgi import HEADER_VALUE_RE

from plants.errors import HEADERS, RETRY_AFTER_SECONDS, error_body

Environ = dict[str, Any]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType]
WSGIApplication = Callable[[Environ, Callable[..., object]], Iterable[bytes]]

# RFC 3986, section 3.2.2; a host that is empty is not valid in an http URL (RFC 9110, section 4.2.1).
_AUTHORITY = r"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)(?::[0-9]*)?"
_HOST = re.compile(_AUTHORITY)
_ABSOLUTE_FORM = re.compile(rf"https?://({_AUTHORITY})([/?].*)?", re.IGNORECASE)
_FINAL_STATUS = re.compile(r"[2-5][0-9]{2} [ \t\x21-\x7e]*")


class Refused(Exception):
    """A request that is answered below the application, with an Error body.

    :param code: the ``error`` of the body.
    :param message: its ``message``, if the table of errors has none that fits.
    """

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


def error_answer(code: int, message: str | None = None, *, has_no_body: bool = False) -> bytes:
    """Give a whole answer, an Error body with its head, that ends the connection."""
    head, body = _error(code, message)
    return b"%b%b\r\n%b" % (head, _date(int(time.time())), b"" if has_no_body else body)


class Head:
    """The head of a request, and what it says about the body, the answer and the connection."""

    __slots__ = ("awaits_continue", "body_length", "environ", "is_1_1", "is_head", "is_repeatable", "keep_alive")

    def __init__(self, parser: Any, base: Environ) -> None:
        """Take a head that Gunicorn's parser has read.

        :param base: what the environs of all requests of a connection have in common.
        :raises Refused: the request is not for the application.
        """
        self.environ = environ = base.copy()
        environ["REQUEST_METHOD"] = method = parser.method.decode()
        environ["RAW_URI"] = target = parser.path.decode()
        for name, value in parser.headers:
            key = _environ_key(name)
            if key in environ:
                environ[key] += "," + value.decode("latin-1")
            elif key:
                environ[key] = value.decode("latin-1")

        self.is_head = method == "HEAD"
        self.is_1_1 = parser.http_version == (1, 1)
        environ["SERVER_PROTOCOL"] = "HTTP/1.1" if self.is_1_1 else "HTTP/1.0"
        options = environ.get("HTTP_CONNECTION")
        if options is None:
            self.keep_alive = self.is_1_1
        else:
            tokens = {option.strip() for option in options.lower().split(",")}
            self.keep_alive = "close" not in tokens and (self.is_1_1 or "keep-alive" in tokens)

        # The parser takes "gzip, chunked" too, of which nobody here would undo the gzip.
        if environ.pop("HTTP_TRANSFER_ENCODING", "chunked").lower() != "chunked":
            raise Refused(50100, "The only transfer coding is chunked.")
        host = environ.get("HTTP_HOST")
        if (host is None and self.is_1_1) or (host is not None and not _HOST.fullmatch(host)):
            raise Refused(40000, "A request has one valid Host.")
        if not target.startswith("/"):
            target = self._origin_form(target)
        if "#" in target:
            raise Refused(40000, "A request target has no fragment.")
        path, _, environ["QUERY_STRING"] = target.partition("?")
        environ["PATH_INFO"] = unquote(path, "latin-1") if "%" in path else path
        expectation = environ.get("HTTP_EXPECT")
        if expectation is not None and expectation.lower() != "100-continue":
            raise Refused(41700, "The only expectation that is met is 100-continue.")
        self.body_length: int = parser.content_length or 0
        has_body = self.body_length > 0 or parser.is_chunked
        # RFC 9110, section 10.1.1: HTTP/1.0 has no such expectation.
        self.awaits_continue = expectation is not None and has_body and self.is_1_1
        self.is_repeatable = expectation is None and not parser.is_chunked

    def _origin_form(self, target: str) -> str:
        if self.environ["REQUEST_METHOD"] == "CONNECT":
            raise Refused(50100, "This is not a proxy.")
        if target == "*":
            return ""
        absolute = _ABSOLUTE_FORM.fullmatch(target)
        if not absolute:
            raise Refused(40000, "A request target is a path, or an http URL without user information.")
        # RFC 9112, section 3.2.2: what the target says replaces the Host.
        self.environ["HTTP_HOST"], rest = absolute.groups(default="/")
        return rest if rest.startswith("/") else "/" + rest


class Exchange:
    """One request and its answer.

    The connection is announced to stay open if ``keep_alive`` is true when the head of the answer is made; then
    ``stays_open`` tells what was announced. Gunicorn's access log and its ``post_request`` hook read ``status``,
    ``headers`` and ``sent``, the number of bytes of the body.
    """

    __slots__ = (
        "_chunked", "_fields", "_has_no_body", "_head_is_out", "_is_1_1", "_length", "_written",
        "body", "environ", "has_begun", "headers", "keep_alive", "sent", "status", "stays_open",
    )  # fmt: skip

    def __init__(self, head: Head) -> None:
        self.environ = head.environ.copy()
        self.body = self.environ["wsgi.input"] = io.BytesIO()
        self.keep_alive = head.keep_alive
        self.stays_open = False
        self.has_begun = False  # A part of the answer has been sent.
        self.status = ""
        self.headers: list[tuple[str, str]] = []
        self.sent = 0
        self._has_no_body = head.is_head
        self._is_1_1 = head.is_1_1
        self._head_is_out = False
        self._chunked = False
        self._length: int | None = None
        self._fields: list[bytes] = []
        self._written: list[bytes] = []

    def receive(self) -> None:
        """Take note that ``body`` has been written whole."""
        length = self.body.tell()
        if length:
            # A body that came in chunks has a known length by now, which every application understands.
            self.environ["CONTENT_LENGTH"] = str(length)
            self.body.seek(0)

    def receive_too_much(self) -> None:
        """Take note that the body is over the limit: the application is told its length, to refuse it in its turn."""
        self.environ.setdefault("CONTENT_LENGTH", str(self.body.tell()))
        self.environ["wsgi.input"] = io.BytesIO()
        self.keep_alive = False

    def answer(self, app: WSGIApplication) -> Generator[tuple[bytes, bool]]:
        """Call the application; yield what is to be sent, block by block, and whether that was all.

        The application runs only while a block is asked for. Its iterable is closed before the last block is given,
        or when this generator is closed.

        :raises Exception: the application failed when a part of its answer had been given.
        """
        try:
            iterable = app(self.environ, self.start_response)
            try:
                if isinstance(iterable, list | tuple):
                    block = self._block(b"".join(iterable), is_all=True)
                else:
                    for data in iterable:
                        if data:
                            yield self._block(data), False
                    block = self._block(b"")
            finally:
                if hasattr(iterable, "close"):
                    iterable.close()
            if self._length is not None and self.sent < self._length and not self._has_no_body:
                raise ValueError(f"the application announced {self._length} bytes and gave {self.sent}")
            yield (block + b"0\r\n\r\n" if self._chunked else block), True
        except (Exception, SystemExit):
            if self._head_is_out:
                raise
            self.environ["wsgi.errors"].write(traceback.format_exc())
            self.status = "500 Internal Server Error"
            yield error_answer(50000, has_no_body=self._has_no_body), True

    def take_back(self, code: int) -> tuple[bytes, bool] | None:
        """Give an Error to be sent in the place of the answer, or None if a part of it has been sent."""
        if self.has_begun:
            return None
        answer = error_answer(code, has_no_body=self._has_no_body)
        self.status = f"{code // 100} {HTTPStatus(code // 100).phrase}"
        self.stays_open = False
        return answer, True

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None
    ) -> Callable[[bytes], None]:
        """Take the status and the header fields of the answer (PEP 3333).

        :raises AssertionError: it was called before, and this is not the report of an error.
        :raises ValueError: the status or a header field could not be sent as what it is.
        """
        if exc_info:
            try:
                if self._head_is_out:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None
        elif self.status:
            raise AssertionError("start_response was called twice")
        if not _FINAL_STATUS.fullmatch(status):
            raise ValueError("a status is three digits, a space and a phrase")
        fields = []
        length = None
        for name, value in headers:
            if name.lower() == "content-length":
                length = int(value)
            fields.append(_field(name, value))
        self.status, self.headers, self._fields, self._length = status, headers, fields, length
        return self._written.append

    def _block(self, data: bytes, *, is_all: bool = False) -> bytes:
        if self._written:
            data = b"".join((*self._written, data))
            self._written.clear()
        head = b"" if self._head_is_out else self._head(len(data) if is_all else None)
        if self._has_no_body:
            return head
        if self._length is not None:
            data = data[: self._length - self.sent]
        self.sent += len(data)
        if self._chunked and data:
            return b"%b%x\r\n%b\r\n" % (head, len(data), data)
        return head + data

    def _head(self, size: int | None) -> bytes:
        if not self.status:
            raise AssertionError("the application did not call start_response")
        self._head_is_out = True
        head = [f"HTTP/1.1 {self.status}\r\n".encode(), _date(int(time.time())), *self._fields]
        if self.status.startswith(("204", "304")):
            self._has_no_body = True
        elif self._length is None and not self._has_no_body:
            if size is not None:
                self._length = size
                head.append(b"Content-Length: %d\r\n" % size)
            elif self._is_1_1:
                self._chunked = True
                head.append(b"Transfer-Encoding: chunked\r\n")
            else:
                self.keep_alive = False
        self.stays_open = self.keep_alive
        if not self.stays_open:
            head.append(b"Connection: close\r\n")
        elif not self._is_1_1:
            head.append(b"Connection: keep-alive\r\n")
        head.append(b"\r\n")
        return b"".join(head)


# What is sent and received repeats itself: it is made or checked once, not for each request.
@lru_cache(maxsize=512)
def _environ_key(name: bytes) -> str:
    key = name.decode().upper()
    if "_" in key:
        return ""  # It would be taken for the field that has a hyphen there.
    key = key.replace("-", "_")
    return key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"


@lru_cache(maxsize=64)
def _error(code: int, message: str | None) -> tuple[bytes, bytes]:
    body = error_body(code, message)
    status = HTTPStatus(code // 100)
    fields = HEADERS | {"Content-Length": str(len(body)), "Connection": "close"}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        fields["Retry-After"] = str(RETRY_AFTER_SECONDS)
    lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return "".join(f"{line}\r\n" for line in lines).encode(), body


@lru_cache(maxsize=512)
def _field(name: str, value: str) -> bytes:
    if not TOKEN_RE.fullmatch(name) or not HEADER_VALUE_RE.fullmatch(value):
        raise ValueError(f"the application gave a header field that cannot be sent: {name!r}")
    return b"" if is_hop_by_hop(name) else f"{name}: {value}\r\n".encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()
