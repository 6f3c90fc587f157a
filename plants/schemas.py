"""The schemas of the interface: Plant, NewPlant and Error."""

from typing import Any, NoReturn

from marshmallow import EXCLUDE, Schema, ValidationError, fields, post_dump
from marshmallow.validate import Range, Regexp

from plants.fast_path import STORABLE_TEXT, dump_valid, load_valid
from plants.stores import INT64_MAX, INT64_MIN, Plant

_NOT_TEXT = "Must be a string without U+0000 and without lone surrogates."
_NOT_INT64 = f"Must be an integer from {INT64_MIN} to {INT64_MAX}."
_TEXT: Any = {"validate": Regexp(STORABLE_TEXT, error=_NOT_TEXT), "error_messages": {"invalid": _NOT_TEXT}}
_INT64: Any = {"validate": Range(INT64_MIN, INT64_MAX, error=_NOT_INT64), "error_messages": {"invalid": _NOT_INT64}}


class NotAPlant(Exception):
    """The document is not a valid plant; the message names each invalid member."""


class _Base(Schema):
    error_messages = {"type": "Not a JSON object."}

    class Meta:
        # Do not register it, because an embedding application may look up its own PlantSchema by name.
        register = False
        unknown = EXCLUDE

    def handle_error(self, error: ValidationError, data: Any, **options: Any) -> NoReturn:
        """Raise NotAPlant, so that a ValidationError from a store is not mistaken for an invalid body."""
        faults = [f"{member}: {messages[0]}" for member, messages in error.messages_dict.items()]
        raise NotAPlant(" ".join(faults))


class PlantSchema(_Base):
    """A plant in a response: ``name``, and ``tag`` if the plant has one."""

    name = fields.String(required=True, **_TEXT)
    tag = fields.String(**_TEXT)

    @post_dump
    def _omit_tag(self, members: dict[str, Any], **_options: Any) -> dict[str, Any]:
        """Omit the tag of a plant that has none."""
        return {name: value for name, value in members.items() if value is not None}


class NewPlantSchema(_Base):
    """The body of a create request: a plant and its ``id``, an int64."""

    id = fields.Integer(strict=True, required=True, **_INT64)
    name = fields.String(required=True, **_TEXT)
    tag = fields.String(**_TEXT)


class ErrorSchema(_Base):
    """The body of every response that is not a success."""

    error: fields.Integer = fields.Integer(required=True)
    message: fields.String = fields.String(required=True)


_new_plant_schema = NewPlantSchema()
_plant_schema = PlantSchema()


def load_new_plant(document: Any) -> Plant:
    """Return the plant in a create request.

    :raises NotAPlant: a member is missing or invalid.
    """
    return load_valid(document) or Plant(**_new_plant_schema.load(document))


def dump_plant(plant: Plant) -> bytes:
    """Return a plant as the JSON of a response."""
    text: str = dump_valid(plant) or _plant_schema.dumps(plant)
    return text.encode()
