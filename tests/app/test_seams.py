"""What the application uses of Falcon and marshmallow that they do not promise; a new version of them fails here."""

import subprocess
import sys

import falcon
import falcon.testing
from marshmallow import Schema, fields

from plants.framework import json_app


def test_falcon_app_has_meta_methods() -> None:
    """``_META_METHODS``: before any middleware, Falcon refuses these methods, and no others."""
    assert set(falcon.App._META_METHODS) == {"WEBSOCKET"}
    assert not json_app()._META_METHODS


def test_falcon_response_has_headers_with_names_in_lower_case() -> None:
    """``_headers``: a dictionary of all headers that were set."""
    response = falcon.Response()
    response.set_header("X-Plant", "Fern")
    response.content_type = "text/plain"
    assert response._headers == {"x-plant": "Fern", "content-type": "text/plain"}


def test_falcon_response_gives_its_headers_to_the_application() -> None:
    """``_wsgi_headers``: what the application gives to ``start_response``."""

    class Marked(falcon.Response):
        def _wsgi_headers(self, media_type: str | None = None) -> list[tuple[str, str]]:
            return [*super()._wsgi_headers(media_type), ("x-marked", "yes")]

    result = falcon.testing.simulate_get(falcon.App(response_type=Marked), "/")
    assert (result.headers["x-marked"], result.headers["content-type"]) == ("yes", "application/json")


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


def test_a_tool_that_observes_may_put_its_own_class_and_middleware_in_the_place_of_falcons() -> None:
    """As OpenTelemetry's instrumentation does: a class that takes no types, and expects a list of middleware."""
    result = subprocess.run([sys.executable, "-c", OBSERVED], capture_output=True, text=True, check=False)
    assert (result.stdout.splitlines(), result.stderr) == (["GET /plants", "401"], "")


def test_marshmallow_fields_are_asked_for_a_value_by_deserialize() -> None:
    """``_deserialize``: called with every value that is neither missing nor None, before the validators."""
    asked = []

    class Asked(fields.Raw):
        def _deserialize(self, value: object, attr: object, data: object, **_options: object) -> object:
            asked.append((value, attr, data))
            return value

    schema = Schema.from_dict({"a": Asked(), "b": Asked(), "c": Asked(allow_none=True)})()
    document = {"a": 1, "c": None}
    assert schema.load(document) == document
    assert asked == [(1, "a", document)]
