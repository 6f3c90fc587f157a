"""The shapes of the interface: Plant and NewPlant. Their members are those of ``plants.stores.Plant``."""

import re
from typing import Any, NoReturn

from marshmallow import EXCLUDE, Schema, ValidationError, fields
from marshmallow.validate import Range, Regexp

from plants.errors import ErrorCode, http_error
from plants.stores import INT64_MAX, INT64_MIN

# PostgreSQL cannot store U+0000, and UTF-8 cannot encode a lone surrogate.
_STORABLE = re.compile("[\x01-\ud7ff\ue000-\U0010ffff]*+\\Z")
_NOT_TEXT = "Must be a string without U+0000 and without lone surrogates."
_NOT_INT64 = f"Must be an integer from {INT64_MIN} to {INT64_MAX}."
_TEXT: Any = {"validate": Regexp(_STORABLE, error=_NOT_TEXT), "error_messages": {"invalid": _NOT_TEXT}}
_INT64: Any = {"validate": Range(INT64_MIN, INT64_MAX, error=_NOT_INT64), "error_messages": {"invalid": _NOT_INT64}}


class PlantSchema(Schema):
    """A plant in a response: ``name``, and ``tag`` if the plant has one."""

    error_messages = {"type": "Not a JSON object."}
    name = fields.String(required=True, **_TEXT)
    tag = fields.String(**_TEXT)

    class Meta:
        """Not registered, because an embedding application may look up its own PlantSchema by name."""

        register = False
        unknown = EXCLUDE

    def handle_error(self, error: ValidationError, data: Any, **options: Any) -> NoReturn:
        """Raise a 400 that names each invalid member, because a ValidationError could also come from a store."""
        faults = [f"{member}: {messages[0]}" for member, messages in sorted(error.messages_dict.items())]
        # marshmallow uses the key _schema for an error of the whole document.
        message = " ".join(faults).removeprefix("_schema: ")
        raise http_error(ErrorCode.NOT_A_NEW_PLANT, f"The body is not a NewPlant. {message}")


class NewPlantSchema(PlantSchema):
    """The body of a create request: a plant and its ``id``, an int64."""

    id = fields.Integer(strict=True, required=True, **_INT64)
