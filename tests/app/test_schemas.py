"""The schemas, and the interface description that documents them."""

import json
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from marshmallow import Schema, fields
from marshmallow.validate import Length, Regexp

from plants.app import OPERATIONS
from plants.auth import CHALLENGE
from plants.errors import HEADERS, ErrorCode
from plants.fast_path import dumper, loader
from plants.schemas import NewPlantSchema, PlantSchema
from plants.stores import COLUMNS, INT64_MAX, INT64_MIN, Plant
from tests.contract import AUTH, JSON_TYPE, NEW_PLANT, NOT_A_NEW_PLANT, Send
from tests.support.examples import examples

DESCRIPTION: dict[str, Any] = json.loads(files("plants").joinpath("openapi.json").read_bytes())
OPERATION = DESCRIPTION["paths"]["/plants"]["post"]
SCHEMAS = DESCRIPTION["components"]["schemas"]


def resolved(node: dict[str, Any]) -> Any:
    """Return the node, or the component that it refers to."""
    if "$ref" not in node:
        return node
    _, _, kind, name = node["$ref"].split("/")
    return DESCRIPTION["components"][kind][name]


def test_the_description_is_valid_openapi_and_has_what_the_contract_fixes() -> None:
    from openapi_spec_validator import validate

    validate(DESCRIPTION)
    assert DESCRIPTION["openapi"].startswith("3.1.")
    assert DESCRIPTION["info"]["version"] == "1.0.0"
    assert DESCRIPTION["info"]["license"] == {"name": "MIT", "identifier": "MIT"}
    assert DESCRIPTION["security"] == [{"bearerAuth": []}]
    scheme = DESCRIPTION["components"]["securitySchemes"]["bearerAuth"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert not {"parameters", "security"} & OPERATION.keys()
    assert (OPERATION["operationId"], OPERATION["tags"]) == ("createPlant", ["plants"])  # Generated clients use them.
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/NewPlant"}}}
    assert OPERATION["requestBody"].items() >= {"required": True, "content": content}.items()
    assert OPERATION["responses"]["200"]["description"] == "plant response"
    assert OPERATION["responses"]["400"]["description"].startswith("unexpected error")
    identified, plant = map(resolved, SCHEMAS["NewPlant"]["allOf"])
    error = SCHEMAS["Error"]
    assert plant == SCHEMAS["Plant"]
    errors = [{"error": code, "message": "x" * 499} for code in (30200, *ErrorCode, 59999)]
    assert all(map(Draft202012Validator(error).is_valid, errors))
    for wrong in ({"detail": ""}, {"error": "40000"}, {"error": 40000.5}, {"message": 1}):
        assert not Draft202012Validator(error).is_valid(errors[0] | wrong)
    assert [part["required"] for part in (identified, plant, error)] == [["id"], ["name"], ["error", "message"]]
    assert (identified["properties"]["id"]["format"], error["properties"]["error"]["format"]) == ("int64", "int32")
    numbers = ("most 1,048,576 bytes", "most 1,000 names", "most 100 deep", "within 5 seconds", "{1,128}$", '": 499')
    assert [words for words in numbers if words not in json.dumps(DESCRIPTION)] == []
    assert [int(code) for code in SCHEMAS["Error"]["properties"]["error"]["x-error-codes"]] == list(ErrorCode)
    assert OPERATION["responses"].keys() == {"200", "default", *(str(code // 100) for code in ErrorCode)}


def test_the_schemas_have_the_members_of_a_stored_plant() -> None:
    types = {fields.Integer: int, fields.String: str}
    declared = {(name, types[type(field)], not field.required) for name, field in NewPlantSchema().fields.items()}
    assert declared == set(COLUMNS)
    assert PlantSchema().fields.keys() == set(Plant._fields) - {"id"}
    assert Plant._field_defaults == {column.name: None for column in COLUMNS if column.nullable}


def test_the_described_operations_are_those_of_the_app() -> None:
    described = {path: {f"on_{method}" for method in item} for path, item in DESCRIPTION["paths"].items()}
    # A template of Falcon may have converters, as in {plant_id:int}.
    assert described == {
        re.sub(":[^{}]*}", "}", path): {name for name in dir(kind) if name.startswith("on_")}
        for path, kind in OPERATIONS.items()
    }


def test_every_described_response_has_json_and_the_headers_that_are_sent() -> None:
    described = [operation for item in DESCRIPTION["paths"].values() for operation in item.values()]
    own = {"401": ["WWW-Authenticate"], "405": ["Allow"], "503": ["Retry-After"]}
    for status, reference in [pair for operation in described for pair in operation["responses"].items()]:
        response = resolved(reference)
        assert response["headers"].keys() == {*HEADERS, "X-Request-ID", *own.get(status, [])} - {"Content-Type"}
        shape = "Plant" if status == "200" else "Error"
        assert response["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{shape}"}
    sent: dict[str, Any] = {"Retry-After": [0, 1], "Allow": ["POST, OPTIONS"], "X-Request-ID": ["Az09._-"]}
    sent["WWW-Authenticate"] = [CHALLENGE, f'{CHALLENGE}, error="invalid_token"']
    for name, header in DESCRIPTION["components"]["headers"].items():
        assert header.get("required", False) == (name not in {"X-Request-ID", "Retry-After"})
        assert header["schema"].get("const") == HEADERS.get(name)
        assert all(map(Draft202012Validator(header["schema"]).is_valid, sent.get(name, [])))


def test_the_described_examples_work_when_pasted(send: Send) -> None:
    request = json.dumps(SCHEMAS["NewPlant"]["examples"][0]).encode()
    for status, authorization in ((200, AUTH), (400, AUTH), (401, ("Authorization", "Bearer wrong"))):
        response = send(request, headers=[authorization, JSON_TYPE])
        example = OPERATION["responses"][str(status)]["content"]["application/json"]["example"]
        assert (response.status, json.loads(response.body)) == (status, example)


# The described schema also accepts 1.0 and 1e3, which are integers in JSON Schema, and lone surrogates.
REJECTED = [row[:2] for row in NOT_A_NEW_PLANT if not row[0].endswith((" 1.0", " 1e3", " surrogate"))]


@pytest.mark.parametrize(
    ("body", "accepted"),
    [pytest.param(row[1], rows is NEW_PLANT, id=row[0]) for rows in (NEW_PLANT, REJECTED) for row in rows],
)
def test_the_described_schema_accepts_what_the_app_accepts(body: bytes, accepted: bool) -> None:
    shape = Draft202012Validator({"$ref": "#/components/schemas/NewPlant", "components": DESCRIPTION["components"]})
    assert shape.is_valid(json.loads(body)) == accepted


def test_an_embedding_app_may_have_a_schema_of_the_same_name() -> None:
    theirs = type("PlantSchema", (Schema,), {"height": fields.Integer()})
    nested = Schema.from_dict({"plant": fields.Nested(theirs.__name__)})()
    assert nested.load({"plant": {"height": 1}}) == {"plant": {"height": 1}}


texts = st.text(st.characters(), max_size=5) | st.sampled_from(["Fern", "\ud800", "\0", "true", "1"])
integers = st.integers() | st.sampled_from([INT64_MIN - 1, INT64_MIN, INT64_MAX, INT64_MAX + 1])
scalars = st.none() | st.booleans() | integers | st.floats() | texts
names = st.sampled_from(["id", "name", "tag"])
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(names, scalars, max_size=2)
plants = st.fixed_dictionaries({"id": integers, "name": texts}, optional={"tag": texts, "x": values})
documents = plants | st.dictionaries(names | texts, texts | values, max_size=4) | values


@pytest.mark.parametrize(("body", "plant"), [row[1:] for row in NEW_PLANT], ids=[row[0] for row in NEW_PLANT])
def test_a_valid_plant_does_not_reach_marshmallow(body: bytes, plant: Plant) -> None:
    schema = NewPlantSchema()
    schema.load = None  # type: ignore[assignment]  # It must not be called.
    assert repr(loader(schema)(json.loads(body))) == repr(plant)


def outcome(call: Callable[[], Any]) -> str:
    try:
        return repr(call())
    except Exception as error:
        return repr(error)


LIMITED: dict[str, Any] = {"name": fields.String(required=True, validate=[Length(max=3), Regexp("[A-F]")])}


@examples(200)
@given(schema=st.sampled_from([NewPlantSchema(), NewPlantSchema.from_dict(LIMITED)()]), document=documents)
def test_the_fast_path_loads_as_marshmallow_does(schema: Schema, document: Any) -> None:
    assert outcome(lambda: loader(schema)(document)) == outcome(lambda: Plant(**schema.load(document)))


@examples(100)
@given(kind=st.sampled_from([PlantSchema, NewPlantSchema]), plant=st.builds(Plant, integers, texts, st.none() | texts))
def test_the_fast_path_dumps_as_marshmallow_does(kind: type[Schema], plant: Plant) -> None:
    shape = {name: value for name, value in kind().dump(plant).items() if value is not None}
    assert dumper(kind())(plant) == json.dumps(shape).encode() + b"\n"


@pytest.mark.parametrize("make", [loader, dumper])
def test_the_fast_path_rejects_a_field_of_an_unknown_type(make: Callable[[Schema], object]) -> None:
    with pytest.raises(KeyError, match="Email"):
        make(NewPlantSchema.from_dict({"tag": fields.Email()})())
