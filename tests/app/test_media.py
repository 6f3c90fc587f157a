"""Reading the body, and strict JSON."""

import io
import sys
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import plants
from plants import PlantStore
from tests.contract import LIMIT, TOKEN, new_plant, with_id
from tests.support.calls import Stream, call
from tests.support.examples import examples
from tests.support.hosted import run


def test_a_chunked_body_is_read_to_one_byte_above_the_limit(app: Any) -> None:
    stream = io.BytesIO(new_plant().ljust(10 * LIMIT))
    response = call(app, stream, wsgi_input_terminated=True)
    assert (response.error, stream.tell()) == (41300, LIMIT + 1)
    assert str(LIMIT) in response.message


def test_a_read_is_bounded_whatever_the_limit_is() -> None:
    """A read of a huge size would fail, because ``io.BufferedReader`` allocates the requested size."""
    app = plants.create_app(tokens=[TOKEN], max_body_bytes=sys.maxsize - 1)
    stream = io.BufferedReader(io.BytesIO(new_plant().ljust(2**20 + 1)))
    assert call(app, stream, wsgi_input_terminated=True).plant == {"name": "Fern"}


def test_a_body_in_several_reads_is_read_to_its_length(app: Any) -> None:
    body = new_plant()
    stream = Stream(body[:5], body[5:], b"x")
    assert call(app, stream, CONTENT_LENGTH=str(len(body)), wsgi_input_terminated=True).plant == {"name": "Fern"}
    assert stream.sizes == [len(body), len(body) - 5]


@pytest.mark.parametrize("rest", [b"", OSError("reset"), StopIteration(), KeyError("x")], ids=repr)
def test_a_body_that_is_cut_short_is_400(app: Any, store: PlantStore, rest: bytes | Exception) -> None:
    assert call(app, Stream(new_plant(), rest), CONTENT_LENGTH=str(len(new_plant()) + 1)).error == 40000
    assert store.get(1) is None


MALFORMED_LENGTHS = ["-1", "25X", "\xb2", "+25", "2_5", "\u0662\u0665", "25,25", "25\n", "9" * 5000]
NOT_READ = {
    "no length": ({}, 40001),
    "an empty length": ({"CONTENT_LENGTH": ""}, 40001),
    "too large": ({"CONTENT_LENGTH": str(LIMIT + 1)}, 41300),
    "another media type": ({"CONTENT_LENGTH": str(LIMIT + 1), "CONTENT_TYPE": "application/j\u017fon"}, 41500),
    "another coding, without a length": ({"HTTP_CONTENT_ENCODING": "gzip"}, 41500),
    "another token": ({"CONTENT_LENGTH": str(LIMIT + 1), "HTTP_AUTHORIZATION": "Bearer wrong"}, 40101),
} | {text[:5]: ({"CONTENT_LENGTH": text}, 40000) for text in MALFORMED_LENGTHS}


@pytest.mark.parametrize(("environ", "error"), NOT_READ.values(), ids=NOT_READ)
def test_a_body_that_cannot_be_accepted_is_not_read(app: Any, environ: dict[str, str], error: int) -> None:
    stream = Stream(new_plant())
    response = call(app, stream, **environ)
    assert (response.error, stream.sizes) == (error, [])
    assert environ or "wsgi.input_terminated" in response.message  # what the server would have to set


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_the_message_names_a_byte_order_mark(app: Any, encoding: str) -> None:
    body = f"\ufeff{new_plant().decode()}".encode(encoding)
    assert "begins with a byte order mark" in call(app, io.BytesIO(body), wsgi_input_terminated=True).message


DEEP = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from plants.json_body import parse_json

sys.setrecursionlimit(1_000_000)
threading.stack_size(256 * 1024)
with ThreadPoolExecutor(1) as thread:
    for text in (b"[" * 1_000_000, b'{"a":' * 200_000, b'["' + b"[" * 99_999):
        print(type(thread.submit(parse_json, text).exception()).__name__)
"""


def test_deep_json_does_not_overflow_a_small_stack() -> None:
    result = run(sys.executable, "-c", DEEP)
    assert (result.returncode, result.stdout.split(), result.stderr) == (0, ["HTTPError"] * 3, "")


def test_an_integer_of_a_million_digits_is_not_converted() -> None:
    app = plants.create_app(tokens=[TOKEN])
    digits = "1" * 1_000_000
    assert call(app, io.BytesIO(with_id(digits)), wsgi_input_terminated=True).error == 40002
    body = new_plant()[:-1] + f', "x": {digits}}}'.encode()
    assert call(app, io.BytesIO(body), wsgi_input_terminated=True).plant == {"name": "Fern"}
    assert call(app, Stream(), CONTENT_LENGTH=str(2**20 + 1)).error == 41300  # the default limit


PIECES = [b'{"id":', b"1", b',"name":', b'"', b"\\u", b"\xe2\x82\xac", b"[", b"]", b"}", b"NaN", b"-", b"e9"]


def test_any_bytes_in_any_chunks_are_never_a_500(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    @examples(200)
    @given(st.lists(st.binary() | st.lists(st.sampled_from(PIECES)).map(b"".join)))
    def check(chunks: list[bytes]) -> None:
        response = call(app, Stream(*chunks), wsgi_input_terminated=True)
        assert response.status == 200 or response.error in {40001, 40002, 40003}

    check()
    assert not caplog.records
