"""The interface description and the code say the same."""

import json
import random
import re
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from marshmallow import Schema, ValidationError, fields
from openapi_spec_validator import validate

from plants.errors import HEADERS, ErrorCode, error_body
from plants.schemas import INT64_MAX, INT64_MIN, ErrorSchema, Int64, NewPlantSchema, PlantSchema, Text
from plants.stores import Plant
from tests.contract import AUTH, JSON_TYPE, NEW_PLANT, NOT_A_NEW_PLANT, Send

DESCRIPTION: dict[str, Any] = json.loads(files("plants").joinpath("openapi.json").read_bytes())
OPERATION = DESCRIPTION["paths"]["/plants"]["post"]
SCHEMAS = DESCRIPTION["components"]["schemas"]


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """The node, or what its reference refers to."""
    if "$ref" in node:
        found: Any = DESCRIPTION
        for key in node["$ref"].removeprefix("#/").split("/"):
            found = found[key]
        return dict(found)
    return node


def test_the_description_is_valid_openapi() -> None:
    validate(DESCRIPTION)


def test_the_description_says_what_the_specification_fixes() -> None:
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


@pytest.mark.parametrize(
    ("name", "schema"), [("Plant", PlantSchema()), ("NewPlant", NewPlantSchema()), ("Error", ErrorSchema())]
)
def test_a_described_shape_has_the_fields_of_its_schema(name: str, schema: Schema) -> None:
    described = SCHEMAS[name]
    properties = described["properties"]
    assert described["type"] == "object"
    assert set(described["required"]) == {key for key, field in schema.fields.items() if field.required}
    assert properties.keys() == schema.fields.keys()
    types = {Text: "string", fields.String: "string", Int64: "integer", fields.Integer: "integer"}
    assert {key: value["type"] for key, value in properties.items()} == {
        key: types[type(field)] for key, field in schema.fields.items()
    }


def test_a_new_plant_is_described_as_a_plant_and_an_id() -> None:
    """Generators of clients read a flat shape best; so what the two have in common stands in both."""
    plant, new_plant = SCHEMAS["Plant"], SCHEMAS["NewPlant"]
    assert new_plant["properties"] == plant["properties"] | {"id": new_plant["properties"]["id"]}
    assert new_plant["required"] == ["id", *plant["required"]]


def test_the_described_id_has_the_bounds_of_an_int64() -> None:
    described = SCHEMAS["NewPlant"]["properties"]["id"]
    assert (described["format"], described["minimum"], described["maximum"]) == ("int64", INT64_MIN, INT64_MAX)


def test_the_described_codes_are_those_of_the_error_table() -> None:
    described = SCHEMAS["Error"]["properties"]["error"]["description"]
    assert [int(code) for code in re.findall(r"\b\d{5}\b", described)] == list(ErrorCode)


