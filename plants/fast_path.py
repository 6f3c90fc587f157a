"""Load and dump plants as their schemas declare, at a fraction of marshmallow's cost. mypyc can compile this module.

It is for the two schemas of this package, of whose fields it follows the type, ``required`` and the validators. A test
compares its results with marshmallow's. Invalid documents go through marshmallow.
"""

from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from marshmallow import Schema, ValidationError, fields

from plants.stores import Plant

#: the types of field, each with the type of its values and their encoder
_KINDS: Final[dict[Any, Any]] = {fields.String: (str, encode_basestring_ascii), fields.Integer: (int, int.__repr__)}
_ABSENT: Final = object()


def loader(schema: Schema) -> Callable[[Any], Plant]:
    """Return a function that does what ``Plant(**schema.load(document))`` does.

    :raises KeyError: the schema has a field of an unknown type.
    """
    declared = [(name, schema.fields[name]) for name in Plant._fields]
    rules = [(name, _KINDS[type(field)][0], field.required, field.validators) for name, field in declared]

    def load(document: Any) -> Plant:
        members: list[Any] = []
        try:
            for name, kind, required, validators in rules:
                value = document.get(name, _ABSENT)
                if type(value) is kind:
                    for validate in validators:
                        validate(value)
                    members.append(value)
                elif value is _ABSENT and not required:
                    members.append(None)
                else:
                    break
            else:
                return tuple.__new__(Plant, members)  # Plant._make would count them again.
        except (AttributeError, ValidationError):
            pass  # The document is no object, or a member is not valid. marshmallow raises the errors of all members.
        return Plant(**schema.load(document))

    return load


def dumper(schema: Schema) -> Callable[[Plant], bytes]:
    """Return a function that dumps a plant as a line of JSON, without the members that are None.

    :raises KeyError: the schema has a field of an unknown type.
    """
    declared = schema.fields.items()
    rules = [(Plant._fields.index(name), f'"{name}": ', _KINDS[type(field)][1]) for name, field in declared]

    def dump(plant: Plant) -> bytes:
        members: list[str] = []
        for index, label, encode in rules:
            value = plant[index]
            if value is not None:
                members.append(label + encode(value))
        return f"{{{', '.join(members)}}}\n".encode()

    return dump
