"""The JSON shapes of the interface: Plant, NewPlant and Error."""

import re
from typing import Any

from marshmallow import EXCLUDE, Schema, fields

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

# U+0000 cannot be kept by PostgreSQL, and a lone surrogate cannot be encoded in UTF-8.
_STORABLE = re.compile(r"[^\x00\ud800-\udfff]*")

# What JSON gives needs no conversion, only a verdict. marshmallow's own fields convert, and take more: its String takes
# U+0000, lone surrogates and bytes, its Integer has no bounds.


class Text(fields.Field[str]):
    """A string that every store can keep."""

    default_error_messages = {
        "invalid": "Must be a string without U+0000 and without lone surrogates.",
    }

    def _validate(self, value: object) -> None:
        if not isinstance(value, str) or not _STORABLE.fullmatch(value):
            raise self.make_error("invalid")


class Int64(fields.Field[int]):
    """An integer of 64 bits, written as one: neither a boolean nor a number with a fraction or an exponent."""

    default_error_messages = {
        "invalid": f"Must be an integer from {INT64_MIN} to {INT64_MAX}.",
    }

    def _validate(self, value: object) -> None:
        if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
            raise self.make_error("invalid")


class PlantSchema(Schema):
    """A plant as it is answered: ``name``, and ``tag`` only where there is one."""

    name = Text(required=True)
    tag = Text()

    error_messages = {"type": "Not a JSON object."}

    class Meta:
        """Members that the shape does not have are ignored."""

        unknown = EXCLUDE

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:
        """Give the attribute of a ``plants.Plant``; one that is None has no member in the JSON."""
        value = getattr(obj, attr)
        return default if value is None else value


class NewPlantSchema(PlantSchema):
    """The body of a create request: a plant and its ``id``, an int64."""

    id = Int64(required=True)


class ErrorSchema(Schema):
    """The body of every answer that is not a success."""

    error = fields.Integer(strict=True, required=True)
    message = fields.String(required=True)
