"""Load documents and dump plants by a plan, which has what is needed of each field. mypyc can compile this module."""

from collections.abc import Callable
from typing import Any

# For each field: its name, the type of its valid values, whether it is required, functions that return whether a value
# is valid, and functions that raise a ValidationError if it is not.
LoadPlan = list[tuple[str, type, bool, list[Callable[[Any], Any]], list[Callable[[Any], Any]]]]
# For each field: its name, its name as JSON with a colon, the type of its valid values, and what encodes one as JSON.
DumpPlan = list[tuple[str, str, type, Callable[[Any], str]]]


def load_by_plan(plan: LoadPlan, document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the members that the plan has, or None if one is missing or invalid.

    :raises marshmallow.ValidationError: one of the functions that raise it rejected a member.
    """
    loaded = {}
    for name, kind, required, predicates, validators in plan:
        if name in document:
            value = loaded[name] = document[name]
            if type(value) is not kind:
                return None
            for is_valid in predicates:
                if not is_valid(value):
                    return None
            for validate in validators:
                validate(value)
        elif required:
            return None
    return loaded


def dumps_by_plan(plan: DumpPlan, obj: object) -> str | None:
    """Return the attributes that the plan has, without those that are None, as JSON; or None if one is invalid."""
    members = []
    for name, start, kind, encode in plan:
        value = getattr(obj, name, None)
        if type(value) is kind:
            members.append(start + encode(value))
        elif value is not None:
            return None
    return "{" + ", ".join(members) + "}"
