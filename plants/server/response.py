"""The complete response of a WSGI application, and its bytes."""

import re
import time
from email.utils import formatdate
from functools import lru_cache
from typing import Final
from wsgiref.util import is_hop_by_hop

from plants.server.request import NAME, VALUE, Request

Headers = list[tuple[str, str]]

_FINAL_STATUS: Final = re.compile(r"[2-5][0-9]{2} [ \t\x21-\x7e]*")
_NAME: Final = re.compile(NAME)
_VALUE: Final = re.compile(VALUE)


class Response:
    """A complete response.

    ``status`` includes the phrase. ``head`` is the status line and the application's headers in bytes, without Date,
    Content-Length and hop-by-hop headers. ``length`` is the value of Content-Length, or None. The response to a HEAD
    request, and a 304, have no body, and no length unless the application set it.
    """

    def __init__(self, status: str, head: bytes, length: int | None, body: bytes) -> None:
        self.status = status
        self.head = head
        self.length = length
        self.body = body


def make_response(status: str, headers: Headers, body: bytes, *, is_head: bool) -> Response:
    """Return a response that can be sent.

    :raises ValueError: the status or a header is malformed, or the announced length is wrong.
    """
    head, length = _render_head(status, tuple(headers))
    if status.startswith("204"):  # RFC 9110, section 8.6: it has no length.
        return Response(status, head, None, b"")
    # RFC 9110, sections 9.3.2 and 15.4.5: there is no body, and the length is that of another response.
    if is_head or status.startswith("304"):
        return Response(status, head, length, b"")
    if length not in (None, len(body)):
        raise ValueError(f"the application announced {length} bytes and returned {len(body)}")
    return Response(status, head, len(body), body)


def to_bytes(response: Response, request: Request, *, close: bool) -> bytes:
    """Return the bytes of a response; with ``close``, it announces that the connection will be closed."""
    date = _date(int(time.time()))
    length = b"" if response.length is None else b"Content-Length: %d\r\n" % response.length
    connection = b"Connection: close\r\n" if close else b"" if request.is_1_1 else b"Connection: keep-alive\r\n"
    return b"".join((response.head, date, request.extra_headers, length, connection, b"\r\n", response.body))


# Most responses have one of a few heads. Each head is checked and rendered once.
@lru_cache(maxsize=512)
def _render_head(status: str, headers: tuple[tuple[str, str], ...]) -> tuple[bytes, int | None]:
    """Return the head in bytes, and the value of Content-Length, if the application set it."""
    if not _FINAL_STATUS.fullmatch(status):
        raise ValueError("a final status is a number from 200 to 599, a space and a phrase")
    lines = [f"HTTP/1.1 {status}\r\n"]
    length = None
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the application returned a header that cannot be sent: {name!r}")
        if name.lower() == "content-length":
            length = int(value)
        elif name.lower() != "date" and not is_hop_by_hop(name):  # Each response gets the server's Date.
            # Some applications write names in lower case, unlike this server.
            spelling = name.title().replace("Www", "WWW") if name.islower() else name
            lines.append(f"{spelling}: {value}\r\n")
    return "".join(lines).encode("latin-1"), length


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()
