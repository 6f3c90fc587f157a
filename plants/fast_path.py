"""Load and dump valid plants in an eighth of marshmallow's time. mypyc can compile this module."""

import re
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from plants.stores import INT64_MAX, INT64_MIN, Plant

# PostgreSQL cannot store U+0000, and UTF-8 cannot encode a lone surrogate.
STORABLE_TEXT: Final = re.compile("[\x01-\ud7ff\ue000-\U0010ffff]*+\\Z")
_is_storable: Final[Any] = STORABLE_TEXT.match


def load_valid(document: Any) -> Plant | None:
    """Return the plant in a NewPlant document, or None if it is not valid; marshmallow then says why."""
    if type(document) is not dict:
        return None
    plant_id = document.get("id")
    name = document.get("name")
    tag = document.get("tag")
    if type(plant_id) is not int or not INT64_MIN <= plant_id <= INT64_MAX:
        return None
    if type(name) is not str or not _is_storable(name):
        return None
    if ("tag" in document) and (type(tag) is not str or not _is_storable(tag)):
        return None
    return Plant(plant_id, name, tag)


def dump(plant: Plant) -> bytes:
    """Return a plant as the JSON of a response."""
    text = '{"name": ' + encode_basestring_ascii(plant.name)
    if plant.tag is not None:
        text += ', "tag": ' + encode_basestring_ascii(plant.tag)
    return (text + "}").encode()
