"""The suite for the application's contract, and the tables of inputs that the suite tries.

The application runs in several hosts: in this process, on servers, and mounted in other frameworks. Each host has a
subclass of `Contract` or `HostContract`. The subclass needs two fixtures: ``send``, which sends a request and returns
the response, and ``store``. `Contract` runs every row of the tables. `HostContract` runs only the rows whose result may
depend on the server or the framework: paths, methods, headers, framing and the bytes of a body. The tables mark these
rows with ``host``.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import pytest

from plants import Plant, PlantStore
from plants.errors import HEADERS
from plants.stores import COLUMNS

TOKEN = "correct-horse"
LIMIT = 4096
JSON_TYPE = ("Content-Type", "application/json")
AUTH = ("Authorization", f"Bearer {TOKEN}")
Headers = list[tuple[str, str]]


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> int:
        """Check that the response is a complete Error body, and return its code."""
        document = json.loads(self.body)
        assert {name: type(value) for name, value in document.items()} == {"error": int, "message": str}
        assert 0 < len(document["message"]) < 500
        assert document["error"] // 100 == self.status
        self.check_headers()
        limited = {401: "www-authenticate", 405: "allow", 429: "retry-after", 503: "retry-after"}
        expected = {limited.get(self.status)} - {None, "retry-after" if document["error"] == 50301 else None}
        assert self.headers.keys() & {*limited.values()} == expected
        return int(document["error"])

    @property
    def message(self) -> str:
        message: str = json.loads(self.body)["message"]
        return message

    @property
    def plant(self) -> Any:
        assert self.status == 200
        self.check_headers()
        return json.loads(self.body)

    def check_headers(self) -> None:
        assert {name: self.headers.get(name.lower()) for name in HEADERS} == HEADERS


class Send(Protocol):
    def __call__(
        self, body: bytes = b"", *, method: str = "POST", path: str = "/plants", headers: Headers
    ) -> Response: ...


class _HostRow(tuple[Any, ...]):
    pass


def host(*row: Any) -> Any:
    """Mark a row whose result may depend on the server or the framework."""
    return _HostRow(row)


# Parametrize a test of the suite with rows. The first column is the id; the test gets the others as ``case``.
table: Callable[..., pytest.MarkDecorator] = pytest.mark.table


def new_plant(**members: Any) -> bytes:
    return json.dumps({"id": 1, "name": "Fern", **members}).encode()


def with_id(literal: str) -> bytes:
    return b'{"id": %s, "name": "Fern"}' % literal.encode()


def with_zeros(count: int) -> bytes:
    """Return a NewPlant with one more member, whose zeros follow 12 other names and values of the document."""
    body = new_plant(x=[{"a": []}, {}, '"[{,:\\', *[0] * count])
    return body.replace(b"[]", b"[ \n]").replace(b"{}", b"{\t\r}")


def nested(depth: int) -> bytes:
    """Return a NewPlant with two more members: ``depth`` nested arrays, and an empty one beside them."""
    return new_plant()[:-1] + b', "x": ' + b"[" * depth + b"]" * depth + b', "y": []}'


NO_TOKEN: list[tuple[str, Headers]] = [
    host("nothing", []),
    host("empty", [("Authorization", "")]),
    ("basic", [("Authorization", "Basic Y29ycmVjdDpob3JzZQ==")]),
    ("basic with the token", [("Authorization", f"Basic {TOKEN}")]),
    ("digest", [("Authorization", 'Digest username="a"')]),
    ("the token alone", [("Authorization", TOKEN)]),
    ("a scheme that starts with bearer", [("Authorization", f"Bearers {TOKEN}")]),
    ("a colon", [("Authorization", f"Bearer:{TOKEN}")]),
    host("a tab for the space", [("Authorization", f"Bearer\t{TOKEN}")]),
    ("another header", [("X-Authorization", f"Bearer {TOKEN}")]),
    ("the proxy's header", [("Proxy-Authorization", f"Bearer {TOKEN}")]),
    host("a basic header, then a bearer header", [("Authorization", "Basic x"), AUTH]),
    ("basic, then bearer", [("Authorization", f"Basic x, Bearer {TOKEN}")]),
]

INVALID_TOKEN: list[tuple[str, Headers]] = [
    ("the scheme alone", [("Authorization", "Bearer")]),
    ("another token, in lower case", [("Authorization", "bearer wrong")]),
    ("the token and more", [("Authorization", f"Bearer {TOKEN}s")]),
    ("another case", [("Authorization", f"Bearer {TOKEN.upper()}")]),
    ("twice", [("Authorization", f"Bearer {TOKEN} {TOKEN}")]),
    ("two, the valid one last", [("Authorization", f"Bearer wrong,Bearer {TOKEN}")]),
    host("two headers, the valid one first", [AUTH, ("Authorization", "Bearer wrong")]),
    host("two headers, the valid one last", [("Authorization", "Bearer wrong"), AUTH]),
    host("two valid headers", [AUTH, AUTH]),
    ("bearer, then basic", [("Authorization", f"Bearer {TOKEN}, Basic x")]),
    ("in quotes", [("Authorization", f'Bearer "{TOKEN}"')]),
    ("padding inside", [("Authorization", "Bearer correct=horse")]),
    host("not ASCII", [("Authorization", "Bearer corréct")]),
    ("its digest", [("Authorization", f"Bearer {hashlib.sha256(TOKEN.encode()).hexdigest()}")]),
    host("very long", [("Authorization", "Bearer " + "a" * 4000)]),
]

VALID_TOKEN: list[tuple[str, Headers]] = [
    ("as it is", [("Authorization", f"Bearer {TOKEN}")]),
    ("lower-case scheme", [("Authorization", f"bearer {TOKEN}")]),
    ("upper-case scheme", [("Authorization", f"BEARER {TOKEN}")]),
    host("many spaces", [("Authorization", f"Bearer     {TOKEN}")]),
    host("the header's name in lower case", [("authorization", f"Bearer {TOKEN}")]),
]

NO_SUCH_PATH = [
    ("root", "/"),
    host("a slash at the end", "/plants/"),
    host("two slashes at the start", "//plants"),
    host("three slashes at the start", "///plants"),
    ("a path below", "/plants/1/leaves"),
    ("upper case", "/Plants"),
    ("the path and more", "/plantss"),
    host("a percent-encoded slash at the end", "/plants%2F"),
    ("a percent-encoded space at the end", "/plants%20"),
    host("a percent-encoded question mark", "/plants%3Fa=1"),
    host("NUL at the end", "/plants%00"),
    host("not UTF-8", "/plants%ff"),
    host("dots", "/./plants"),
    host("dots that lead back", "/x/../plants"),
    ("a parameter", "/plants;v=1"),
    host("a full-width p", "/%EF%BD%90lants"),
    host("very long", "/" + "a" * 3000),
]

NO_SUCH_METHOD = [
    *((method, method) for method in "PUT PATCH DELETE QUERY LINK PURGE FOO WEBSOCKET Post POSTS M-SEARCH".split()),
    *(host(method, method) for method in "GET HEAD TRACE CONNECT PROPFIND PRI post".split()),
]

UNSUPPORTED_MEDIA_TYPE: list[tuple[str, Headers]] = [
    host("none", []),
    host("empty", [("Content-Type", "")]),
    ("text", [("Content-Type", "text/plain")]),
    ("a form", [("Content-Type", "application/x-www-form-urlencoded")]),
    ("text/json", [("Content-Type", "text/json")]),
    ("problem+json", [("Content-Type", "application/problem+json")]),
    ("a list", [("Content-Type", "application/json, text/plain")]),
    ("latin-1", [("Content-Type", "application/json; charset=iso-8859-1")]),
    ("utf8 without its hyphen", [("Content-Type", "application/json; charset=utf8")]),
    ("utf_8", [("Content-Type", "application/json; charset=utf_8")]),
    ("another parameter", [("Content-Type", "application/json; version=1")]),
    ("two charsets", [("Content-Type", "application/json; charset=utf-8; charset=utf-8")]),
    ("a parameter without a semicolon", [("Content-Type", "application/json charset=utf-8")]),
    ("a comma after the semicolon", [("Content-Type", "application/json;,")]),
    ("half a quote", [("Content-Type", 'application/json; charset="utf-8')]),
    host("a long s", [("Content-Type", "application/j\u017fon".encode().decode("latin-1"))]),
    host("gzip", [JSON_TYPE, ("Content-Encoding", "gzip")]),
    ("identity and gzip", [JSON_TYPE, ("Content-Encoding", "identity, gzip")]),
]

SUPPORTED_MEDIA_TYPE: list[tuple[str, Headers]] = [
    ("plain", [JSON_TYPE]),
    ("upper case", [("Content-Type", "APPLICATION/JSON")]),
    ("charset", [("Content-Type", "application/json; charset=utf-8")]),
    ("charset in upper case", [("Content-Type", "application/json; CHARSET=UTF-8")]),
    ("charset without a space", [("Content-Type", "application/json;charset=utf-8")]),
    ("charset with spaces", [("Content-Type", "application/json ; charset=utf-8")]),
    ("charset with tabs", [("Content-Type", "application/json\t;\tcharset=utf-8")]),
    ("white space at the end", [("Content-Type", "application/json \t")]),
    ("charset in quotes", [("Content-Type", 'application/json; charset="utf-8"')]),
    ("an empty parameter", [("Content-Type", "application/json;")]),
    ("an empty parameter after the charset", [("Content-Type", "application/json; charset=utf-8;")]),
    host("empty parameters", [("Content-Type", "application/json; ;\t; ")]),
    ("identity", [JSON_TYPE, ("Content-Encoding", "identity")]),
    ("identity in upper case", [JSON_TYPE, ("Content-Encoding", "IDENTITY")]),
    ("no coding", [JSON_TYPE, ("Content-Encoding", "")]),
    ("any Accept", [JSON_TYPE, ("Accept", "application/xml")]),
    host("a broken Accept", [JSON_TYPE, ("Accept", ";;;,/")]),
]

NOT_JSON = [
    host("empty", b""),
    ("a form", b"id=1&name=Fern"),
    ("cut in an object", b'{"id": 1, "name": "Fern"'),
    ("cut in a code point", b'{"id": 1, "name": "\xc3'),
    ("no comma", b'{"id": 1 "name": "Fern"}'),
    ("a comma too many", b'{"id": 1, "name": "Fern",}'),
    ("text after the object", b'{"id": 1, "name": "Fern"} X'),
    host("NUL after the object", b'{"id": 1, "name": "Fern"}\0'),
    ("a no-break space before the object", b'\xc2\xa0{"id": 1, "name": "Fern"}'),
    ("a vertical tab before the object", b'\v{"id": 1, "name": "Fern"}'),
    ("a form feed after the object", b'{"id": 1, "name": "Fern"}\f'),
    ("a byte order mark", b"\xef\xbb\xbf" + new_plant()),
    host("UTF-16", new_plant().decode().encode("utf-16-le")),
    ("latin-1", '{"id": 1, "name": "Orchidée"}'.encode("latin-1")),
    ("an overlong encoding", b'{"id": 1, "name": "\xc0\xaf"}'),
    ("an encoded surrogate", b'{"id": 1, "name": "\xed\xa0\x80"}'),
    ("a line feed in a string", b'{"id": 1, "name": "Fe\nrn"}'),
    ("a tab in a string", b'{"id": 1, "name": "Fe\trn"}'),
    ("NUL in a string", b'{"id": 1, "name": "Fe\0rn"}'),
    ("an unknown escape", b'{"id": 1, "name": "\\x41"}'),
    ("NaN", with_id("NaN")),
    ("Infinity", with_id("Infinity")),
    ("True", with_id("True")),
    ("a leading zero", with_id("01")),
    ("a point at the end", with_id("1.")),
    ("id twice", b'{"id": 1, "id": 2, "name": "Fern"}'),
    ("name twice, once escaped", b'{"id": 1, "name": "Fern", "n\\u0061me": "Ivy"}'),
    ("a name twice in a member that is ignored", b'{"id": 1, "name": "Fern", "x": {"a": 1, "a": 1}}'),
    ("deep arrays", b"[" * 2000),
    ("deep in a member that is ignored", nested(2000)),
    ("1,001 names and values", with_zeros(989)),
    ("1,001 strings", new_plant(x=[""] * 994)),
    ("101 deep", b"[" * 101 + b"]" * 101),
    ("101 deep in objects", b'{"":' * 101 + b"1" + b"}" * 101),
    ("101 deep in arrays and objects", b'{"\\"]": [' * 50 + b"[]" + b"]}" * 50),
    ("101 deep, after a backslash at the end of a string", b'["\\\\", ' + b"[" * 100 + b"]" * 101),
    ("101 deep, after many shallow arrays", b"[" + b'[], "]]]\\"]", ' * 100 + b"[" * 100 + b"]" * 101),
]

NOT_TEXT = {
    "null": None,
    "a number": 1.5,
    "with U+0000": "Fe\0rn",
    "with U+0000 after a line feed": "Fern\n\0",
    "with a high surrogate": "Fe\ud800rn",
    "with a low surrogate": "Fe\udfffrn",
}

# The last column has the fields that the message must name.
NOT_A_NEW_PLANT = [
    ("null", b"null", []),
    ("true", b"true", []),
    ("a string of brackets", b'"' + b"[" * 101 + b'"', []),
    ("an empty array", b"[]", []),
    ("no members", b"{}", ["id", "name"]),
    ("no id", b'{"name": "Fern"}', ["id"]),
    ("no name", b'{"id": 1}', ["name"]),
    ("names in upper case", b'{"ID": 1, "NAME": "Fern"}', ["id", "name"]),
    host("all three faulty", b'{"id": "1", "name": 1, "tag": 1}', ["id", "name", "tag"]),
    ("id null", with_id("null"), ["id"]),
    ("id true", with_id("true"), ["id"]),
    ("id a string", with_id('"1"'), ["id"]),
    ("id 1.0", with_id("1.0"), ["id"]),
    ("id 1e3", with_id("1e3"), ["id"]),
    ("id 2^63", with_id("9223372036854775808"), ["id"]),
    ("id -2^63-1", with_id("-9223372036854775809"), ["id"]),
    ("id of 20 digits", with_id("1" * 20), ["id"]),
    ("id of 4,000 digits", with_id("1" * 4000), ["id"]),
    *(
        (f"{column.name} {what}", new_plant(**{column.name: value}), [column.name])
        for column in COLUMNS
        if column.type is str
        for what, value in NOT_TEXT.items()
    ),
]

NEW_PLANT = [
    ("name", b'{"id": 1, "name": "Fern"}', Plant(1, "Fern")),
    ("name and tag", b'{"id": 1, "name": "Fern", "tag": "shade"}', Plant(1, "Fern", "shade")),
    ("another order", b'{"tag": "shade", "name": "Fern", "id": 1}', Plant(1, "Fern", "shade")),
    host("white space", b'\r\n\t {\n"id" : 1 ,\t"name"\r:"Fern" } \n', Plant(1, "Fern")),
    ("id -0", with_id("-0"), Plant(0, "Fern")),
    ("id 2^53+1", with_id("9007199254740993"), Plant(2**53 + 1, "Fern")),
    ("id 2^63-1", with_id("9223372036854775807"), Plant(2**63 - 1, "Fern")),
    ("id -2^63", with_id("-9223372036854775808"), Plant(-(2**63), "Fern")),
    ("empty name", new_plant(name=""), Plant(1, "")),
    ("empty tag", new_plant(tag=""), Plant(1, "Fern", "")),
    ("name with a line feed", new_plant(name="Fern\n"), Plant(1, "Fern\n")),
    ("name with control characters", new_plant(name="\x01\x1f\x7f\x85"), Plant(1, "\x01\x1f\x7f\x85")),
    host("name in UTF-8", '{"id": 1, "name": "Orchidée 蘭 🌿"}'.encode(), Plant(1, "Orchidée 蘭 🌿")),
    ("name with noncharacters", new_plant(name="\ufffe\uffff\U0010ffff"), Plant(1, "\ufffe\uffff\U0010ffff")),
    ("name next to the surrogates", new_plant(name="\ud7ff\ue000"), Plant(1, "\ud7ff\ue000")),
    host("a long name", new_plant(name="x" * 4000), Plant(1, "x" * 4000)),
    ("other members", new_plant(color="green", price=1.5, parts=[None, {"leaf": True}]), Plant(1, "Fern")),
    ("a huge integer elsewhere", new_plant()[:-1] + b', "x": ' + b"1" * 4000 + b"}", Plant(1, "Fern")),
    ("U+0000 elsewhere", new_plant(x="\0", **{"\0": "\ud800"}), Plant(1, "Fern")),
    ("1,000 names and values", with_zeros(988), Plant(1, "Fern")),
    ("100 deep in all", nested(99), Plant(1, "Fern")),
    ("brackets in strings", new_plant(name="[" * 300, tag='{"\\' * 200), Plant(1, "[" * 300, '{"\\' * 200)),
    ("commas in strings", new_plant(x=[","] * 700), Plant(1, "Fern")),
    ("prototype names", new_plant(__proto__={}, constructor=1, self=1, cls=1), Plant(1, "Fern")),
]


class HostContract:
    """The rows of the contract whose result may depend on the server or the framework."""

    every_row: ClassVar[bool] = False
    # Maps a part of the names of tests, as pytest prints them, to the reason why these do not apply to this host.
    does_not_apply: ClassVar[dict[str, str]] = {}

    @classmethod
    def on(cls, **attributes: Any) -> type:
        """Return a subclass: the tests of another host."""
        return type(cls.__name__, (cls,), attributes)

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        for mark in metafunc.definition.iter_markers("table"):
            rows = [row for row in mark.args if cls.every_row or isinstance(row, _HostRow)]
            cases = [pytest.param(row[1:] if len(row) > 2 else row[1], id=row[0]) for row in rows]
            metafunc.parametrize("case", cases)

    @pytest.fixture(autouse=True)
    def _applies(self, request: pytest.FixtureRequest) -> None:
        for part, reason in self.does_not_apply.items():
            if part in request.node.name:
                pytest.skip(reason)

    @table(*NO_TOKEN)
    def test_a_request_without_a_bearer_token_is_401(self, send: Send, store: PlantStore, case: Headers) -> None:
        response = send(new_plant(), headers=[*case, JSON_TYPE])
        assert response.error == 40100
        assert response.headers["www-authenticate"] == 'Bearer realm="plants"'
        assert store.get(1) is None

    @table(*INVALID_TOKEN)
    def test_a_token_that_is_not_valid_is_401(self, send: Send, store: PlantStore, case: Headers) -> None:
        response = send(new_plant(), headers=[*case, JSON_TYPE])
        assert response.error == 40101
        assert response.headers["www-authenticate"] == 'Bearer realm="plants", error="invalid_token"'
        assert store.get(1) is None
        assert TOKEN.encode() not in response.body

    @table(*VALID_TOKEN)
    def test_a_valid_token_is_accepted(self, send: Send, case: Headers) -> None:
        assert send(new_plant(), headers=[*case, JSON_TYPE]).plant == {"name": "Fern"}

    @table(*NO_SUCH_PATH)
    def test_an_unknown_path_is_404(self, send: Send, store: PlantStore, case: str) -> None:
        assert send(new_plant(), path=case, headers=[AUTH, JSON_TYPE]).error == 40400
        assert store.get(1) is None

    @table(*NO_SUCH_METHOD)
    def test_an_unsupported_method_is_405(self, send: Send, case: str) -> None:
        response = send(method=case, headers=[AUTH, JSON_TYPE])
        assert (response.status, response.headers["allow"]) == (405, "POST, OPTIONS")
        assert response.body == b"" if case == "HEAD" else response.error == 40500

    def test_an_unsupported_method_on_an_unknown_path_is_404(self, send: Send) -> None:
        assert send(method="WEBSOCKET", path="/nothing", headers=[AUTH]).error == 40400

    def test_options_responds_with_the_allowed_methods(self, send: Send) -> None:
        response = send(method="OPTIONS", headers=[AUTH])
        response.check_headers()
        assert (response.status, response.headers["allow"], response.body) == (200, "POST", b"")

    @table(
        *((query or "empty", query) for query in ("", "a=1", "a=1&a=2", "id=9&name=x", "%", "=&&;", "a?b")),
        host("not UTF-8", "%ff"),
        host("very long", "a" * 3000),
    )
    def test_a_query_string_is_ignored(self, send: Send, case: str) -> None:
        assert send(new_plant(), path=f"/plants?{case}", headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}

    @table(*UNSUPPORTED_MEDIA_TYPE)
    def test_an_unsupported_media_type_or_content_coding_is_415(
        self, send: Send, store: PlantStore, case: Headers
    ) -> None:
        assert send(new_plant(), headers=[AUTH, *case]).error == 41500
        assert store.get(1) is None

    @table(*SUPPORTED_MEDIA_TYPE)
    def test_a_supported_media_type_or_content_coding_is_accepted(self, send: Send, case: Headers) -> None:
        assert send(new_plant(), headers=[AUTH, *case]).plant == {"name": "Fern"}

    def test_a_body_may_have_the_maximum_size_and_no_byte_more(self, send: Send, store: PlantStore) -> None:
        assert send(new_plant().ljust(LIMIT + 1), headers=[AUTH, JSON_TYPE]).error == 41300
        assert store.get(1) is None
        assert send(new_plant().ljust(LIMIT), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}

    @table(*NOT_JSON)
    def test_a_body_that_is_not_strict_json_is_rejected(self, send: Send, store: PlantStore, case: bytes) -> None:
        response = send(case, headers=[AUTH, JSON_TYPE])
        assert (response.error, '"id"' in response.message) == (40001, False)  # It does not quote the body.
        assert store.get(1) is None

    @table(*NOT_A_NEW_PLANT)
    def test_json_that_is_not_a_new_plant_is_rejected(
        self, send: Send, store: PlantStore, case: tuple[bytes, list[str]]
    ) -> None:
        body, fields = case
        response = send(body, headers=[AUTH, JSON_TYPE])
        assert response.error == 40002
        assert [name for name in sorted(Plant._fields) if f"{name}: " in response.message] == fields
        assert store.get(1) is None

    @table(*NEW_PLANT)
    def test_a_new_plant_is_stored_and_returned_without_its_id(
        self, send: Send, store: PlantStore, case: tuple[bytes, Plant]
    ) -> None:
        body, plant = case
        shape = {name: value for name, value in plant._asdict().items() if name != "id" and value is not None}
        assert send(body, headers=[AUTH, JSON_TYPE]).plant == shape
        assert store.get(plant.id) == plant

    def test_an_id_in_use_is_rejected_and_its_plant_is_unchanged(self, send: Send, store: PlantStore) -> None:
        send(new_plant(tag="shade"), headers=[AUTH, JSON_TYPE])
        response = send(new_plant(name="Ivy"), headers=[AUTH, JSON_TYPE])
        assert (response.error, response.message) == (40003, "The id 1 is in use.")
        assert store.get(1) == Plant(1, "Fern", "shade")


class Contract(HostContract):
    """Every row of the contract. These rows run against the application in this process and the packaged server."""

    every_row = True

    def test_a_token_in_the_query_or_the_body_is_ignored(self, send: Send) -> None:
        response = send(new_plant(access_token=TOKEN), path=f"/plants?access_token={TOKEN}", headers=[JSON_TYPE])
        assert response.error == 40100

    @table(
        *map(tuple, NO_SUCH_PATH),
        *[(f"method {method}", "/plants", method) for method in ["OPTIONS", *dict(NO_SUCH_METHOD)]],
    )
    def test_without_a_token_every_path_and_method_is_401(self, send: Send, case: Any) -> None:
        path, method = (case, "POST") if isinstance(case, str) else case
        response = send(method=method, path=path, headers=[])
        assert response.status == 401 if method == "HEAD" else response.error == 40100

    @pytest.mark.parametrize(
        ("headers", "path", "method", "body", "error"),
        [
            ([], "/nothing", "GET", b"x" * (LIMIT + 1), 40100),
            ([AUTH], "/nothing", "GET", b"x", 40400),
            ([AUTH], "/plants", "GET", b"x", 40500),
            ([AUTH], "/plants", "POST", b"x", 41500),
            ([AUTH, JSON_TYPE], "/plants", "POST", b"x", 40001),
            ([AUTH, JSON_TYPE], "/plants", "POST", b'{"id": 1, "name": NaN, "tag": 1}', 40001),
            ([AUTH, JSON_TYPE], "/plants", "POST", b'{"id": 1, "tag": 1}', 40002),
        ],
        ids=["token", "path", "method", "media type", "JSON", "JSON before the fields", "NewPlant"],
    )
    def test_errors_are_reported_in_order(
        self, send: Send, headers: Headers, path: str, method: str, body: bytes, error: int
    ) -> None:
        assert send(body, method=method, path=path, headers=headers).error == error