def test_every_status_of_the_error_table_is_described() -> None:
    assert {key for key in OPERATION["responses"] if key.isdigit()} == {
        "200",
        *(str(code // 100) for code in ErrorCode),
    }


@pytest.mark.parametrize("status", OPERATION["responses"])
def test_every_described_answer_has_the_common_headers_and_a_json_body(status: str) -> None:
    response = resolved(OPERATION["responses"][status])
    fixed = {key: resolved(value)["schema"].get("const") for key, value in response["headers"].items()}
    assert HEADERS.items() <= {"Content-Type": "application/json", **fixed}.items()
    shape = "Plant" if status == "200" else "Error"
    assert response["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{shape}"}


@pytest.mark.parametrize("name", ["tagged", "untagged"])
def test_the_described_examples_work_when_pasted(send: Send, name: str) -> None:
    request = OPERATION["requestBody"]["content"]["application/json"]["examples"][name]["value"]
    response = OPERATION["responses"]["200"]["content"]["application/json"]["examples"][name]["value"]
    assert send(json.dumps(request).encode(), headers=[AUTH, JSON_TYPE]).plant == response


def judge() -> Draft202012Validator:
    return Draft202012Validator({"$ref": "#/components/schemas/NewPlant", "components": DESCRIPTION["components"]})


@pytest.mark.parametrize("body", [pytest.param(row[1], id=row[0]) for row in NEW_PLANT])
def test_what_is_accepted_fits_the_described_shape(body: bytes) -> None:
    assert judge().is_valid(json.loads(body))


# What a JSON Schema cannot say: 1.0 is an integer to it, and strings hold any code points.
BEYOND_SCHEMA = {"id 1.0", "id 1e3", "id -0.0"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(row[1], id=row[0])
        for row in NOT_A_NEW_PLANT
        if row[0] not in BEYOND_SCHEMA and "surrogate" not in row[0]
    ],
)
def test_what_is_refused_does_not_fit_the_described_shape(body: bytes) -> None:
    assert not judge().is_valid(json.loads(body))


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_has_a_message_for_people(code: ErrorCode) -> None:
    assert json.loads(error_body(code)) == {"error": code, "message": code.message}
    assert re.fullmatch(r"[A-Z] ?[a-z].*\.", code.message)


def test_a_status_that_is_not_in_the_table_is_its_number_times_100() -> None:
    assert json.loads(error_body(43100)) == {"error": 43100, "message": "Request Header Fields Too Large"}


def verdict(load: Any, *args: Any, **options: Any) -> tuple[bool, Any]:
    try:
        return True, load(*args, **options)
    except ValidationError as error:
        return False, error.messages


@pytest.mark.parametrize("schema", [PlantSchema(), NewPlantSchema()], ids=["Plant", "NewPlant"])
def test_our_way_through_a_shape_comes_to_the_verdict_of_marshmallows_own(schema: Schema) -> None:
    source = random.Random(20261121)
    documents = [json.loads(body) for _, body, *_ in [*NEW_PLANT, *NOT_A_NEW_PLANT]]
    objects = [document for document in documents if type(document) is dict]
    values = [*documents, *(value for document in objects for value in document.values())]
    seen = {True: 0, False: 0}
    for _ in range(5_000):
        document = source.choice(documents)
        if type(document) is dict:
            kept = [name for name in document if source.random() < 0.9]
            added = source.choices([*schema.fields, "ID", ""], k=source.choice([0, 0, 1, 2]))
            document = {name: document[name] for name in kept} | {name: source.choice(values) for name in added}
        ours = verdict(schema.load, document)
        assert ours == verdict(Schema.load, schema, document)
        seen[ours[0]] += 1
    assert min(seen.values()) > 500


@pytest.mark.parametrize("options", [{"many": True}, {"partial": True}, {"unknown": "include"}], ids=repr)
@pytest.mark.parametrize("document", [{"tag": "shade", "x": 1}, {"name": "Fern", "x": 1}, [{"name": "Fern"}]], ids=repr)
def test_an_option_of_marshmallows_load_has_its_effect(options: dict[str, Any], document: Any) -> None:
    ours = verdict(PlantSchema().load, document, **options)
    assert ours == verdict(Schema.load, PlantSchema(), document, **options)


@pytest.mark.parametrize("plant", [pytest.param(row[2], id=row[0]) for row in NEW_PLANT])
def test_a_plant_is_rendered_as_the_standard_library_would(plant: Plant) -> None:
    members = {name: value for name, value in plant._asdict().items() if value is not None}
    assert json.loads(NewPlantSchema().dumps(plant)) == members
    assert PlantSchema().dumps(plant) == json.dumps(PlantSchema().dump(plant))


def test_many_plants_are_rendered_as_a_list() -> None:
    plants = [Plant(1, "Fern"), Plant(2, "Moss", "shade")]
    members = [{"name": "Fern"}, {"name": "Moss", "tag": "shade"}]
    assert PlantSchema().dump(plants, many=True) == PlantSchema(many=True).dump(plants) == members
