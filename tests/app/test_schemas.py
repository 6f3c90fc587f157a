"""The schemas, and the interface description that documents them."""

import json
from importlib.resources import files
from typing import Any

import falcon
import hypothesis.strategies as st
import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from marshmallow import Schema, fields

from plants.errors import HEADERS, ErrorCode
from plants.fast_path import dump, load_valid
from plants.schemas import NewPlantSchema, PlantSchema
from plants.stores import INT64_MAX, INT64_MIN, Plant
from tests.contract import AUTH, JSON_TYPE, NEW_PLANT, NOT_A_NEW_PLANT, Send
from tests.support.examples import examples

DESCRIPTION: dict[str, Any] = json.loads(files("plants").joinpath("openapi.json").read_bytes())
OPERATION = DESCRIPTION["paths"]["/plants"]["post"]
SCHEMAS = DESCRIPTION["components"]["schemas"]


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """Return the node, or the node that it refers to."""
    if "$ref" in node:
        found: Any = DESCRIPTION
        for key in node["$ref"].removeprefix("#/").split("/"):
            found = found[key]
        return dict(found)
    return node


def test_the_description_is_valid_openapi() -> None:
    from openapi_spec_validator import validate

    validate(DESCRIPTION)


def test_the_description_has_the_required_fixed_values() -> None:
    assert DESCRIPTION["openapi"].startswith("3.1.")
    assert DESCRIPTION["info"]["version"] == "1.0.0"
    assert DESCRIPTION["info"]["license"] == {"name": "MIT", "identifier": "MIT"}
    assert DESCRIPTION["security"] == [{"bearerAuth": []}]
    scheme = DESCRIPTION["components"]["securitySchemes"]["bearerAuth"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert {path: list(item) for path, item in DESCRIPTION["paths"].items()} == {"/plants": ["post"]}
    assert "parameters" not in OPERATION
    assert OPERATION["requestBody"]["required"] is True
    assert OPERATION["responses"]["200"]["description"] == "plant response"
    assert OPERATION["responses"]["400"]["description"].startswith("unexpected error")


def test_the_described_shapes_are_those_of_the_contract() -> None:
    shapes = {
        name: {key: (value["type"], value.get("format"), key in shape["required"]) for key, value in members.items()}
        for name, shape in SCHEMAS.items()
        if (members := shape["properties"])
    }
    text = {"name": ("string", None, True), "tag": ("string", None, False)}
    error = {"error": ("integer", "int32", True), "message": ("string", None, True)}
    assert shapes == {"Plant": text, "NewPlant": text | {"id": ("integer", "int64", True)}, "Error": error}
    # NewPlant repeats the members of Plant, because client generators support flat schemas best.
    members = SCHEMAS["NewPlant"]["properties"]
    assert members == SCHEMAS["Plant"]["properties"] | {"id": members["id"]}
    assert (members["id"]["minimum"], members["id"]["maximum"]) == (INT64_MIN, INT64_MAX)


def test_every_code_and_status_of_the_error_table_is_described() -> None:
    assert [int(code) for code in SCHEMAS["Error"]["properties"]["error"]["x-error-codes"]] == list(ErrorCode)
    statuses = {key for key in OPERATION["responses"] if key.isdigit()}
    assert statuses == {"200", *(str(code // 100) for code in ErrorCode)}


@pytest.mark.parametrize("status", OPERATION["responses"])
def test_every_described_response_has_headers_and_json(status: str) -> None:
    response = resolved(OPERATION["responses"][status])
    fixed = {key: resolved(value)["schema"].get("const") for key, value in response["headers"].items()}
    assert HEADERS.items() <= {"Content-Type": "application/json", **fixed}.items()
    assert "X-Request-ID" in fixed
    shape = "Plant" if status == "200" else "Error"
    assert response["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{shape}"}


def test_the_described_examples_work_when_pasted(send: Send) -> None:
    request = json.dumps(SCHEMAS["NewPlant"]["examples"][0]).encode()
    examples = {
        int(status): response["content"]["application/json"]["example"]
        for status, response in OPERATION["responses"].items()
        if status in {"200", "400", "401"}
    }
    assert send(request, headers=[AUTH, JSON_TYPE]).plant == examples[200]
    assert json.loads(send(request, headers=[AUTH, JSON_TYPE]).body) == examples[400]
    assert json.loads(send(request, headers=[("Authorization", "Bearer wrong"), JSON_TYPE]).body) == examples[401]


# The described schema also accepts 1.0, which is an integer in JSON Schema, and lone surrogates.
BEYOND_SCHEMA = {"id 1.0", "name with a low surrogate"}
REJECTED = [row[:2] for row in NOT_A_NEW_PLANT if row[0] not in BEYOND_SCHEMA]


@pytest.mark.parametrize(
    ("body", "accepted"),
    [pytest.param(row[1], rows is NEW_PLANT, id=row[0]) for rows in (NEW_PLANT, REJECTED) for row in rows],
)
def test_the_described_schema_accepts_the_bodies_that_the_application_accepts(body: bytes, accepted: bool) -> None:
    shape = Draft202012Validator({"$ref": "#/components/schemas/NewPlant", "components": DESCRIPTION["components"]})
    assert shape.is_valid(json.loads(body)) == accepted


@pytest.mark.parametrize("ours", [PlantSchema, NewPlantSchema])
def test_an_embedding_app_may_have_a_schema_of_the_same_name(ours: type[Schema]) -> None:
    theirs = type(ours.__name__, (Schema,), {"height": fields.Integer()})
    nested = Schema.from_dict({"plant": fields.Nested(theirs.__name__)})()
    assert nested.load({"plant": {"height": 1}}) == {"plant": {"height": 1}}


texts = st.text(st.characters(), max_size=5) | st.sampled_from(["Fern", "\ud800", "\0", "true", "1"])
integers = st.integers() | st.sampled_from([INT64_MIN - 1, INT64_MIN, INT64_MAX, INT64_MAX + 1])
scalars = st.none() | st.booleans() | integers | st.floats() | texts
names = st.sampled_from(["id", "name", "tag"])
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(names, scalars, max_size=2)
plants = st.fixed_dictionaries({"id": integers, "name": texts}, optional={"tag": texts, "x": values})
documents = plants | st.dictionaries(names | texts, texts | values, max_size=4) | values


def load(document: Any) -> Plant | None:
    """Return the plant as marshmallow alone loads it, or None if the document is not valid."""
    try:
        return Plant(**NewPlantSchema().load(document))
    except falcon.HTTPError:
        return None


@examples(300)
@given(document=documents)
def test_the_fast_path_decides_as_the_schemas_declare(document: Any) -> None:
    assert repr(load_valid(document)) == repr(load(document))


@pytest.mark.parametrize("plant", [pytest.param(row[2], id=row[0]) for row in NEW_PLANT])
def test_a_plant_is_dumped_as_json_would_dump_it(plant: Plant) -> None:
    members = {"name": plant.name} | ({} if plant.tag is None else {"tag": plant.tag})
    assert dump(plant) == json.dumps(members).encode()
    assert PlantSchema().load(members) == members
