"""Load and dump plants as their schemas declare, at a fraction of marshmallow's cost. mypyc can compile this module.

Invalid documents and values of another type go through marshmallow. A schema that declares something that this module
does not know raises a ValueError when the application is made.
"""

import json
from collections.abc import Callable
from inspect import signature
from json.encoder import encode_basestring_ascii
from math import inf
from typing import Any, Final

from marshmallow import EXCLUDE, Schema, ValidationError, fields, missing
from marshmallow.validate import Length, Range, Regexp

from plants.stores import Plant

_ENCODERS: Final[dict[Any, Any]] = {str: encode_basestring_ascii, int: int.__repr__}
_TYPES: Final[dict[Any, Any]] = {fields.String: str, fields.Integer: int}
_KINDS: Final = {*_TYPES, Length, Range, Regexp}
_OPTIONS: Final = {"required", "load_default", "validate", "strict", "allow_none", "metadata", "error_messages"}
_SCHEMA_NAMES: Final = {*vars(Schema.from_dict({})), *Plant._fields, "error_messages", "handle_error"}
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
    own_classes = [cls for cls in type(schema).__mro__ if cls not in Schema.__mro__]
    names = {*schema.fields, *(name for cls in own_classes for name in vars(cls) if not name.startswith("__"))}
    unknown = names - _SCHEMA_NAMES
    if schema.many or schema.unknown != EXCLUDE:
        unknown.add(f"many={schema.many} with unknown={schema.unknown}")
    for name, field in schema.fields.items():
        unknown |= {f"{each!r} of {name}" for each in (field, *field.validators) if type(each) not in _KINDS}
        kinds: Any = type(field).__mro__
        for cls in kinds:
            for option, parameter in signature(cls.__init__).parameters.items():
                value = vars(field).get(option, parameter.default)
                # marshmallow stores an empty list for some defaults of None.
                if option not in _OPTIONS and value is not parameter.default and value != []:
                    unknown.add(f"{option} of {name}")
    if unknown:
        raise ValueError(f"the fast path does not know {', '.join(sorted(unknown))} ({type(schema).__name__})")
