"""The schemas, and the interface description that documents them."""

import json
import re
from collections import OrderedDict
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from marshmallow import (
    EXCLUDE,
    INCLUDE,
    RAISE,
    Schema,
    ValidationError,
    fields,
    post_dump,
    post_load,
    pre_dump,
    pre_load,
    validates,
    validates_schema,
)
from marshmallow.validate import Equal, Length, Regexp, Validator
from openapi_spec_validator import validate

from plants.errors import HEADERS, ErrorCode, error_body
from plants.schemas import ErrorSchema, NewPlantSchema, NotAPlant, PlantSchema
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


@pytest.mark.parametrize(
    ("name", "schema"), [("Plant", PlantSchema()), ("NewPlant", NewPlantSchema()), ("Error", ErrorSchema())]
)
def test_a_described_shape_has_the_fields_of_its_schema(name: str, schema: Schema) -> None:
    described = SCHEMAS[name]
    properties = described["properties"]
    assert described["type"] == "object"
    assert set(described["required"]) == {key for key, field in schema.fields.items() if field.required}
    assert properties.keys() == schema.fields.keys()
    types = {fields.String: "string", fields.Integer: "integer"}
    assert {key: value["type"] for key, value in properties.items()} == {
        key: types[type(field)] for key, field in schema.fields.items()
    }


def test_a_new_plant_is_described_as_a_plant_and_an_id() -> None:
    """The description repeats the common members, because client generators support flat schemas best."""
    plant, new_plant = SCHEMAS["Plant"], SCHEMAS["NewPlant"]
    assert new_plant["properties"] == plant["properties"] | {"id": new_plant["properties"]["id"]}
    assert new_plant["required"] == ["id", *plant["required"]]


def test_the_described_id_has_the_bounds_of_an_int64() -> None:
    described = SCHEMAS["NewPlant"]["properties"]["id"]
    assert (described["format"], described["minimum"], described["maximum"]) == ("int64", INT64_MIN, INT64_MAX)


def test_the_described_codes_are_those_of_the_error_table() -> None:
    assert [int(code) for code in SCHEMAS["Error"]["properties"]["error"]["x-error-codes"]] == list(ErrorCode)


