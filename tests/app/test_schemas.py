"""The schemas, and the interface description that documents them."""

import json
import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from inspect import signature
from typing import Any

import falcon
import hypothesis.strategies as st
import pytest
from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from hypothesis import assume, example, given
from jsonschema import Draft202012Validator
from marshmallow import INCLUDE, Schema, ValidationError, fields, post_load, validates, validates_schema
from marshmallow.validate import Length, OneOf, Range, Regexp

from plants import MAX_BODY_BYTES
from plants.app import OPERATIONS
from plants.errors import HEADERS, ErrorCode
from plants.fast_path import dumper, loader
from plants.schemas import NewPlantSchema, PlantSchema
from plants.stores import COLUMNS, INT64_MAX, INT64_MIN, Plant
from plants.stores.memory import MemoryStore
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
    assert "parameters" not in OPERATION
    assert OPERATION["requestBody"]["required"] is True
    assert OPERATION["responses"]["200"]["description"] == "plant response"
    assert OPERATION["responses"]["400"]["description"].startswith("unexpected error")


def members(shape: dict[str, Any]) -> dict[str, tuple[dict[str, Any], bool]]:
    """Return each member of a described shape, with whether it is required."""
    parts = [members(resolved(part)) for part in shape.get("allOf", ())]
    own = {name: (dict(member), name in shape["required"]) for name, member in shape.get("properties", {}).items()}
    return {name: member for part in (*parts, own) for name, member in part.items()}


def test_the_described_shapes_have_the_members_of_the_contract() -> None:
    shapes = {
        name: {
            key: (member["type"], member.get("format"), required) for key, (member, required) in members(shape).items()
        }
        for name, shape in SCHEMAS.items()
    }
    text = {"name": ("string", None, True), "tag": ("string", None, False)}
    assert shapes["Plant"].items() >= text.items()
    assert shapes["NewPlant"] == shapes["Plant"] | {"id": ("integer", "int64", True)}
    assert shapes["Error"] == {"error": ("integer", "int32", True), "message": ("string", None, True)}


@pytest.mark.parametrize("schema", [PlantSchema, NewPlantSchema])
def test_the_described_members_are_those_of_the_schema(schema: type[Schema]) -> None:
    spec = APISpec("", "", "3.1.0", plugins=[MarshmallowPlugin()])
    spec.components.schema("derived", schema=schema)
    derived = members(spec.to_dict()["components"]["schemas"]["derived"])
    described = members(SCHEMAS[schema.__name__.removesuffix("Schema")])
    # The descriptions and formats are not in a schema, and JavaScript's patterns differ from Python's.
    for member, _ in (*derived.values(), *described.values()):
        for key in ("description", "format", "pattern"):
            member.pop(key, None)
    assert described == derived


def test_the_schemas_have_the_members_of_a_stored_plant() -> None:
    types = {fields.Integer: int, fields.String: str}
    declared = {(name, types[type(field)], not field.required) for name, field in NewPlantSchema().fields.items()}
    assert declared == set(COLUMNS)
    assert PlantSchema().fields.keys() == set(Plant._fields) - {"id"}
    assert Plant._field_defaults == {column.name: None for column in COLUMNS if column.nullable}


