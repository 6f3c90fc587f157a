"""Load and dump plants as their schemas declare, at a fraction of marshmallow's cost. mypyc can compile this module.

Invalid documents and values of another type go through marshmallow. A schema that declares something that this module
does not know raises a ValueError when the application is made.
"""

import json
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from math import inf
from typing import Any, Final

from marshmallow import EXCLUDE, Schema, ValidationError, fields, missing
from marshmallow.validate import Range, Regexp

from plants.stores import Plant

_ENCODERS: Final[dict[Any, Any]] = {str: encode_basestring_ascii, int: int.__repr__}
_TYPES: Final[dict[Any, Any]] = {fields.String: str, fields.Integer: int}
_OPTIONS: Final = {
    *("required", "load_default", "validate", "validators", "strict", "allow_none", "metadata", "error_messages"),
    *("name", "parent", "root", "fields", "declared_fields", "load_fields", "dump_fields"),  # set by marshmallow
}
_PLAIN_SCHEMA: Final = Schema.from_dict({})(unknown=EXCLUDE)
_PLAIN_FIELD: Final = fields.Integer()  # It has every option of a String.
_ABSENT: Final = object()


def loader(schema: Schema) -> Callable[[Any], Plant]:
    """Return a function that does what ``Plant(**schema.load(document))`` does."""
    _reject_unknown(schema)
    rules = [(name, *_load_rule(schema.fields[name])) for name in Plant._fields]

    def load(document: Any) -> Plant:
        members: list[Any] = []
        try:
            for name, kind, default, is_valid in rules:
                value = document.get(name, _ABSENT)
                if type(value) is kind and is_valid(value):
                    members.append(value)
                elif value is _ABSENT and default is not _ABSENT:
                    members.append(default)
                else:
                    break
            else:
                return tuple.__new__(Plant, members)  # Plant._make would count them again.
        except (AttributeError, ValidationError):
            pass  # The document is no object, or a member is not valid. marshmallow raises the errors of all members.
        return Plant(**schema.load(document))

    return load


def dumper(schema: Schema) -> Callable[[Plant], bytes]:
    """Return a function that dumps a plant as JSON, without the members that are None."""
    _reject_unknown(schema)
    kinds = {name: _TYPES[type(field)] for name, field in schema.fields.items()}
    rules = [(Plant._fields.index(name), f'"{name}": ', kind, _ENCODERS[kind]) for name, kind in kinds.items()]

    def dump(plant: Any) -> bytes:  # With the type Plant, compiled code would raise for a value of another type.
        members: list[str] = []
        for index, label, kind, encode in rules:
            value = plant[index]
            if type(value) is kind:
                members.append(label + encode(value))
            elif value is not None:
                shape = {name: value for name, value in schema.dump(plant).items() if value is not None}
                return json.dumps(shape).encode()
        return ("{" + ", ".join(members) + "}").encode()

    return dump


def _load_rule(field: Any) -> tuple[Any, object, Callable[[Any], object]]:
    default = Plant._field_defaults.get(field.name, _ABSENT) if field.load_default is missing else field.load_default
    if field.required or callable(default):
        default = _ABSENT
    checks = [_check(validator) for validator in field.validators]
    is_valid = checks[0] if len(checks) == 1 else lambda value: all(check(value) for check in checks)
    return _TYPES[type(field)], default, is_valid


def _check(validator: Any) -> Any:
    """Return a function, faster than the validator if possible. If its result is false, marshmallow decides."""
    if type(validator) is Regexp:
        return validator.regex.match
    if type(validator) is Range and validator.min_inclusive and validator.max_inclusive:
        least = -inf if validator.min is None else validator.min
        most = inf if validator.max is None else validator.max
        return lambda value: least <= value <= most
    return validator


def _reject_unknown(schema: Schema) -> None:
    """Raise a ValueError if a schema declares something that this module does not know."""
    names = {*schema.fields, *dir(schema)} - {*Plant._fields, *dir(_PLAIN_SCHEMA)}
    unknown = names | _unknown_options(schema, _PLAIN_SCHEMA)
    for name, field in schema.fields.items():
        kinds = {type(field).__name__} if type(field) not in _TYPES else set()
        unknown |= {f"{each} of {name}" for each in kinds | _unknown_options(field, _PLAIN_FIELD)}
    if unknown:
        raise ValueError(f"the fast path does not know {', '.join(sorted(unknown))} ({type(schema).__name__})")


def _unknown_options(declared: Any, plain: Any) -> set[str]:
    options = vars(declared).keys() - _OPTIONS
    return {name for name in options if getattr(declared, name) != getattr(plain, name, None)}
