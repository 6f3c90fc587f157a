"""The JSON shapes of the interface: Plant, NewPlant and Error."""

import abc
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from marshmallow import EXCLUDE, Schema, ValidationError, fields

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

# U+0000 cannot be kept by PostgreSQL, and a lone surrogate cannot be encoded in UTF-8.
_STORABLE = re.compile(r"[^\x00\ud800-\udfff]*")

_encode = json.JSONEncoder().encode


class NotAPlant(ValidationError):
    """A document does not have the shape of a plant; ``messages`` has what is wrong, by the names of the members."""


class Value(fields.Raw):
    """A value that is kept as JSON gives it: it is checked, and never converted.

    marshmallow's own fields convert, and take more: its String takes U+0000, lone surrogates and bytes, its Integer has
    no bounds.
    """

    @abc.abstractmethod
    def takes(self, value: object) -> bool:
        """Say whether the value is valid."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if not self.takes(value):
            raise self.make_error("invalid")
        return value


class Text(Value):
    """A string that every store can keep."""

    default_error_messages: dict[str, Any] = {
        "invalid": "Must be a string without U+0000 and without lone surrogates.",
    }

    def takes(self, value: object) -> bool:
        """Say whether this is such a string."""
        return type(value) is str and _STORABLE.fullmatch(value) is not None


class Int64(Value):
    """An integer of 64 bits, written as one: neither a boolean nor a number with a fraction or an exponent."""

    default_error_messages: dict[str, Any] = {
        "invalid": f"Must be an integer from {INT64_MIN} to {INT64_MAX}.",
    }

    def takes(self, value: object) -> bool:
        """Say whether this is such an integer."""
        return type(value) is int and INT64_MIN <= value <= INT64_MAX


class _FlatJSON:
    """Renders an object that has no arrays or objects inside; ``json.dumps`` takes twice as long."""

    @staticmethod
    def dumps(members: Mapping[str, object]) -> str:
        """Give what ``json.dumps`` gives. The names are those of the fields, and need no escapes."""
        return "{" + ", ".join([f'"{name}": {_encode(value)}' for name, value in members.items()]) + "}"


class PlantSchema(Schema):
    """A plant in an answer: ``name``, and ``tag`` if the plant has one."""

    name: Text = Text(required=True)
    tag: Text = Text()

    load_fields: dict[str, Any]  # Each of them is a Value.
    error_messages: dict[str, str] = {"type": "Not a JSON object."}

    class Meta:
        """Members that the shape does not have are ignored."""

        unknown = EXCLUDE
        render_module = _FlatJSON

    def load(self, data: Any, **options: Any) -> Any:
        """Give the members that the shape has.

        marshmallow does the same in four times the time. It still judges all data that has a fault.
        """
        if options or type(data) is not dict:
            return super().load(data, **options)
        loaded = {}
        for name, field in self.load_fields.items():
            if name in data:
                value = loaded[name] = data[name]
                if not field.takes(value):
                    return super().load(data)
            elif field.required:
                return super().load(data)
        return loaded

    def handle_error(self, error: ValidationError, data: Any, **options: Any) -> NoReturn:
        """Raise an error of our own: a store that uses marshmallow may raise a ValidationError, too."""
        raise NotAPlant(error.messages) from error

    def dump(self, obj: Any, *, many: bool | None = None) -> Any:
        """Give the members that a ``plants.Plant`` has, and none that is None; of each plant, if there are many."""
        if many or (many is None and self.many):
            return [self.dump(plant, many=False) for plant in obj]
        return {name: value for name in self.dump_fields if (value := getattr(obj, name)) is not None}


class NewPlantSchema(PlantSchema):
    """The body of a create request: a plant and its ``id``, an int64."""

    id: Int64 = Int64(required=True)


class ErrorSchema(Schema):
    """The body of every answer that is not a success."""

    error: fields.Integer = fields.Integer(required=True)
    message: fields.String = fields.String(required=True)
