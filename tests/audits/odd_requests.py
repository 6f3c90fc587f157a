"""Valid requests, and requests that differ from a valid one in a few details."""

import random
from collections.abc import Iterator

LINES = [
    b"POST /a HTTP/1.1", b"GET /a HTTP/1.1", b"POST /a?b=c HTTP/1.1", b"POST /a HTTP/1.0", b"HEAD /a HTTP/1.1",
]  # fmt: skip
METHODS = [
    b"get", b"Get", b"G@T", b"GET\t", b"", b"G\x00T", b"POST ", b" POST", b"OPTIONS", b"DELETE", b"PUT", b"PATCH",
    b"QUERY", b"CONNECT", b"TRACE", b"PRI", b"X", b"A" * 21, b"A" * 300, b"\xc3\x84", b"P(ST", b"P,ST",
]  # fmt: skip
TARGETS = [
    b"/", b"*", b"", b"a", b"//", b"//a/b", b"/%", b"/%zz", b"/%00", b"/a b", b"/a\tb", b"/a\x00b", b"/\x7f",
    b"/\xff", b"/\xc3\xa4", b"/a#b", b"?a", b"http://a/", b"http://a", b"HTTP://A/", b"http://b/c", b"https://a/",
    b"ftp://a/", b"http:///a", b"http://u@a/", b"http://a:80/", b"http://a:x/", b"http://[::1]/", b"http://[::1/",
    b"http:/a", b"a:443", b"/a/../b", b"/a\\b", b'/"', b"/<>", b"/^`{|}", b"/" + b"a" * 9000, b"/a;b",
    b"javascript:x", b"/\r", b"/a?b?c", b"/a?\x01", b"http://a?b", b"http://a#b", b"http://a b/",
]  # fmt: skip
VERSIONS = [
    b"HTTP/1.0", b"HTTP/1.1", b"HTTP/1.2", b"HTTP/1.9", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1", b"HTTP/1.", b"HTTP/1.10",
    b"HTTP/01.1", b"http/1.1", b"HTTP/1.1 ", b"HTTP /1.1", b"HTTP/1,1", b"HTTP/+1.1", b"HTTP/1.1x", b"", b"HTTPS/1.1",
    b"ICY/1.1", b"HTTP/1.1\t", b"HTTP/\xb9.1",
]  # fmt: skip
NAMES = [
    b"X-A", b"x-a", b"X_A", b"", b" X-A", b"X-A ", b"X-A\t", b"\tX-A", b"X A", b"X\x00A", b"X\xe4", b"X(", b'X"',
    b"X/A", b"X;", b"X[A", b"X@", b"X,A", b"1", b"!#$%&'*+-.^_`|~", b"A" * 300, b"X\rA", b"X\nA", b"X\x7f", b"X\x0b",
]  # fmt: skip
VALUES = [
    b"", b"a", b" ", b"\t", b" a ", b"a\tb", b"a\x00b", b"a\rb", b"a\nb", b"a\r\n b", b"a\r\n\tb", b"\x01", b"\x7f",
    b"\xff", b"\xc3\xa4", b"a" * 8000, b"a" * 9000, b"a:b", b":", b"\x0b", b"\x0ca", b"\x1b[0m", b"a\\", b'"',
    b"\x85", b"\xa0a",
]  # fmt: skip
HOSTS = [
    b"a", b"", b" ", b"a:80", b"a:", b"a:x", b"a:99999", b"a b", b"a,b", b"a/b", b"u@a", b"[::1]", b"[::1]:80",
    b"[::1", b"::1", b"a\x00", b"\xe4", b"a_b", b"a%41", b"a%", b"a#b", b"a?b", b"a\tb", b"A", b"a..b", b"-a", b"a.",
    b"[x]", b"a\\b", b"a;b", b"a:80:80", b"[::1]a", b"a&b", b"<a>", b"a\"b", b"a'b", b"a=b", b"(a)",
]  # fmt: skip
LENGTHS = [
    b"0", b"4", b"5", b"3", b"04", b"0004", b"+4", b"-4", b"4 ", b" 4", b"\t4", b"4\t", b"4,4", b"4, 4", b"4,", b",4",
    b"4 4", b"0x4", b"4.0", b"4e0", b"1_0", b"", b"4;", b"a", b"4\x00", b"\xb24", b"\xd9\xa4", b"9" * 20, b"9" * 5000,
    b"4\x0b", b"\x0c4", b"0" * 400 + b"4", b"18446744073709551620", b"4294967300", b'"4"', b"4\r\n 4",
]  # fmt: skip
CODINGS = [
    b"chunked", b"Chunked", b"CHUNKED", b"chunked ", b"\tchunked", b"chunked,", b",chunked", b"chunked, chunked",
    b"chunked,chunked", b"identity", b"identity, chunked", b"gzip", b"gzip, chunked", b"chunked, gzip",
    b"chunked, identity", b"xchunked", b"chunkedx", b"chunked;a=b", b'"chunked"', b"", b"chunked\x00", b"\x0bchunked",
    b"chunked\x0b", b"chun\tked", b"deflate", b"\xa0chunked", b"chunked\r\n ,a", b"\r\n chunked", b"trailers",
    b"chunked;", b"x, chunked",
]  # fmt: skip
SIZES = [
    b"4", b"04", b"00000004", b"0" * 20 + b"4", b"0" * 300 + b"4", b"4 ", b" 4", b"4\t", b"\t4", b"+4", b"-4", b"0x4",
    b"0X4", b"4;", b"4;a", b"4;a=b", b"4;a=b;c", b'4;a="b"', b'4;a="b', b'4;a="\\""', b"4;=", b"4;=b", b"4;;",
    b"4 ;a", b"4; a", b"4;a =b", b"4;a= b", b"4;a\x00", b"4;a\xff", b"4;a\rb", b"4;a\nb", b'4;a="\r"', b'4;a="b\x7f"',
    b"4;a=b c", b"4;a=b,c", b"4,a", b"4\x00", b"4a", b"g", b"", b"4_", b"4.0", b"4\r", b"4\x0b", b"\xb4", b"4h",
    b"00", b"0", b"5", b"3", b"fffffffffffffffff", b"ffffffffffffffff", b"100000004", b"10000000000000004",
    b"80000000", b"-0", b"4;" + b"a" * 5000, b"4;a=(b)", b"4:a", b"4\x1f;a", b"4;\ta", b"4;a\t",
]  # fmt: skip
TRAILERS = [
    b"X-A: a", b"X-A:a", b"X-A:", b"X-A", b": a", b"", b"X-A : a", b" X-A: a", b"X-A: a\r\n b", b"X-A: a\x00",
    b"X-A: a\rb", b"X-A: a\nX-B: b", b"GET /hidden HTTP/1.1", b"X\x00A: a", b"X(: a", b"X-A: \xff", b"X-A: \x7f",
    b"Content-Length: 4", b"Transfer-Encoding: chunked", b"Host: b", b"X-A: " + b"a" * 9000, b"X A: a", b"\tX: a",
    b"X_A: a", b"0", b"\x00", b"Trailer: X", b"Connection: close", b"X-A: a\r\nX-B: b", b"X-A: a\r\nX-B",
    b"Content-Type: a", b"Authorization: a", b"X-A\t: a", b"X-A: \x01",
]  # fmt: skip
ENDS = [
    b"\r\n", b"\n", b"\r", b"\r\r\n", b"\n\r\n", b"", b" \r\n", b"\r\n ", b"\x0b\r\n", b"\x00\r\n", b"\r\n\r\n",
    b"\x85",
]  # fmt: skip
OTHERS = [
    b"Connection: close", b"Connection: keep-alive", b"Connection: keep-alive, close", b"Connection: Close",
    b"Connection: a", b"Connection: close, Content-Length", b"Connection:", b"Connection: upgrade\r\nUpgrade: h2c",
    b"Connection: \x00", b"Expect: 100-continue", b"Expect: 200-ok", b"Expect:",
    b"Expect: 100-continue, 100-continue", b"Expect: 100-Continue", b"Upgrade: websocket", b"Content-Encoding: gzip",
    b"TE: trailers", b"Trailer: X-A", b"Keep-Alive: 1", b"Transfer_Encoding: chunked", b"Content_Length: 3",
    b"Content-Length : 3", b"Transfer-Encoding : chunked", b"X-A: b\nTransfer-Encoding: chunked",
    b"X-A: b\rContent-Length: 3", b"Proxy-Connection: close", b"Host: b", b"X-HTTP-Method-Override: DELETE",
    b"Content-Length\x00: 3", b"Content-Length\xa0: 3",
]  # fmt: skip


