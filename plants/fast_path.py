"""Load and dump plants as their schemas declare, at a fraction of marshmallow's cost. mypyc can compile this module.

The fast path handles only valid documents and plain values, of schemas in which every option is known here. Everything
else goes through marshmallow: invalid documents, and schemas with a hook, a method of their own, or an unknown option
or validator.
"""

import json
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii
from math import inf
from typing import Any, Final

from marshmallow import EXCLUDE, Schema, fields
from marshmallow.validate import Length, Range, Regexp

from plants.stores import Plant

_TYPES: Final[dict[Any, Any]] = {fields.String: str, fields.Integer: int}
_ENCODERS: Final[dict[Any, Any]] = {str: encode_basestring_ascii, int: int.__repr__}
_ABSENT: Final = object()
_PLAIN_SCHEMA: Final = Schema.from_dict({})(unknown=EXCLUDE)
# What a class may define and a field or a schema may have without an effect on a valid document, or with one that is
# followed here. Any other name leads to marshmallow, those of its future versions included.
_CLASS_NAMES: Final = {*vars(type(_PLAIN_SCHEMA)), "error_messages", "handle_error", "__firstlineno__"} | {
    f"__{name}__" for name in ("static_attributes", "annotations", "annotate_func", "annotations_cache")
}
_SCHEMA_NAMES: Final = {"declared_fields", "fields", "load_fields", "dump_fields", "error_messages"}
_FIELD_NAMES: Final = {"required", "validate", "validators", "strict", "metadata", "error_messages"} | {
    *("name", "parent", "root", "_creation_index")
}


def loader(schema: Schema) -> Callable[[Any], Plant]:
    """Return a function that does what ``Plant(**schema.load(document))`` does."""
    rules = _load_rules(schema)

    def load(document: Any) -> Plant:
        if rules is None or type(document) is not dict:
            return Plant(**schema.load(document))
        members: list[Any] = []
        for name, kind, default, is_valid in rules:
            value = document.get(name, _ABSENT)
            if type(value) is kind and is_valid(value):
                members.append(value)
            elif value is _ABSENT and default is not _ABSENT:
                members.append(default)
            else:
                return Plant(**schema.load(document))
        return tuple.__new__(Plant, members)  # Plant._make would count them again.

    return load


def dumper(schema: Schema) -> Callable[[Plant], bytes]:
    """Return a function that dumps a plant as JSON, without the members that are None."""
    rules = _dump_rules(schema)

    def dump(plant: Plant) -> bytes:
        if rules is None:
            return _dump_slowly(schema, plant)
        members: list[str] = []
        for index, label, kind, encode in rules:
            value = plant[index]
            if type(value) is kind:
                members.append(label + encode(value))
            elif value is not None:
                return _dump_slowly(schema, plant)
        return ("{" + ", ".join(members) + "}").encode()

    return dump


def _dump_slowly(schema: Schema, plant: Plant) -> bytes:
    members = {name: value for name, value in schema.dump(plant).items() if value is not None}
    return json.dumps(members).encode()


def _load_rules(schema: Schema) -> list[Any] | None:
    """Return the rules of ``loader`` for each member of ``Plant``, or None if marshmallow must load."""
    if schema.load_fields.keys() != set(Plant._fields) or not _are_plain(schema, schema.load_fields):
        return None
    rules = []
    for name in Plant._fields:
        field = schema.load_fields[name]
        checks = [_check(validator) for validator in field.validators]
        if None in checks:
            return None
        default = _ABSENT if field.required else Plant._field_defaults.get(name, _ABSENT)
        rules.append((name, _TYPES[type(field)], default, _all(checks)))
    return rules


def _dump_rules(schema: Schema) -> list[Any] | None:
    """Return the rules of ``dumper`` for each field of the schema, or None if marshmallow must dump."""
    if not schema.dump_fields.keys() <= set(Plant._fields) or not _are_plain(schema, schema.dump_fields):
        return None
    rules = []
    for name, field in schema.dump_fields.items():
        kind = _TYPES[type(field)]
        rules.append((Plant._fields.index(name), f"{json.dumps(name)}: ", kind, _ENCODERS[kind]))
    return rules


def _check(validator: Any) -> Callable[[Any], object] | None:
    """Return a function whose result is false for an invalid value, or None for a validator that is not known."""
    if type(validator) is Regexp:
        return validator.regex.match
    least, most = (getattr(validator, name, None) for name in ("min", "max"))
    least, most = -inf if least is None else least, inf if most is None else most
    if type(validator) is Length and validator.equal is None:
        return lambda value: least <= len(value) <= most
    if type(validator) is Range and validator.min_inclusive and validator.max_inclusive:
        return lambda value: least <= value <= most
    return None


def _all(checks: list[Any]) -> Callable[[Any], object]:
    return checks[0] if len(checks) == 1 else lambda value: all(check(value) for check in checks)


def _are_plain(schema: Schema, members: Mapping[str, Any]) -> bool:
    classes = [cls for cls in type(schema).__mro__ if cls not in Schema.__mro__]
    return (
        all(vars(cls).keys() <= _CLASS_NAMES for cls in classes)
        and _has_defaults(schema, _PLAIN_SCHEMA, _SCHEMA_NAMES)
        and all(type(field) in _TYPES for field in members.values())
        and all(_has_defaults(field, type(field)(), _FIELD_NAMES) for field in members.values())
    )


def _has_defaults(declared: object, plain: object, known: set[str]) -> bool:
    defaults = vars(plain)
    options = [(name, value) for name, value in vars(declared).items() if name not in known]
    # The type first, because marshmallow's OrderedSet raises if it is compared with None.
    return all(
        name in defaults and type(value) is type(defaults[name]) and value == defaults[name] for name, value in options
    )