def test_every_code_and_status_of_the_error_table_is_described() -> None:
    assert [int(code) for code in SCHEMAS["Error"]["properties"]["error"]["x-error-codes"]] == list(ErrorCode)
    statuses = {key for key in OPERATION["responses"] if key.isdigit()}
    assert statuses == {"200", *(str(code // 100) for code in ErrorCode)}


# A path may also have members that are no operations, such as the parameters of all of them.
DESCRIBED = {
    (path, method): operation
    for path, item in DESCRIPTION["paths"].items()
    for method, operation in item.items()
    if "responses" in operation
}


def test_the_described_operations_are_those_of_the_app() -> None:
    resources = {path: make(MemoryStore(), MAX_BODY_BYTES) for path, make in OPERATIONS.items()}
    # A template of Falcon may have converters, as in {plant_id:int}.
    assert DESCRIBED.keys() == {
        (re.sub(":[^{}]*}", "}", path), name.removeprefix("on_"))
        for path, resource in resources.items()
        for name in dir(resource)
        if name.startswith("on_")
    }


@pytest.mark.parametrize(
    ("operation", "status"),
    [(operation, status) for operation in DESCRIBED.values() for status in operation["responses"]],
    ids=lambda value: value if isinstance(value, str) else value["operationId"],
)
def test_every_described_response_has_headers_and_json(operation: dict[str, Any], status: str) -> None:
    response = resolved(operation["responses"][status])
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
REJECTED = [row[:2] for row in NOT_A_NEW_PLANT if not row[0].endswith((" 1.0", " with a low surrogate"))]


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


def test_the_error_has_the_message_of_a_hook_for_a_member() -> None:
    class Strict(NewPlantSchema):
        @validates_schema
        def reject(self, _document: Any, **_options: Any) -> None:
            raise ValidationError({"tag": "odd"})

    with pytest.raises(falcon.HTTPError) as caught:
        Strict().load({"id": 1, "name": "Fern"})
    assert str(caught.value.description).endswith(" tag: odd")


texts = st.text(st.characters(), max_size=5) | st.sampled_from(["Fern", "\ud800", "\0", "true", "1"])
integers = st.integers() | st.sampled_from([INT64_MIN - 1, INT64_MIN, INT64_MAX, INT64_MAX + 1])
scalars = st.none() | st.booleans() | integers | st.floats() | texts
names = st.sampled_from(["id", "name", "tag"])
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(names, scalars, max_size=2)
plants = st.fixed_dictionaries({"id": integers, "name": texts}, optional={"tag": texts, "x": values})
documents = plants | st.dictionaries(names | texts, texts | values, max_size=4) | values


def fail(*_arguments: Any) -> None:
    raise AssertionError("marshmallow was called")


@pytest.mark.parametrize("row", NEW_PLANT, ids=lambda row: row[0])
def test_a_valid_plant_does_not_reach_marshmallow(row: Any) -> None:
    _, body, plant = row
    new_plant_schema, schema = NewPlantSchema(), PlantSchema()
    load, dump = loader(new_plant_schema), dumper(schema)
    slow_dump = schema.dump
    new_plant_schema.load = schema.dump = fail  # type: ignore[assignment]
    assert repr(load(json.loads(body))) == repr(plant)
    shape = {name: value for name, value in slow_dump(plant).items() if value is not None}
    assert dump(plant) == json.dumps(shape).encode()


class Label(str):
    """A string that marshmallow dumps as another one, as it does a member of an enumeration."""

    __slots__ = ()

    def __str__(self) -> str:
        return "label"


kinds = st.sampled_from([fields.String, fields.Integer, partial(fields.Integer, strict=True)])
lengths = [Length(max=3), Length(min=1, error="x"), Length(equal=4)]
ranges = [Range(max=9), Range(0, 5, min_inclusive=False)]
validators = st.sampled_from([*lengths, *ranges, Regexp("[A-F]"), OneOf(["Fern", 1]), bool])
options = st.fixed_dictionaries(
    {},
    optional={
        "required": st.booleans(),
        "validate": st.lists(validators, max_size=2),
        "allow_none": st.booleans(),
        "load_default": st.none() | texts | st.just(list),
        "metadata": st.just({"description": "x"}),
        "error_messages": st.just({"invalid": "x"}),
    },
)


@st.composite
def schemas(draw: Any) -> Schema:
    """Return a schema whose fields and options were drawn."""
    drawn = draw(st.fixed_dictionaries(dict.fromkeys(Plant._fields, st.tuples(kinds, options))))
    try:
        members = {name: kind(**options) for name, (kind, options) in drawn.items()}
    except ValueError:  # marshmallow rejects these options together.
        assume(False)
    return NewPlantSchema.from_dict(members)()


def outcome(call: Callable[[], Any]) -> str:
    try:
        return repr(call())
    except Exception as error:
        return repr(error)


def dump_slowly(schema: Schema, plant: Plant) -> bytes:
    return json.dumps({name: value for name, value in schema.dump(plant).items() if value is not None}).encode()


@examples(200)
@given(schema=st.just(NewPlantSchema()) | schemas(), document=documents)
def test_the_fast_path_loads_as_marshmallow_does(schema: Schema, document: Any) -> None:
    assert outcome(lambda: loader(schema)(document)) == outcome(lambda: Plant(**schema.load(document)))


@examples(200)
@example(schema=PlantSchema(), plant=Plant(1, "Fern", 5))  # type: ignore[arg-type]  # from somebody else's store
@example(schema=PlantSchema(), plant=Plant(1, Label("Fern")))
@given(schema=st.just(PlantSchema()) | schemas(), plant=st.builds(Plant, integers, texts, scalars))
def test_the_fast_path_dumps_as_marshmallow_does(schema: Schema, plant: Plant) -> None:
    assert outcome(lambda: dumper(schema)(plant)) == outcome(lambda: dump_slowly(schema, plant))


class Loud(fields.String):
    def _serialize(self, value: Any, *_arguments: Any, **_options: Any) -> Any:
        return f"{value}!"


def with_tag(tag: Any) -> Schema:
    return NewPlantSchema.from_dict({"tag": tag})()


class Renaming(NewPlantSchema):
    @post_load
    def _rename(self, document: Any, **_options: Any) -> Any:
        return document | {"name": "renamed"}


class Checking(NewPlantSchema):
    @validates("tag")
    def check_tag(self, value: str, **_options: Any) -> None:
        raise ValidationError(value)


unknown_options: list[tuple[Any, str, Any]] = [
    *((fields.String, option, True) for option in ("load_only", "dump_only")),
    *((fields.String, option, "x") for option in ("data_key", "attribute", "dump_default")),
    (fields.String, "data_key", ""),
    (fields.Integer, "as_string", True),
    # since marshmallow 4.3
    *(
        (fields.String, each, str.strip)
        for each in ("pre_load", "post_load")
        if each in signature(fields.Field).parameters
    ),
]
UNKNOWN: dict[str, tuple[Schema, str]] = {
    "another type": (with_tag(fields.Raw()), "Raw.* tag"),
    "a subclass of a known type": (with_tag(Loud()), "Loud.* tag"),
    **{
        f"{name}={value!r}": (with_tag(kind(**{name: value})), f"{name} of tag")
        for kind, name, value in unknown_options
    },
    "a member that no plant has": (NewPlantSchema.from_dict({"light": fields.String()})(), "light"),
    "a hook": (Renaming(), "_rename"),
    "a validator of the schema": (Checking(), "check_tag"),
    "unknown=INCLUDE": (NewPlantSchema(unknown=INCLUDE), "unknown"),
    "many=True": (NewPlantSchema(many=True), "many"),
    "partial=True": (NewPlantSchema(partial=True), "partial"),
}


@pytest.mark.parametrize(("schema", "problem"), UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("make", [loader, dumper])
def test_the_fast_path_rejects_what_it_does_not_know(
    make: Callable[[Schema], object], schema: Schema, problem: str
) -> None:
    with pytest.raises(ValueError, match=f"^the fast path does not know .*{problem}"):
        make(schema)