def test_every_status_of_the_error_table_is_described() -> None:
    assert {key for key in OPERATION["responses"] if key.isdigit()} == {
        "200",
        *(str(code // 100) for code in ErrorCode),
    }


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


def validator() -> Draft202012Validator:
    return Draft202012Validator({"$ref": "#/components/schemas/NewPlant", "components": DESCRIPTION["components"]})


@pytest.mark.parametrize("body", [pytest.param(row[1], id=row[0]) for row in NEW_PLANT])
def test_an_accepted_body_matches_the_described_schema(body: bytes) -> None:
    assert validator().is_valid(json.loads(body))


# The described schema accepts these, because 1.0 is an integer in JSON Schema. It also accepts lone surrogates.
BEYOND_SCHEMA = {"id 1.0", "id 1e3", "id -0.0"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(row[1], id=row[0])
        for row in NOT_A_NEW_PLANT
        if row[0] not in BEYOND_SCHEMA and "surrogate" not in row[0]
    ],
)
def test_a_rejected_body_does_not_match_the_described_schema(body: bytes) -> None:
    assert not validator().is_valid(json.loads(body))


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_has_a_message_for_people(code: ErrorCode) -> None:
    environ: dict[str, Any] = {}
    assert json.loads(error_body(environ, code)) == {"error": code, "message": code.message}
    assert environ["plants.error"] == (code, code.message)
    assert re.fullmatch(r"[A-Z] ?[a-z].*\.", code.message)


def test_a_code_without_a_message_uses_the_status_phrase() -> None:
    assert json.loads(error_body({}, 43100)) == {"error": 43100, "message": "Request Header Fields Too Large"}


def outcome(load: Any, *args: Any, **options: Any) -> Any:
    try:
        return load(*args, **options)
    except ValidationError as error:
        return error.messages


def declare(**attributes: Any) -> Any:
    return type("Declared", (PlantSchema,), attributes)


def tag(**options: Any) -> Any:
    return declare(tag=fields.String(**options))


def meta(**options: Any) -> Any:
    return declare(Meta=type("Meta", (PlantSchema.Meta,), options))


class Cased(fields.String):
    def _deserialize(self, *args: Any, **options: Any) -> str:
        return super()._deserialize(*args, **options).upper()

    def _serialize(self, *args: Any, **options: Any) -> str:
        return str(super()._serialize(*args, **options)).lower()


def fill(_self: object, data: Any, **_options: Any) -> Any:
    return {"tag": "filled", **data}


def retag(_self: object, plant: Any, **_options: Any) -> Any:
    return plant._replace(tag="new")


class Shouting:
    """A class for the option ``render_module``, in place of the ``json`` module. It dumps values in upper case."""

    loads = staticmethod(json.loads)

    @staticmethod
    def dumps(document: Any) -> str:
        return json.dumps({name: value.upper() for name, value in document.items()})


class Checked(Validator):
    """A validator that returns nothing."""

    def __call__(self, value: Any) -> None:
        if value == "sun":
            raise ValidationError("no")


class Anything(Regexp):
    """A subclass of Regexp that accepts every value."""

    def __call__(self, value: Any) -> Any:
        return value


def upper(_self: object, data: Any, **_options: Any) -> Any:
    return {name: value.upper() for name, value in data.items()}


def fail(*_args: Any, **_options: Any) -> None:
    raise ValidationError("no")


def failing_hook() -> Any:
    """Return a new function on each call, because marshmallow's decorators mark the function itself as a hook."""

    def hook(*_args: Any, **_options: Any) -> None:
        raise ValidationError("no")

    return hook


FERN = {"name": "Fern", "tag": "shade", "x": 1}
NAMED = {"name": "Fern"}
SHADED = {"name": "Fern", "tag": "shade"}
TAG_NULL = {"name": "Fern", "tag": None}
NESTED = declare(tag=fields.Nested(PlantSchema))
MISSING = ["Missing data for required field."]
NO = {"tag": ["no"]}
# A class, the options of its instance, a document, and the expected members or error messages.
LOADS: dict[str, tuple[Any, dict[str, Any], Any, Any]] = {
    "no declaration": (declare(), {}, FERN, SHADED),
    "validate": (tag(validate=Equal("sun", error="no")), {}, FERN, NO),
    "a function as validate": (tag(validate=fail), {}, FERN, NO),
    "a regular expression": (tag(validate=Regexp("su", error="no")), {}, FERN, NO),
    "a subclass of Regexp": (tag(validate=Anything("su")), {}, FERN, SHADED),
    "a validator that returns None": (tag(validate=Checked()), {}, FERN, SHADED),
    "a validator that raises": (tag(validate=Checked()), {}, {**FERN, "tag": "sun"}, NO),
    "two validators": (tag(validate=[Length(1), Length(max=1, error="no")]), {}, FERN, NO),
    "load_default": (tag(load_default="none"), {}, NAMED, {"name": "Fern", "tag": "none"}),
    "data_key": (tag(data_key="x-tag"), {}, {"name": "Fern", "x-tag": "shade"}, SHADED),
    "attribute": (tag(attribute="kind"), {}, FERN, {"name": "Fern", "kind": "shade"}),
    "a name with a dot": (declare(**{"x.y": fields.String()}), {}, {**NAMED, "x.y": "z"}, {**NAMED, "x": {"y": "z"}}),
    "allow_none": (tag(allow_none=True), {}, TAG_NULL, TAG_NULL),
    "required": (tag(required=True), {}, NAMED, {"tag": MISSING}),
    "not required": (declare(name=fields.String()), {}, {}, {}),
    "dump_only": (tag(dump_only=True), {}, FERN, NAMED),
    "load_only": (tag(load_only=True), {}, FERN, SHADED),
    "error_messages": (tag(error_messages={"null": "no"}), {}, TAG_NULL, NO),
    "a lenient integer": (declare(tag=fields.Integer()), {}, {**NAMED, "tag": "7"}, {**NAMED, "tag": 7}),
    "another type": (declare(tag=fields.Boolean()), {}, {**NAMED, "tag": "yes"}, {**NAMED, "tag": True}),
    "a subclass of a type": (declare(tag=Cased()), {}, FERN, {**NAMED, "tag": "SHADE"}),
    "a list": (declare(tag=fields.List(fields.String())), {}, {**NAMED, "tag": ["a"]}, {**NAMED, "tag": ["a"]}),
    "one more member": (declare(x=fields.Integer(strict=True)), {}, FERN, FERN),
    "nested": (NESTED, {}, {**NAMED, "tag": FERN}, {**NAMED, "tag": SHADED}),
    "an error in nested": (NESTED, {}, {**NAMED, "tag": {}}, {"tag": {"name": MISSING}}),
    "pre_load": (declare(hook=pre_load(fill)), {}, NAMED, {"name": "Fern", "tag": "filled"}),
    "post_load": (declare(hook=post_load(upper)), {}, FERN, {"name": "FERN", "tag": "SHADE"}),
    "validates": (declare(hook=validates("tag")(failing_hook())), {}, FERN, NO),
    "validates_schema": (declare(hook=validates_schema(failing_hook())), {}, FERN, {"_schema": ["no"]}),
    "unknown of Meta": (meta(unknown=INCLUDE), {}, FERN, FERN),
    "exclude of Meta": (meta(exclude=["tag"]), {}, FERN, NAMED),
    "dump_only of Meta": (meta(dump_only=["tag"]), {}, FERN, NAMED),
    "another Meta": (declare(Meta=type("Meta", (), {})), {}, FERN, {"x": ["Unknown field."]}),
    "unknown": (declare(), {"unknown": RAISE}, FERN, {"x": ["Unknown field."]}),
    "dump_only of the schema": (declare(), {"dump_only": ["tag"]}, FERN, NAMED),
    "many": (declare(), {"many": True}, [FERN, NAMED], [SHADED, NAMED]),
    "an error in many": (declare(), {"many": True}, [FERN, {}], {1: {"name": MISSING}}),
    "one object for many": (declare(), {"many": True}, FERN, {"_schema": ["Not a JSON object."]}),
    "partial": (declare(), {"partial": True}, {}, {}),
    "partial names": (declare(), {"partial": ["name"]}, {"tag": "shade"}, {"tag": "shade"}),
    "only": (declare(), {"only": ["tag"]}, FERN, {"tag": "shade"}),
    "exclude": (declare(), {"exclude": ["name"]}, FERN, {"tag": "shade"}),
}


@pytest.mark.parametrize(("declared", "options", "document", "expected"), LOADS.values(), ids=LOADS)
def test_load_follows_the_declaration(declared: Any, options: dict[str, Any], document: Any, expected: Any) -> None:
    schema = declared(**options)
    assert outcome(schema.load, document) == expected
    assert outcome(Schema.load, schema, document) == expected


PLANT = Plant(1, "Fern", "shade")
UNTAGGED = Plant(1, "Fern")
# A class, the options of its instance, an object, and the expected members.
DUMPS: dict[str, tuple[Any, dict[str, Any], Any, Any]] = {
    "no declaration": (declare(), {}, PLANT, SHADED),
    "no tag": (declare(), {}, UNTAGGED, NAMED),
    "data_key": (tag(data_key='"t"'), {}, PLANT, {"name": "Fern", '"t"': "shade"}),
    "attribute": (tag(attribute="name", dump_only=True), {}, PLANT, {"name": "Fern", "tag": "Fern"}),
    "dump_default": (tag(dump_default="none"), {}, UNTAGGED, {"name": "Fern", "tag": "none"}),
    "load_only": (tag(load_only=True), {}, PLANT, NAMED),
    "load_only of Meta": (meta(load_only=["tag"]), {}, PLANT, NAMED),
    "load_only of the schema": (declare(), {"load_only": ["tag"]}, PLANT, NAMED),
    "an integer": (declare(id=fields.Integer()), {}, UNTAGGED, {"name": "Fern", "id": 1}),
    "as_string": (declare(id=fields.Integer(as_string=True)), {}, UNTAGGED, {"name": "Fern", "id": "1"}),
    "an integer to convert": (declare(id=fields.String()), {}, PLANT, {**SHADED, "id": "1"}),
    "another type": (declare(id=fields.Float()), {}, UNTAGGED, {"name": "Fern", "id": 1.0}),
    "a subclass of a type": (declare(tag=Cased()), {}, Plant(1, "Fern", "SHADE"), SHADED),
    "a member that no plant has": (declare(x=fields.String()), {}, PLANT, SHADED),
    "a function": (declare(tag=fields.Function(repr)), {}, PLANT, {"name": "Fern", "tag": repr(PLANT)}),
    "pre_dump": (declare(hook=pre_dump(retag)), {}, PLANT, {"name": "Fern", "tag": "new"}),
    "post_dump": (declare(hook=post_dump(upper)), {}, PLANT, {"name": "FERN", "tag": "SHADE"}),
    "get_attribute": (declare(get_attribute=lambda *args: args[2]), {}, PLANT, {"name": "name", "tag": "tag"}),
    "dump": (declare(dump=lambda *_args, **_options: SHADED), {}, UNTAGGED, SHADED),
    "many": (declare(), {"many": True}, [PLANT, UNTAGGED], [SHADED, NAMED]),
    "only": (declare(), {"only": ["tag"]}, PLANT, {"tag": "shade"}),
    "a dictionary": (declare(), {}, TAG_NULL, NAMED),
    "nested": (NESTED, {}, {"name": "Fern", "tag": PLANT}, {"name": "Fern", "tag": SHADED}),
}


@pytest.mark.parametrize(("declared", "options", "plant", "expected"), DUMPS.values(), ids=DUMPS)
def test_dump_follows_the_declaration(declared: Any, options: dict[str, Any], plant: Any, expected: Any) -> None:
    schema = declared(**options)
    assert schema.dump(plant) == expected
    assert schema.dumps(plant) == json.dumps(expected)


def test_dumps_uses_the_render_module_of_the_schema() -> None:
    assert meta(render_module=Shouting)().dumps(PLANT) == json.dumps({"name": "FERN", "tag": "SHADE"})


def test_dumps_passes_positional_arguments_to_the_render_module() -> None:
    render_module = SimpleNamespace(dumps=lambda _document, *arguments: arguments)
    assert meta(render_module=render_module)().dumps(PLANT, 1, 2) == (1, 2)


def test_the_many_argument_of_dump_overrides_the_schema() -> None:
    assert PlantSchema().dump([PLANT], many=True) == [SHADED]
    assert PlantSchema(many=True).dump(PLANT, many=False) == SHADED
    assert PlantSchema().dumps([PLANT], many=True) == json.dumps([SHADED])


def test_load_and_dump_use_the_schemas_dict_class() -> None:
    schema = declare(dict_class=OrderedDict)()
    assert type(schema.load(FERN)) is type(schema.dump(PLANT)) is OrderedDict


@pytest.mark.skipif(not hasattr(fields.String(), "pre_load"), reason="this marshmallow has no hooks of a field")
def test_load_runs_the_hooks_of_a_field() -> None:
    schema = declare(name=fields.String(pre_load=str.strip), tag=fields.String(post_load=str.upper))()
    assert schema.load({"name": " Fern ", "tag": "shade"}) == {"name": "Fern", "tag": "SHADE"}


@pytest.mark.filterwarnings("ignore")  # marshmallow 3.26 warns about a validator that returns False.
def test_load_treats_validator_results_as_marshmallow_does() -> None:
    """Before marshmallow 4, a value is invalid if a validator function returns False."""
    schema = tag(validate=lambda _tag: False)()
    assert outcome(schema.load, FERN) == outcome(Schema.load, schema, FERN)


def test_load_follows_a_change_of_the_schema() -> None:
    schema = PlantSchema()
    schema.unknown = INCLUDE
    assert schema.load(FERN) == FERN


def test_load_and_dumps_follow_what_a_constructor_changes() -> None:
    class Changed(PlantSchema):
        def __init__(self) -> None:
            super().__init__()
            self.fields["name"].validators = [Length(max=3, error="no")]
            self.fields["tag"].required = True
            del self.dump_fields["tag"]

    schema = Changed()
    assert outcome(schema.load, NAMED) == {"name": ["no"], "tag": MISSING}
    assert json.loads(schema.dumps(PLANT)) == NAMED


def test_load_follows_fields_that_are_initialized_again() -> None:
    schema = PlantSchema()
    assert schema.load(FERN) == SHADED
    schema.exclude = {"tag"}
    schema._init_fields()
    assert schema.load(FERN) == NAMED


def test_load_raises_even_if_handle_error_returns() -> None:
    schema = declare(handle_error=lambda *_args, **_options: None)()
    with pytest.raises(NotAPlant, match="Missing data") as caught:
        schema.load({"tag": "shade"})
    assert (caught.value.data, caught.value.valid_data) == ({"tag": "shade"}, {"tag": "shade"})


def test_load_raises_the_exception_of_handle_error() -> None:
    class OwnError(ValidationError):
        pass

    def handle_error(*_args: Any, **_options: Any) -> None:
        raise OwnError("no")

    with pytest.raises(OwnError):
        declare(handle_error=handle_error)().load({})


class Enveloped(Schema):
    def load(self, *args: Any, **options: Any) -> Any:
        return {"plant": super().load(*args, **options)}

    def dumps(self, *args: Any, **options: Any) -> str:
        return f"[{super().dumps(*args, **options)}]"


def test_load_and_dumps_call_the_next_class_of_the_mro() -> None:
    schema = type("Declared", (PlantSchema, Enveloped), {})()
    assert schema.load(NAMED) == {"plant": NAMED}
    assert json.loads(schema.dumps(PLANT)) == [SHADED]


@pytest.mark.parametrize("method", ["_deserialize", "_do_load", "_serialize"])
def test_an_overridden_method_of_marshmallow_is_called(method: str) -> None:
    """Extensions of marshmallow override these methods."""
    schema = declare(**{method: lambda *_args, **_options: {"own": 1}})()
    assert schema.load(NAMED) == Schema.load(schema, NAMED)
    assert schema.dumps(PLANT) == Schema.dumps(schema, PLANT)


def test_an_overridden_field_validation_is_called() -> None:
    with pytest.raises(ValidationError, match="no"):
        declare(_invoke_field_validators=fail)().load(NAMED)


@pytest.mark.parametrize("options", [{"many": True}, {"partial": True}, {"unknown": INCLUDE}], ids=repr)
@pytest.mark.parametrize("document", [{"tag": "shade", "x": 1}, FERN, [NAMED]], ids=repr)
def test_load_follows_its_options(options: dict[str, Any], document: Any) -> None:
    ours = outcome(PlantSchema().load, document, **options)
    assert ours == outcome(Schema.load, PlantSchema(), document, **options)


@pytest.mark.parametrize("ours", [PlantSchema, NewPlantSchema, ErrorSchema])
def test_an_embedding_app_may_have_a_schema_of_the_same_name(ours: type[Schema]) -> None:
    theirs = type(ours.__name__, (Schema,), {"height": fields.Integer()})
    nested = Schema.from_dict({"plant": fields.Nested(theirs.__name__)})()
    assert nested.load({"plant": {"height": 1}}) == {"plant": {"height": 1}}


def test_a_validation_error_has_data_and_valid_data() -> None:
    document = {"name": "Fern", "tag": 1}
    with pytest.raises(NotAPlant) as caught:
        PlantSchema().load(document)
    assert (caught.value.data, caught.value.valid_data) == (document, NAMED)


def test_loads_and_dumps_pass_options_to_json() -> None:
    assert PlantSchema().loads('{"name": 1.5}', parse_float=str) == {"name": "1.5"}
    assert PlantSchema().dumps(UNTAGGED, indent=1) == '{\n "name": "Fern"\n}'


@pytest.mark.parametrize("plant", [pytest.param(row[2], id=row[0]) for row in NEW_PLANT])
def test_a_plant_is_dumped_as_json_would_dump_it(plant: Plant) -> None:
    members = {name: value for name, value in plant._asdict().items() if value is not None}
    assert NewPlantSchema().dumps(plant) == json.dumps(members)


def test_a_nested_schema_supports_the_only_option() -> None:
    nested: Any = fields.Nested(PlantSchema(), only=("name",)).schema
    assert json.loads(nested.dumps(PLANT)) == nested.load(FERN) == NAMED


@pytest.mark.parametrize("document", [{"tag": "shade", "z": 1}, {"tag": "shade"}], ids=["valid", "invalid"])
def test_a_custom_validator_is_called_only_once(document: dict[str, Any]) -> None:
    """A validator may have side effects: for example, it may accept each tag only once."""

    class Recorder(Validator):
        def __call__(self, value: str) -> None:
            validated.append(value)

    validated: list[str] = []
    outcome(
        declare(name=None, tag=fields.String(validate=Recorder()), z=fields.Integer(required=True))().load, document
    )
    assert validated == ["shade"]


def test_valid_documents_and_plants_take_the_fast_path() -> None:
    def slow(*_args: Any, **_options: Any) -> Any:
        raise NotImplementedError

    schema: Any = NewPlantSchema()
    schema._do_load = schema._serialize = slow
    assert schema.load({"id": 1, **FERN}) == {"id": 1, **SHADED}
    assert json.loads(schema.dumps(PLANT)) == {"id": 1, **SHADED}
    for method in (schema.load, schema.dumps):
        with pytest.raises(NotImplementedError):
            method({})


texts = st.text(st.characters(), max_size=5) | st.sampled_from(["Fern", "\ud800", "\0", "true", "1"])
integers = st.integers() | st.sampled_from([INT64_MIN - 1, INT64_MIN, INT64_MAX, INT64_MAX + 1])
scalars = st.none() | st.booleans() | integers | st.floats() | texts
names = st.sampled_from(["id", "name", "tag"])
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(names, scalars, max_size=2)
documents = st.dictionaries(names | texts, texts | values, max_size=4) | values


@examples(50)
@given(document=documents)
def test_any_document_loads_as_in_marshmallow(document: Any) -> None:
    schema = NewPlantSchema()
    assert repr(outcome(schema.load, document)) == repr(outcome(Schema.load, schema, document))


kinds = st.sampled_from([fields.String, fields.Integer, fields.Float, fields.Boolean, fields.Raw, Cased])
options = st.fixed_dictionaries(
    {},
    optional={
        "required": st.booleans(),
        "allow_none": st.booleans(),
        "attribute": st.sampled_from(["x", "y.z"]),
        "data_key": st.sampled_from(["x", "y.z"]),
        "dump_default": scalars,
        "load_default": scalars,
        "load_only": st.booleans(),
        "dump_only": st.booleans(),
        "validate": st.sampled_from([Length(max=3), [Equal(1)], lambda _value: None]),
    },
)
declarations = st.dictionaries(names | st.just("x.y"), st.tuples(kinds, options), max_size=3)
settings = st.fixed_dictionaries(
    {},
    optional={
        "many": st.booleans(),
        "partial": st.booleans() | st.just(["name"]),
        "unknown": st.sampled_from([EXCLUDE, INCLUDE, RAISE]),
    },
)


@examples(50)
@given(declaration=declarations, schema_options=settings, document=documents)
def test_any_declaration_loads_and_dumps_as_in_marshmallow(
    declaration: Any, schema_options: Any, document: Any
) -> None:
    try:
        declared = {name: kind(**chosen) for name, (kind, chosen) in declaration.items()}
        schema = declare(**declared)(**schema_options)
    except ValueError:  # A required field has a default, or two fields have the same key.
        return
    assert repr(attempt(schema.load, document)) == repr(attempt(Schema.load, schema, document))
    for plant in (PLANT, UNTAGGED):
        assert repr(attempt(schema.dumps, plant, many=False)) == repr(attempt(Schema.dumps, schema, plant, many=False))
        assert repr(attempt(schema.dumps, plant)) == repr(attempt(Schema.dumps, schema, plant))


def attempt(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what `outcome` returns, or any other exception that a validator or a field raises."""
    try:
        return outcome(function, *args, **kwargs)
    except (TypeError, ValueError, AttributeError) as error:
        return error
