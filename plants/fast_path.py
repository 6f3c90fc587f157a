"""Load and dump plants as their schemas declare, at a fraction of marshmallow's cost. mypyc can compile this module.

It is for the two schemas of this package, of whose fields it follows the type, the validators, ``required`` and the
default. An option that it does not know raises a ValueError when the application is made. It does not look for hooks,
but a test compares its results with marshmallow's. Invalid documents go through marshmallow.
"""

from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from marshmallow import Schema, ValidationError, fields, missing
from marshmallow.validate import Range, Regexp

from plants.stores import Plant

_KINDS: Final[dict[Any, Any]] = {fields.String: (str, encode_basestring_ascii), fields.Integer: (int, int.__repr__)}
_OPTIONS: Final = {
    *("required", "load_default", "validate", "validators", "strict", "allow_none", "metadata", "error_messages"),
    *("name", "parent", "root"),  # set by the schema
}
_ABSENT: Final = object()


def loader(schema: Schema) -> Callable[[Any], Plant]:
    """Return a function that does what ``Plant(**schema.load(document))`` does."""
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
    rules = [(Plant._fields.index(name), f'"{name}": ', _kind(field)[1]) for name, field in schema.fields.items()]

    def dump(plant: Plant) -> bytes:
        members: list[str] = []
        for index, label, encode in rules:
            value = plant[index]
            if value is not None:
                members.append(label + encode(value))
        return f"{{{', '.join(members)}}}".encode()

    return dump


def _kind(field: Any) -> Any:
    """Return the type of a field's values and their encoder, or raise an error for an unknown type or option."""
    kind = _KINDS[type(field)]
    plain = type(field)()
    for option in vars(field).keys() - _OPTIONS:
        if getattr(field, option) != getattr(plain, option):
            raise ValueError(f"the fast path does not know {option} of {field.name}")
    return kind


def _load_rule(field: Any) -> tuple[Any, object, Callable[[Any], object]]:
    default = Plant._field_defaults.get(field.name, _ABSENT) if field.load_default is missing else field.load_default
    if field.required or callable(default):
        default = _ABSENT
    checks = [_check(validator) for validator in field.validators]
    is_valid = checks[0] if len(checks) == 1 else lambda value: all(check(value) for check in checks)
    return _kind(field)[0], default, is_valid


def _check(validator: Any) -> Any:
    """Return a function, faster than the validator if possible. If its result is false, marshmallow decides."""
    if type(validator) is Regexp:  # A subclass may decide otherwise.
        return validator.regex.match
    if type(validator) is Range and validator.min_inclusive and validator.max_inclusive:
        least, most = validator.min, validator.max
        if least is not None and most is not None:
            return lambda value: least <= value <= most
    return validator
