"""Undocumented parts of Falcon and the standard library that the application relies on."""

import json
import subprocess
import sys
from json.encoder import encode_basestring_ascii

import falcon
import pytest


def test_falcon_response_has_headers_with_names_in_lower_case() -> None:
    """``_headers``: a dictionary of all headers that were set."""
    response = falcon.Response()
    response.set_header("X-Plant", "Fern")
    response.content_type = "text/plain"
    assert response._headers == {"x-plant": "Fern", "content-type": "text/plain"}
    response._headers = {"x-tag": "shade"}
    assert response._wsgi_headers()[0] == ("x-tag", "shade")


OBSERVED = """
import falcon
from falcon.testing import simulate_get

class Observed(falcon.App):
    __class_getitem__ = None

    def __init__(self, *args, **kwargs):
        kwargs["middleware"].insert(0, self)
        super().__init__(*args, **kwargs)

    def process_request(self, req, resp):
        print(req.method, req.path)

falcon.App = Observed
import plants
print(simulate_get(plants.create_app(tokens=["secret"]), "/plants").status_code)
"""


def test_a_monitoring_tool_may_replace_the_falcon_app() -> None:
    """OpenTelemetry replaces ``falcon.App`` with a class that is not generic, and requires a list of middleware."""
    result = subprocess.run([sys.executable, "-c", OBSERVED], capture_output=True, text=True, check=False)
    assert (result.stdout.splitlines(), result.stderr) == (["GET /plants", "401"], "")


def test_encode_basestring_ascii_accepts_only_strings() -> None:
    """``json.encoder.encode_basestring_ascii``: not documented."""
    for text in ("Fern", '"\\/\n', "\0\x7f\x80\u20ac\ud800\U0001f33f"):
        assert encode_basestring_ascii(text) == json.dumps(text)
    for value in (None, 1, b"Fern", ["Fern"]):
        with pytest.raises(TypeError):
            encode_basestring_ascii(value)  # type: ignore[arg-type]
