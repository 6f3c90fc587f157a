"""Undocumented parts of Falcon, marshmallow and the standard library that the application relies on."""

import json
import subprocess
import sys
from json.encoder import encode_basestring_ascii
from typing import Any

import falcon
import pytest
from marshmallow import Schema, fields, post_load

from plants.falcon_defaults import json_app


def test_falcon_app_has_meta_methods() -> None:
    """``_META_METHODS``: Falcon rejects these methods, and no others, before any middleware runs."""
    assert set(falcon.App._META_METHODS) == {"WEBSOCKET"}
    assert not json_app()._META_METHODS


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


def test_marshmallow_schema_sets_its_fields_in_one_method() -> None:
    """``_init_fields``: called by the constructor, and by ``Nested`` for its copy, which may have fewer fields."""

    class Recording(Schema):
        name = fields.String()
        tag = fields.String()

        def _init_fields(self) -> None:
            super()._init_fields()
            recorded.append([*self.fields])

    recorded: list[list[str]] = []
    schema = Recording()
    assert recorded == [["name", "tag"]]
    nested: Any = fields.Nested(schema, only=("name",)).schema
    assert [*nested.fields] == recorded[-1] == ["name"]


def test_marshmallow_schema_knows_its_hooks() -> None:
    """``_hooks``: maps each kind of hook, such as ``post_load``, to the methods that have this decorator."""

    class Hooked(Schema):
        @post_load
        def hook(self, data: object, **_options: object) -> None:
            """Never called."""

    assert not any(Schema()._hooks.values())
    assert any(Hooked()._hooks.values())


def test_encode_basestring_ascii_accepts_only_strings() -> None:
    """``json.encoder.encode_basestring_ascii``: not documented."""
    for text in ("Fern", '"\\/\n', "\0\x7f\x80\u20ac\ud800\U0001f33f"):
        assert encode_basestring_ascii(text) == json.dumps(text)
    for value in (None, 1, b"Fern", ["Fern"]):
        with pytest.raises(TypeError):
            encode_basestring_ascii(value)  # type: ignore[arg-type]
