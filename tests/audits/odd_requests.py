"""Valid requests, and requests that differ from a valid one in a few details."""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Case(NamedTuple):
    """The bytes of a request, and how they were made."""

    name: str
    data: bytes


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


class Request:
    """A valid request in parts, each of which can be replaced."""

    def __init__(self, pick: random.Random) -> None:
        self.pick = pick
        self.method, self.target, self.version = pick.choice(LINES).split(b" ")
        self.spaces = [b" ", b" "]
        self.line_end = b"\r\n"
        self.before_line = b""
        self.fields: list[bytes] = [b"Host: a"]
        self.field_ends: dict[int, bytes] = {}
        self.head_end = b"\r\n"
        self.body = b""
        self.is_chunked = False
        self.chunks: list[tuple[bytes, bytes, bytes, bytes]] = []  # size line, end, data, end
        self.trailers: list[bytes] = []
        self.last_size = b"0"
        self.last_size_end = b"\r\n"
        self.trailers_end = b"\r\n"
        if self.method == b"POST":
            if self.version == b"HTTP/1.1" and pick.random() < 0.6:
                self.is_chunked = True
                self.fields.append(b"Transfer-Encoding: chunked")
                self.chunks = [(b"4", b"\r\n", b"body", b"\r\n") for _ in range(pick.choice([0, 1, 1, 2]))]
            else:
                self.fields.append(b"Content-Length: 4")
                self.body = b"body"
        if pick.random() < 0.3:
            self.fields.insert(pick.randrange(len(self.fields) + 1), b"X-A: a")

    def bytes(self) -> bytes:
        line = self.method + self.spaces[0] + self.target + self.spaces[1] + self.version + self.line_end
        fields = (field + self.field_ends.get(number, b"\r\n") for number, field in enumerate(self.fields))
        body = self.body
        if self.is_chunked:
            body = b"".join(b"".join(chunk) for chunk in self.chunks) + self.last_size + self.last_size_end
            body += b"".join(trailer + b"\r\n" for trailer in self.trailers) + self.trailers_end
        return self.before_line + line + b"".join(fields) + self.head_end + body


def change_method(request: Request) -> None:
    request.method = request.pick.choice(METHODS)


def change_target(request: Request) -> None:
    request.target = request.pick.choice(TARGETS)


def change_version(request: Request) -> None:
    request.version = request.pick.choice(VERSIONS)


def change_spaces(request: Request) -> None:
    request.spaces[request.pick.randrange(2)] = request.pick.choice(
        [b"  ", b"\t", b"", b"\x0b", b" \t", b"\r", b"\x00"]
    )


def change_before_line(request: Request) -> None:
    request.before_line = request.pick.choice(
        [b"\r\n", b"\n", b"\r\n\r\n", b" ", b"\x00", b"\r", b"\xef\xbb\xbf", b"\t"]
    )


def change_line_end(request: Request) -> None:
    request.line_end = request.pick.choice(ENDS)


def add_field(request: Request) -> None:
    field = request.pick.choice(NAMES) + b":" + request.pick.choice([b" ", b"", b"\t"]) + b"a"
    request.fields.insert(request.pick.randrange(len(request.fields) + 1), field)


def add_value(request: Request) -> None:
    request.fields.insert(request.pick.randrange(len(request.fields) + 1), b"X-B: " + request.pick.choice(VALUES))


def add_other(request: Request) -> None:
    request.fields.insert(request.pick.randrange(len(request.fields) + 1), request.pick.choice(OTHERS))


def add_line(request: Request) -> None:
    line = request.pick.choice([b"X-A", b"", b" ", b"\t", b":", b"\x00", b" a: b", b"GET / HTTP/1.1", b"a b: c", b"\r"])
    request.fields.insert(request.pick.randrange(len(request.fields) + 1), line)


def change_host(request: Request) -> None:
    request.fields = [field for field in request.fields if not field.startswith(b"Host")]
    for _ in range(request.pick.choice([0, 1, 1, 1, 1, 2])):
        request.fields.append(b"Host: " + request.pick.choice(HOSTS))


def change_length(request: Request) -> None:
    request.fields = [
        field for field in request.fields if request.pick.random() < 0.1 or b"Content-Length" not in field
    ]
    field = b"Content-Length: " + request.pick.choice(LENGTHS)
    request.fields.insert(request.pick.randrange(len(request.fields) + 1), field)
    request.body = request.body or (b"" if request.is_chunked else b"body")


def change_coding(request: Request) -> None:
    request.fields = [field for field in request.fields if request.pick.random() < 0.1 or b"Transfer" not in field]
    field = b"Transfer-Encoding: " + request.pick.choice(CODINGS)
    request.fields.insert(request.pick.randrange(len(request.fields) + 1), field)
    if not request.chunks and not request.is_chunked:
        request.is_chunked = True
        request.chunks = [(b"4", b"\r\n", b"body", b"\r\n")]


def change_field_end(request: Request) -> None:
    if request.fields:
        request.field_ends[request.pick.randrange(len(request.fields))] = request.pick.choice(ENDS)


def change_head_end(request: Request) -> None:
    request.head_end = request.pick.choice(ENDS)


def change_size(request: Request) -> None:
    if request.is_chunked:
        end = request.pick.choice([b"\r\n"] * 4 + ENDS)
        request.chunks.append((request.pick.choice(SIZES), end, b"body", b"\r\n"))


def change_chunk_end(request: Request) -> None:
    if request.is_chunked:
        request.chunks.append((b"4", b"\r\n", b"body", request.pick.choice(ENDS)))


def change_last_size(request: Request) -> None:
    request.last_size = request.pick.choice(
        [b"0", b"00", b"0;a", b"0 ", b"", b"0;a=b", b"-0", b"0x0", b"0" * 300, b"0\x00", b"0;\n"]
    )
    request.last_size_end = request.pick.choice([b"\r\n", *ENDS])


def add_trailer(request: Request) -> None:
    request.trailers.append(request.pick.choice(TRAILERS))


def change_trailers_end(request: Request) -> None:
    request.trailers_end = request.pick.choice([b"", b"\n", b"\r", b"\r\r\n", b" \r\n", b"\r\n\r\n", b"\n\r\n"])


MUTATIONS: tuple[Callable[[Request], None], ...] = (
    change_method, change_target, change_version, change_spaces, change_before_line, change_line_end, add_field,
    add_field, add_value, add_value, add_other, add_other, add_line, change_host, change_host, change_length,
    change_length, change_coding, change_coding, change_field_end, change_head_end, change_size, change_size,
    change_size, change_chunk_end, change_last_size, add_trailer, add_trailer, change_trailers_end,
)  # fmt: skip


def cases(number: int, seed: int) -> Iterator[Case]:
    """Yield distinct requests. Most have one mutation; some have none, several, or a changed byte."""
    pick = random.Random(seed)
    seen: set[bytes] = set()
    while len(seen) < number:
        request = Request(pick)
        mutations = pick.sample(MUTATIONS, pick.choice([0, 1, 1, 1, 1, 1, 1, 2, 2, 3]))
        for mutation in mutations:
            mutation(request)
        name = " ".join(mutation.__name__ for mutation in mutations)
        data = request.bytes()
        if pick.random() < 0.1:
            position = pick.randrange(len(data))
            piece = pick.choice([b"", bytes([pick.randrange(256)]), b"\r", b"\n", b" ", b"\x00"])
            data, name = data[:position] + piece + data[position + 1 :], f"{name} byte {position}".strip()
        if data not in seen:
            seen.add(data)
            yield Case(name or "unchanged", data)