ADDED_LINES = [b"X-A", b"", b" ", b"\t", b":", b"\x00", b" a: b", b"GET / HTTP/1.1", b"a b: c", b"\r"]
CHOICES = {
    "before": [b"\r\n", b"\n", b"\r\n\r\n", b" ", b"\x00", b"\r", b"\xef\xbb\xbf", b"\t"],
    "method": METHODS,
    "space": [b"  ", b"\t", b"", b"\x0b", b" \t", b"\r", b"\x00"],
    "target": TARGETS,
    "version": VERSIONS,
    "host": [b"Host: " + host for host in HOSTS],
    "length": [b"Content-Length: " + length for length in LENGTHS],
    "coding": [b"Transfer-Encoding: " + coding for coding in CODINGS],
    "field": [
        *(name + b":" + space + b"a" for name in NAMES for space in (b" ", b"", b"\t")),
        *(b"X-B: " + value for value in VALUES * 3),
        *(other for other in OTHERS * 3),
        *ADDED_LINES,
    ],
    "size": SIZES,
    "last size": [b"0", b"00", b"0;a", b"0 ", b"", b"0;a=b", b"-0", b"0x0", b"0" * 300, b"0\x00", b"0;\n"],
    "trailer": [trailer + b"\r\n" for trailer in TRAILERS],
    "end": ENDS,
    "end of head": ENDS,
}
# A request without one of these gets it, rarely also one that has it.
FIELDS = ("host", "length", "coding", "field", "field")
Part = tuple[str, bytes]  # a key of CHOICES, or "body", and what the request has there
CRLF = ("end", b"\r\n")
BLANK = ("end of head", b"\r\n")


