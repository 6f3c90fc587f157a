"""An answer: the whole of what a WSGI application gives, and how it becomes bytes."""

import re
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache
from io import BytesIO, TextIOBase
from types import TracebackType
from typing import NamedTuple
from wsgiref.util import is_hop_by_hop

from plants.server.request import Environ, Request

Headers = list[tuple[str, str]]
WSGIApplication = Callable[[Environ, Callable[..., object]], Iterable[bytes]]
# The annotations of a function in a function are evaluated at each call; a ready-made name is cheaper.
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | None
_Write = Callable[[bytes], None]

_FINAL_STATUS = re.compile(r"[2-5][0-9]{2} [ \t\x21-\x7e]*")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_NO_CONTENT = ("204", "304")  # RFC 9110, sections 15.3.5 and 15.4.5


class Answer(NamedTuple):
    """A whole answer.

    ``status`` includes the phrase. ``head`` is the status line and the fields in bytes, without those that depend on
    the moment and the connection; ``length`` is the length of the body, which the answer to HEAD leaves out, or None if
    the status allows no body.
    """

    status: str
    headers: Headers
    head: bytes
    length: int | None
    body: bytes


def make_answer(status: str, headers: Headers, body: bytes, *, is_head: bool) -> Answer:
    """Give an answer that can be sent.

    :raises ValueError: the status or a header field is malformed, or the announced length is wrong.
    """
    head, length, has_body = _head(status, tuple(headers))
    if length is None:
        length = len(body)
    elif length != len(body) and not is_head:
        raise ValueError(f"the application announced {length} bytes and gave {len(body)}")
    return Answer(status, headers, head, length if has_body else None, body if has_body and not is_head else b"")


def call_application(app: WSGIApplication, request: Request) -> Answer:
    """Call the application (PEP 3333) and give its whole answer. It may be called again for the same request."""
    environ = request.environ.copy()
    environ["wsgi.input"] = BytesIO(request.body.content)
    started: list[tuple[str, Headers]] = []
    written: list[bytes] = []

    def start_response(status: str, headers: Headers, exc_info: _ExcInfo = None) -> _Write:
        # Nothing has been sent yet, so an error may always replace the answer that was started.
        if started and not exc_info:
            raise AssertionError("start_response was called twice")
        started.append((status, headers))
        return written.append

    iterable = app(environ, start_response)
    try:
        body = b"".join(iterable)
    finally:
        if hasattr(iterable, "close"):
            iterable.close()
    if not started:
        raise AssertionError("the application did not call start_response")
    return make_answer(*started[-1], b"".join((*written, body)) if written else body, is_head=request.is_head)


def to_bytes(answer: Answer, request: Request, *, closes: bool) -> bytes:
    """Give the bytes of an answer; if ``closes``, the connection is closed after it."""
    parts = [answer.head, _date(int(time.time())), request.extra_fields]
    if answer.length is not None:
        parts.append(b"Content-Length: %d\r\n" % answer.length)
    if closes:
        parts.append(b"Connection: close\r\n")
    elif request.environ["SERVER_PROTOCOL"] == "HTTP/1.0":
        parts.append(b"Connection: keep-alive\r\n")
    parts += (b"\r\n", answer.body)
    return b"".join(parts)


# Most answers have one of a few heads. Each head is checked and rendered once.
@lru_cache(maxsize=512)
def _head(status: str, headers: tuple[tuple[str, str], ...]) -> tuple[bytes, int | None, bool]:
    if not _FINAL_STATUS.fullmatch(status):
        raise ValueError("a status is three digits, a space and a phrase")
    lines = [f"HTTP/1.1 {status}\r\n"]
    length = None
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the application gave a header field that cannot be sent: {name!r}")
        if name.lower() == "content-length":
            length = int(value)
        elif not is_hop_by_hop(name):
            lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("latin-1"), length, not status.startswith(_NO_CONTENT)


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


class ErrorLog(TextIOBase):
    """``wsgi.errors``: what is written to it goes to a log, whose method ``error`` this takes."""

    def __init__(self, error: Callable[..., None]) -> None:
        self._error = error

    def write(self, text: str) -> int:
        """Log the text, without the white space at its end."""
        if text.strip():
            self._error("%s", text.rstrip())
        return len(text)
