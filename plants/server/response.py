"""The complete response of a WSGI application, and its bytes."""

import re
import time
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache
from http.client import responses
from typing import Final
from wsgiref.util import is_hop_by_hop

from plants.server.request import NAME, VALUE, Request

Headers = Sequence[tuple[str, str]]
Error = tuple[int, str] | None  # the code and the message

_FINAL_STATUS: Final = re.compile(r"[2-5][0-9]{2} [ \t\x21-\x7e]*")
_NO_CONTENT: Final = 204
_NOT_MODIFIED: Final = 304
_NAME: Final = re.compile(NAME)
_VALUE: Final = re.compile(VALUE)


class Response:
    """A complete response.

    ``head`` is the status line and the application's headers in bytes, without Date, Content-Length and hop-by-hop
    headers. ``length`` is the value of Content-Length, or None. The response to a HEAD request, and a 304, have no
    body, and no length unless the application set it. ``error`` is for the log.
    """

    def __init__(self, status: int, head: bytes, length: int | None, body: bytes, error: Error) -> None:
        self.status = status
        self.head = head
        self.length = length
        self.body = body
        self.error = error


def make_response(request: Request, line: str | int, headers: Headers, body: bytes, error: Error = None) -> Response:
    """Return a response that can be sent.

    :param line: the status, with or without its phrase.
    :param error: it is ignored if its code is that of another status.
    :raises ValueError: the status or a header is malformed, or the announced length is wrong.
    """
    status, head, length = _render_head(line, tuple(headers), request.id != "")
    error = error if error and error[0] // 100 == status else None
    if status == _NO_CONTENT:  # RFC 9110, section 8.6: it has no length.
        return Response(status, head, None, b"", error)
    # RFC 9110, sections 9.3.2 and 15.4.5: there is no body, and the length is that of another response.
    if request.method == "HEAD" or status == _NOT_MODIFIED:
        return Response(status, head, length, b"", error)
    if length not in (None, len(body)):
        raise ValueError(f"the application announced {length} bytes and returned {len(body)}")
    return Response(status, head, len(body), body, error)


def to_bytes(response: Response, request: Request, *, close: bool) -> bytes:
    """Return the bytes of a response; with ``close``, it announces that the connection will be closed."""
    date = _date(int(time.time()))
    length = b"" if response.length is None else b"Content-Length: %d\r\n" % response.length
    connection = b"Connection: close\r\n" if close else b"" if request.is_1_1 else b"Connection: keep-alive\r\n"
    own_id = f"X-Request-ID: {request.id}\r\n".encode() if request.id else b""
    return b"".join((response.head, date, own_id, length, connection, b"\r\n", response.body))


# Most responses have one of a few heads. Each head is checked and rendered once.
@lru_cache(maxsize=512)
def _render_head(status: str | int, headers: Headers, has_id: bool) -> tuple[int, bytes, int | None]:
    """Return the status, the head in bytes, and the value of Content-Length, if the application set it."""
    line = status if isinstance(status, str) else f"{status} {responses.get(status, 'Unknown')}"
    if not _FINAL_STATUS.fullmatch(line):
        raise ValueError("a final status is a number from 200 to 599, a space and a phrase")
    lines = [f"HTTP/1.1 {line}\r\n"]
    replaced = {"date", "x-request-id"} if has_id else {"date"}  # by the server's own
    length = None
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the application returned a header that cannot be sent: {name!r}")
        if name.lower() == "content-length":
            length = int(value)
        elif name.lower() not in replaced and not is_hop_by_hop(name):
            # Some applications write names in lower case, unlike this server.
            spelling = name.title().replace("Www", "WWW") if name.islower() else name
            lines.append(f"{spelling}: {value}\r\n")
    return int(line[:3]), "".join(lines).encode("latin-1"), length


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()