def valid_request(pick: random.Random) -> list[Part]:
    method, target, version = pick.choice(LINES).split(b" ")
    head = [("before", b""), ("method", method), ("space", b" "), ("target", target), ("space", b" ")]
    head += [("version", version), CRLF, ("host", b"Host: a"), CRLF]
    if pick.random() < 0.3:
        head += [("field", b"X-A: a"), CRLF]
    if method != b"POST":
        return [*head, BLANK]
    if version == b"HTTP/1.0" or pick.random() < 0.4:
        return [*head, ("length", b"Content-Length: 4"), CRLF, BLANK, ("body", b"body")]
    chunks = [("size", b"4"), CRLF, ("body", b"body"), CRLF] * pick.choice([0, 1, 1, 2])
    chunked = ("coding", b"Transfer-Encoding: chunked")
    return [*head, chunked, CRLF, BLANK, *chunks, ("last size", b"0"), CRLF, ("trailer", b""), CRLF]


def mutate(parts: list[Part], pick: random.Random) -> None:
    """Replace a part or add a field."""
    kind = pick.choice(FIELDS)
    kinds = [kind for kind, _ in parts]
    if pick.random() < 0.4 and (kind == "field" or kind not in kinds or pick.random() < 0.2):
        # Each field is two parts, itself and its end, as is the version before the first field.
        position = pick.randrange(kinds.index("version") + 2, kinds.index("end of head") + 1, 2)
        parts[position:position] = [(kind, pick.choice(CHOICES[kind])), CRLF]
        return
    # Each kind has the same chance, so that ends, which are many, do not crowd out the others.
    kind = pick.choice(sorted(set(kinds) & CHOICES.keys()))
    number = pick.choice([number for number, other in enumerate(kinds) if other == kind])
    parts[number] = kind, pick.choice(CHOICES[kind])


def cases(number: int, seed: int) -> Iterator[bytes]:
    """Yield distinct requests. Most have one mutation; some have none, several, or a changed byte."""
    pick = random.Random(seed)
    seen: set[bytes] = set()
    while len(seen) < number:
        parts = valid_request(pick)
        for _ in range(pick.choice([0, 1, 1, 1, 1, 1, 1, 2, 2, 3])):
            mutate(parts, pick)
        data = b"".join(piece for _, piece in parts)
        if pick.random() < 0.1:
            position = pick.randrange(len(data))
            piece = pick.choice([b"", bytes([pick.randrange(256)]), b"\r", b"\n", b" ", b"\x00"])
            data = data[:position] + piece + data[position + 1 :]
        if data not in seen:
            seen.add(data)
            yield data
