"""The complete response of a WSGI application, and its bytes."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from email.utils import formatdate
from functools import lru_cache
from io import BytesIO
from typing import Any, Final
from wsgiref.util import is_hop_by_hop

from plants.server.request import Request

Headers = list[tuple[str, str]]

_FINAL_STATUS: Final = re.compile(r"[2-5][0-9]{2} [ \t\x21-\x7e]*")
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_NO_CONTENT_STATUSES: Final = ("204", "304")  # RFC 9110, sections 15.3.5 and 15.4.5


class Head:
    """The head of a response.

    ``lines`` is the status line and the headers in bytes, without Content-Length and hop-by-hop headers. ``length`` is
    the value of Content-Length, or None if the application did not set it.
    """

    def __init__(self, lines: bytes, length: int | None, *, allows_body: bool) -> None:
        self.lines = lines
        self.length = length
        self.allows_body = allows_body
        self.has_date: bool = b"\r\nDate: " in lines


class Response:
    """A complete response.

    ``status`` includes the phrase. ``length`` is the length of the body, or None if the status allows no body. The
    response to a HEAD request has the length, but its ``body`` is empty.
    """

    def __init__(self, status: str, headers: Headers, head: Head, length: int | None, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.head = head
        self.length = length
        self.body = body


def make_response(status: str, headers: Headers, body: bytes, *, is_head: bool) -> Response:
    """Return a response that can be sent.

    :raises ValueError: the status or a header is malformed, or the announced length is wrong.
    """
    head = _render_head(status, tuple(headers))
    length = len(body) if head.length is None else head.length
    if length != len(body) and not is_head:
        raise ValueError(f"the application announced {length} bytes and returned {len(body)}")
    if not head.allows_body:
        return Response(status, headers, head, None, b"")
    return Response(status, headers, head, length, b"" if is_head else body)


class Call:
    """One call of a WSGI application (PEP 3333): start it, then read its response."""

    def __init__(self, request: Request) -> None:
        """Call the application of the listener at which the request arrived."""
        self._request = request
        self._status: str | None = None
        self._headers: Headers = []
        self._writes: list[bytes] = []
        request.environ["wsgi.input"] = BytesIO(request.body.content)
        self._iterable: Iterable[bytes] = request.listener.application(request.environ, self._start_response)

    def _start_response(
        self, status: str, headers: Sequence[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        # No byte has been sent yet, so an error may replace the response that was started.
        if self._status is not None and not exc_info:
            raise AssertionError("start_response was called twice")
        self._status = status
        self._headers = list(headers)
        return self._writes.append

    def response(self) -> Response:
        """Read the body, close the iterable and return the response.

        :raises Exception: the application failed, or its response is malformed.
        """
        try:
            body = b"".join(self._iterable)
        finally:
            if hasattr(self._iterable, "close") and self._iterable.close:
                self._iterable.close()
            self._request.environ.pop("wsgi.input", None)  # The body's memory is no longer needed.
        if self._status is None:
            raise AssertionError("the application did not call start_response")
        if self._writes:
            body = b"".join((*self._writes, body))
        return make_response(self._status, self._headers, body, is_head=self._request.method == "HEAD")


def to_bytes(response: Response, request: Request, *, close: bool) -> bytes:
    """Return the bytes of a response; with ``close``, it announces that the connection will be closed."""
    date = b"" if response.head.has_date else _date(int(time.time()))
    parts = [response.head.lines, date, request.extra_headers]
    if response.length is not None:
        parts.append(b"Content-Length: %d\r\n" % response.length)
    if close:
        parts.append(b"Connection: close\r\n")
    elif request.http_1_0:
        parts.append(b"Connection: keep-alive\r\n")
    parts.append(b"\r\n")
    parts.append(response.body)
    return b"".join(parts)


# Most responses have one of a few heads. Each head is checked and rendered once.
@lru_cache(maxsize=512)
def _render_head(status: str, headers: tuple[tuple[str, str], ...]) -> Head:
    if not _FINAL_STATUS.fullmatch(status):
        raise ValueError("a final status is a number from 200 to 599, a space and a phrase")
    lines = [f"HTTP/1.1 {status}\r\n"]
    length = None
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the application returned a header that cannot be sent: {name!r}")
        if name.lower() == "content-length":
            length = int(value)
        elif not is_hop_by_hop(name):
            # Falcon writes names in lower case, unlike this server's own headers.
            spelling = name.title().replace("Www", "WWW") if name.islower() or name.lower() == "date" else name
            lines.append(f"{spelling}: {value}\r\n")
    allows_body = not status.startswith(_NO_CONTENT_STATUSES)
    return Head("".join(lines).encode("latin-1"), length, allows_body=allows_body)


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


class ErrorLog:
    """``wsgi.errors`` (PEP 3333) for a log with a method ``error``."""

    def __init__(self, error: Callable[..., None]) -> None:
        self._error = error

    def write(self, text: str) -> int:
        """Log the text, without the white space at its end."""
        if text.strip():
            self._error("%s", text.rstrip())
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Log each of the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing, because ``write`` does not buffer."""
