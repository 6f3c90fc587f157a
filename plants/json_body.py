"""Read the body of a request in bounded memory, and parse it as strict JSON (RFC 8259)."""

import codecs
import json
import math
import re
from itertools import accumulate
from typing import Any

import falcon

from plants.errors import ErrorCode, http_error

# RFC 9110, section 5.6.6: a parameter may be empty.
_MEDIA_TYPE = re.compile(
    r"""application/json(?:[ \t]*;)*(?:[ \t]*;[ \t]*charset=(?:"utf-8"|utf-8)(?:[ \t]*;)*)?[ \t]*""",
    re.IGNORECASE | re.ASCII,
)
_MAX_DIGITS = 640  # Python may be set to convert no more to an integer.
_SPACE = " \t\n\r"  # RFC 8259, section 2
_MAX_INT64_LENGTH = len(str(-(2**63)))
_MAX_DEPTH = 100
_MAX_VALUES = 1_000  # with the names; a mebibyte of them takes a hundred times as long to parse as one string
_MAX_READ_BYTES = 1 << 20
_TOO_MANY = f"it has more than {_MAX_VALUES:,} names and values"
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Opening brackets become the byte 1 and closing ones -1; all other bytes are deleted.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_OTHER_BYTES = bytes(set(range(256)) - set(b"[{]}"))
_NO_BODY = "There is no Content-Length, and the server does not mark the end of a body (wsgi.input_terminated)."


def read_json(req: falcon.Request, max_bytes: int) -> Any:
    """Read the JSON document that is the body of a request.

    :raises falcon.HTTPError: the media type or the content coding is not supported; the body is larger than
        ``max_bytes``, is cut short, or is not JSON.
    """
    # A host may set a variable to None or to a number, although PEP 3333 requires strings.
    media_type = str(req.env.get("CONTENT_TYPE") or "")
    is_json = media_type == "application/json" or _MEDIA_TYPE.fullmatch(media_type)
    coding = req.env.get("HTTP_CONTENT_ENCODING")
    if not is_json or (coding and str(coding).lower() != "identity"):
        raise http_error(ErrorCode.UNSUPPORTED_MEDIA_TYPE)
    return parse_json(_read_body(req, max_bytes))


def _read_body(req: falcon.Request, max_bytes: int) -> bytearray:
    digits = str(req.env.get("CONTENT_LENGTH") or "").strip(" \t")
    if digits and not (digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS):
        raise http_error(ErrorCode.MALFORMED_REQUEST, "The Content-Length is not a number.")
    length = int(digits) if digits else None
    if length is None and not req.env.get("wsgi.input_terminated"):
        # PEP 3333 does not define where a body without Content-Length ends. Servers that decode chunks set this key.
        raise http_error(ErrorCode.NOT_JSON, _NO_BODY)
    if (length or 0) > max_bytes:
        raise _too_large(max_bytes)
    limit = max_bytes + 1 if length is None else length
    body = bytearray()
    while len(body) < limit:
        try:
            # A buffered stream allocates the size that it is asked for, even if the body is smaller.
            chunk = req.stream.read(min(limit - len(body), _MAX_READ_BYTES))
        except Exception as error:  # Servers raise different types for a lost client or a broken chunk.
            raise http_error(ErrorCode.MALFORMED_REQUEST) from error
        if not chunk:
            break
        body += chunk
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    if length is not None and len(body) < length:
        raise http_error(ErrorCode.MALFORMED_REQUEST, "The body is shorter than its Content-Length.")
    return body


def _too_large(max_bytes: int) -> falcon.HTTPError:
    return http_error(ErrorCode.TOO_LARGE, f"The body is larger than {max_bytes} bytes.")


def parse_json(body: bytes | bytearray) -> Any:
    """Parse RFC 8259 text in UTF-8 without a byte order mark, in which no object has a name twice (RFC 7493).

    The limits of 100 nested arrays and objects, and of 1,000 names and values, are ours. An integer literal that is
    longer than any int64 becomes an infinity, which no integer field accepts.

    :raises falcon.HTTPError: the body is not such JSON.
    """
    try:
        text = body.decode().strip(_SPACE)
        if len(text) > _MAX_DEPTH:
            _check_bounds(text)
        document, end = _decoder.raw_decode(text)
    except ValueError as error:
        problem = "it begins with a byte order mark" if body.startswith(_BYTE_ORDER_MARKS) else str(error)
        raise http_error(ErrorCode.NOT_JSON, f"The body is missing or is not JSON: {problem}.") from None
    if end < len(text):
        raise http_error(ErrorCode.NOT_JSON, "The body has more text after its JSON.")
    return document


def _check_bounds(text: str) -> None:
    # Each name and value, except the document itself, is the first after one of these four characters.
    opening = text.count("[") + text.count("{")
    if opening <= _MAX_DEPTH and opening + text.count(",") + text.count(":") < _MAX_VALUES:
        return
    # The counts may be wrong after a syntax error, but the parser rejects the text there anyway.
    text = text.replace("\\\\", "").replace('\\"', "")
    if text.count('"') > 2 * _MAX_VALUES:  # Splitting that text would take long.
        raise ValueError(_TOO_MANY)
    outside = '"'.join(text.split('"')[::2]).encode().translate(None, _SPACE.encode())
    empty = outside.count(b"[]") + outside.count(b"{}")
    if sum(map(outside.count, (b"[", b"{", b",", b":"))) - empty >= _MAX_VALUES:
        raise ValueError(_TOO_MANY)
    steps = outside.translate(_STEPS, _OTHER_BYTES)[: 2 * _MAX_VALUES]  # JSON with so few values has no more brackets.
    if max(accumulate(memoryview(steps).cast("b")), default=0) > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} arrays and objects are nested")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name is used twice in one object")
    return members


def _int(literal: str) -> int | float:
    # int() takes quadratic time in the number of digits, and rejects more than 4,300 with an error of its own.
    return int(literal) if len(literal) <= _MAX_INT64_LENGTH else math.inf


# A constant is NaN or an infinity, which int() rejects by its name.
_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_int, parse_constant=int)
