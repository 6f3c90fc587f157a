"""A request as it arrives: parse the head into an environ (PEP 3333) and collect the body, or reject it."""

import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from plants.server.config import Config

Environ = dict[str, Any]
WSGIApplication = Callable[[Environ, Any], Iterable[bytes]]

HEAD_BYTES: Final = 16_384  # all of it, and all trailers
_CHUNK_LINE_BYTES: Final = 1024
_MAX_CHUNKS_PER_STEP: Final = 64  # A client with tiny chunks must not delay other clients.

# RFC 9110, section 5.6.2. The quantifiers are possessive (*+, ++): no pattern backtracks, whatever the input.
NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
# RFC 9110, section 5.5: visible characters, spaces, tabs and obs-text, but no line break, so a value cannot be folded.
VALUE: Final = r"[\t\x20-\x7e\x80-\xff]*+"
# RFC 9112, section 5.1: no white space before the colon.
_FIELD: Final = re.compile(rf"(?<=\n)({NAME}):[ \t]*+({VALUE})\r\n")
# RFC 9112, sections 2.2 (an empty line may precede a request line), 2.3 and 3. Stricter than the RFC: a method has 3
# to 20 characters, no lower-case letter and no #, because some proxies parse other methods differently.
_REQUEST_LINE: Final = re.compile(r"(?:\r\n)?+([!$%&'*+\-.^_`|~0-9A-Z]{3,20}+) ([\x21-\x7e]++) (HTTP/1\.[01])\r\n")
# The first lines of other protocols, and the responses to them. The signature of PROXY 2 begins with two empty lines.
_OTHER_PROTOCOLS: Final = {
    "PRI * HTTP/2.0\r\n": (505, "This is HTTP/2 without negotiation. The server supports only HTTP/1.1."),
    "PROXY ": (400, "This is the PROXY protocol, which the server does not support."),
    "\r\n\r\n": (400, "More than one empty line precedes the request, as in the PROXY protocol, version 2."),
}
# RFC 3986, section 3.2.2; a host that is empty is not valid in an http URL (RFC 9110, section 4.2.1).
_AUTHORITY: Final = r"(?:\[[0-9A-Fa-f:.]++\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})++)(?::[0-9]*+)?+"
_HOST: Final = re.compile(_AUTHORITY)
_ABSOLUTE_FORM: Final = re.compile(rf"https?://({_AUTHORITY})([/?].*+)?+", re.IGNORECASE)
_MAX_LENGTH_DIGITS: Final = 640  # int() accepts this many, even with the lowest PYTHONINTMAXSTRDIGITS.
# RFC 9112, sections 7.1 and 7.1.1, with the preceding CRLF, which ends the head or the previous chunk.
_QUOTED: Final = r'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*+"'
_EXTENSION: Final = rf"[ \t]*+;[ \t]*+{NAME}(?:[ \t]*+=[ \t]*+(?:{NAME}|{_QUOTED}))?+"
_CHUNK_LINE: Final = re.compile(rf"\r\n([0-9A-Fa-f]{{1,16}}+)(?:{_EXTENSION})*+".encode("latin-1"))
# RFC 9110, section 6.5.1: other servers may use these fields of a trailer, such as Connection.
_FORBIDDEN_TRAILERS: Final = {
    "authorization", "connection", "content-encoding", "content-length", "content-range", "content-type", "cookie",
    "expect", "host", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
_environ_keys: Final[dict[str, str]] = {}  # Names of fields repeat. The cache saves 1 % of a request.
_MAX_CACHED_NAMES: Final = 128  # A client could fill a larger cache with long names.
_UNIQUE_KEYS: Final = {"CONTENT_LENGTH", "HTTP_HOST"}
_TOO_LARGE_FIELDS: Final = (431, "There are too many header fields, or they are too large.")


@dataclass
class Listener:
    """A listening socket, and the WSGI application that responds to the requests that arrive there.

    Clients of this socket may use ``reserved_connections`` connections more than the worker's maximum.
    """

    sock: socket.socket
    application: WSGIApplication
    reserved_connections: int = 0


class HTTPError(Exception):
    """The server rejects a request, and closes the connection after the response.

    :param status: the HTTP status.
    :param message: what is wrong, for people, if the status alone is not enough.
    """

    def __init__(self, status: int, message: str | None = None) -> None:
        self.status = status
        self.message = message


class SizedBody:
    """A body of a known length (RFC 9112, section 6.2).

    ``content`` is what has been received so far; ``size`` is the length as far as known; ``complete`` is set once all
    of it has been received. Chunks are parsed from the CRLF that ends the head (``overlap``), so that all begin alike;
    this body needs none of it.
    """

    overlap: int = 0

    def __init__(self, size: int) -> None:
        self.content: bytes | bytearray = b""
        self.size = size
        self.complete: bool = not size

    def feed(self, data: bytes) -> bytes:
        """Consume the body's part of ``data`` and return the rest; call again with the rest and new data."""
        missing = self.size - len(self.content)
        self.complete = len(data) >= missing
        if self.content:
            self.content += data[:missing]
        else:  # Most bodies arrive in one piece, and are not copied again.
            self.content = data[:missing] if self.complete else bytearray(data)
        return data[missing:]


class ChunkedBody:
    """A body in chunks (RFC 9112, section 7.1), with the interface of ``SizedBody``; it checks and drops trailers."""

    overlap: int = len(b"\r\n")

    def __init__(self, config: Config) -> None:
        self.content: bytes | bytearray = bytearray()
        self.size: int = 0
        self.complete: bool = False
        self._config = config
        self._missing_bytes = 0  # of the current chunk
        self._in_trailers = False

    def feed(self, data: bytes) -> bytes:
        """Consume a limited number of chunks and return the rest of ``data``.

        :raises HTTPError: a chunk or a trailer is malformed.
        """
        position = 0
        for _ in range(_MAX_CHUNKS_PER_STEP):
            if self._in_trailers:
                return self._feed_trailers(data[position:])
            piece = data[position : position + self._missing_bytes]
            self.content += piece
            self._missing_bytes -= len(piece)
            position += len(piece)
            end = data.find(b"\r\n", position + 2, position + _CHUNK_LINE_BYTES)
            if end < 0:
                start = data[position : position + _CHUNK_LINE_BYTES]
                if len(start) == _CHUNK_LINE_BYTES or not b"\r\n".startswith(start[:2]):
                    raise HTTPError(400)
                break
            self._begin_chunk(data, position, end)
            position = end + 2 if self._missing_bytes else end
        return data[position:]

    def _begin_chunk(self, data: bytes, start: int, end: int) -> None:
        line = _CHUNK_LINE.fullmatch(data, start, end)
        if not line:
            raise HTTPError(400, "The chunks of the body are malformed.")
        self._missing_bytes = int(line[1], 16)
        self.size += self._missing_bytes
        self._in_trailers = not self._missing_bytes

    def _feed_trailers(self, data: bytes) -> bytes:
        # CRLF, fields and an empty line follow the line of the last chunk.
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > HEAD_BYTES:
                raise HTTPError(*_TOO_LARGE_FIELDS)
            return data
        for name, _ in _fields(data[: end + 4].decode("latin-1"), 2, self._config):
            if name.lower() in _FORBIDDEN_TRAILERS:
                raise HTTPError(400)
        self.complete = True
        return data[end + 4 :]


NO_BODY: Final = SizedBody(0)


class Request:
    """A request as it arrives.

    ``environ`` is the environ (PEP 3333) without ``wsgi.input``. The application may change it, so the request also has
    ``method`` and ``path`` (decoded, without the query), which are empty until the head is parsed. ``started`` is the
    time of the first byte (``time.monotonic()``). If a hook sets ``id``, the response has it as ``X-Request-ID``.
    """

    environ: Environ
    started: float
    method: str = ""
    path: str = ""
    body: SizedBody | ChunkedBody = NO_BODY
    head_parsed: bool = False
    is_1_1: bool = True
    keep_alive: bool = False
    awaits_continue: bool = False
    id: str = ""

    def drop_body(self) -> None:
        """Continue as if the request had no body, and end the connection with the response."""
        self.body = NO_BODY
        self.environ.pop("CONTENT_LENGTH", None)
        self.keep_alive = False

    def parse_head(self, head: str, config: Config) -> None:
        """Parse a complete head, with its empty line.

        :raises HTTPError: it is malformed or not supported.
        """
        end = head.find("\r\n", 2)
        if end > config.line_bytes:
            raise HTTPError(414, "The request line is too long.")
        environ = self.environ
        self.method, environ["RAW_URI"], environ["SERVER_PROTOCOL"] = _parse_request_line(head[: end + 2])
        environ["REQUEST_METHOD"] = self.method
        self.is_1_1 = environ["SERVER_PROTOCOL"] == "HTTP/1.1"
        for name, value in _fields(head, end + 2, config):
            key = _environ_keys.get(name) or _environ_key(name)
            if key not in environ:
                environ[key] = value
            elif key in _UNIQUE_KEYS:
                raise HTTPError(400)
            else:
                environ[key] += "," + value
        if "" in environ:
            del environ[""]
        self._parse_connection()
        self._parse_target()
        self._parse_framing(config)
        self.head_parsed = True

    def _parse_connection(self) -> None:
        environ = self.environ
        self.keep_alive = is_1_1 = self.is_1_1
        if "HTTP_CONNECTION" in environ:
            # As bytes, because lower() takes long for text that is not ASCII.
            options = b"," + b"".join(environ["HTTP_CONNECTION"].encode("latin-1").lower().split()) + b","
            self.keep_alive = b",close," not in options and (is_1_1 or b",keep-alive," in options)
        if self.method == "CONNECT":
            self.keep_alive = False  # The bytes after it may belong to a tunnel.
        host = environ.get("HTTP_HOST")
        if (host is None and is_1_1) or (host is not None and not _is_host(host)):
            raise HTTPError(400, "A request must have exactly one valid Host field.")

    def _parse_target(self) -> None:
        target: str = self.environ["RAW_URI"]
        if not target.startswith("/"):
            target = self._origin_form(target)
        if "#" in target:
            raise HTTPError(400, "A request target must not have a fragment.")
        path, _, self.environ["QUERY_STRING"] = target.partition("?")
        self.path = self.environ["PATH_INFO"] = unquote(path, "latin-1") if "%" in path else path

    def _origin_form(self, target: str) -> str:
        if self.method == "CONNECT":
            raise HTTPError(501, "This is not a proxy.")
        if target == "*" and self.method == "OPTIONS":
            return ""
        absolute = _ABSOLUTE_FORM.fullmatch(target)
        if not absolute:
            raise HTTPError(400, "A request target must be a path, or an http URL without user information.")
        # RFC 9112, section 3.2.2: the host in the target replaces the Host field.
        self.environ["HTTP_HOST"], rest = absolute.groups(default="/")
        return rest if rest.startswith("/") else "/" + rest

    def _parse_framing(self, config: Config) -> None:
        environ = self.environ
        length: str | None = environ.get("CONTENT_LENGTH")
        if length is not None:
            if not length.isdecimal() or len(length) > _MAX_LENGTH_DIGITS:  # RFC 9110, section 8.6
                raise HTTPError(400)
            self.body = SizedBody(int(length))
        if "HTTP_TRANSFER_ENCODING" in environ:
            codings = environ.pop("HTTP_TRANSFER_ENCODING").lower().strip(" \t")
            # RFC 9112, sections 6.1 and 6.3: the end of the body is ambiguous if there is also a length, if the request
            # is HTTP/1.0, or if the last coding is not chunked.
            if length is not None or not self.is_1_1 or codings.rpartition(",")[2].strip(" \t") != "chunked":
                raise HTTPError(400)
            if codings != "chunked":
                raise HTTPError(501, "The only supported transfer coding is chunked.")
            self.body = ChunkedBody(config)
        if "HTTP_EXPECT" in environ:
            if environ["HTTP_EXPECT"].encode("latin-1").lower() != b"100-continue":
                raise HTTPError(417, "The only supported expectation is 100-continue.")
            self.awaits_continue = self.is_1_1  # RFC 9110, section 10.1.1: HTTP/1.0 has no such expectation.


def check_growing_head(data: bytes, config: Config) -> None:
    """Check the start of an incomplete head.

    :raises HTTPError: no valid head starts like this, or it is already too large.
    """
    end = data.find(b"\n", 2)
    if (end if end >= 0 else len(data)) > config.line_bytes + 1:
        raise HTTPError(414, "The request line is too long.")
    if end >= 0:
        _parse_request_line(data[: end + 1].decode("latin-1"))
    if len(data) > HEAD_BYTES:
        raise HTTPError(*_TOO_LARGE_FIELDS)


# A client usually repeats its request line.
@lru_cache(maxsize=64)
def _parse_request_line(line: str) -> tuple[str, str, str]:
    """Parse a request line, with its CRLF: the method, the target and the version.

    :raises HTTPError: it is malformed or not supported.
    """
    match = _REQUEST_LINE.fullmatch(line)
    if not match:
        for start, error in _OTHER_PROTOCOLS.items():
            if line.startswith(start):
                raise HTTPError(*error)
        raise HTTPError(400)
    return match[1], match[2], match[3]


def _fields(section: str, start: int, config: Config) -> list[tuple[str, str]]:
    """Parse the fields of a head or of trailers: from ``start``, the beginning of a line, to the empty line."""
    fields = _FIELD.findall(section, start)
    # Each match is a complete line. If there are as many lines as matches, there is nothing else.
    if len(fields) != section.count("\n", start) - 1:
        raise HTTPError(400)
    longest = max(map(len, section[start:].split("\r\n"))) if len(section) > config.field_bytes else 0
    if len(section) > HEAD_BYTES or len(fields) > config.max_fields or longest > config.field_bytes:
        raise HTTPError(*_TOO_LARGE_FIELDS)
    if " \r\n" in section or "\t" in section:
        return [(name, _without_trailing_space(value)) for name, value in fields]
    return fields


def _without_trailing_space(value: str) -> str:
    # rstrip(" \t") takes 13 times as long as rstrip(), which removes these two characters of obs-text, too.
    return value[: max(len(value.rstrip()), value.rfind("\x85") + 1, value.rfind("\xa0") + 1)]


@lru_cache(maxsize=64)
def _is_host(host: str) -> bool:
    return _HOST.fullmatch(host) is not None


def _environ_key(name: str) -> str:
    """Return a field's environ key, or "" if its name has an underscore, because X_Y would have the key of X-Y."""
    if "_" in name:
        return ""
    key = name.upper().replace("-", "_")
    key = key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"
    if len(_environ_keys) >= _MAX_CACHED_NAMES:
        _environ_keys.clear()
    _environ_keys[name] = key
    return key
