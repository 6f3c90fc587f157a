"""The cache of the environ's keys, which a client must not fill with long names."""

import pytest

from plants.server import request
from tests.server.test_limits import HOST, LARGE, parse


@pytest.mark.parametrize(("length", "cached"), [(request._MAX_CACHED_NAME_LENGTH, True), (65, False)])
def test_only_keys_of_short_field_names_are_cached(length: int, cached: bool) -> None:
    name = "x" * length
    parsed = parse(b"GET / HTTP/1.1\r\n" + HOST + f"{name}: 1\r\n\r\n".encode(), LARGE)
    assert parsed.environ[f"HTTP_{name.upper()}"] == "1"
    assert (name in request._environ_keys) == cached
