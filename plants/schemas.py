"""The schemas of the interface: Plant, NewPlant and Error."""

import json
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any, NoReturn

from marshmallow import EXCLUDE, Schema, ValidationError, fields
from marshmallow.validate import Length, Range, Regexp

from plants.plans import dumps_by_plan, load_by_plan
from plants.stores import INT64_MAX, INT64_MIN, Plant

_NOT_TEXT = "Must be a string without U+0000 and without lone surrogates."
_NOT_INT64 = f"Must be an integer from {INT64_MIN} to {INT64_MAX}."
# PostgreSQL cannot store U+0000, and UTF-8 cannot encode a lone surrogate.
_STORABLE = Regexp("[\x01-\ud7ff\ue000-\U0010ffff]*+\\Z", error=_NOT_TEXT)
_TEXT: Any = {"validate": _STORABLE, "error_messages": {"invalid": _NOT_TEXT}}
_INT64: Any = {"validate": Range(INT64_MIN, INT64_MAX, error=_NOT_INT64), "error_messages": {"invalid": _NOT_INT64}}

# marshmallow loads and dumps the valid values of these fields unchanged. For each field class: the type of its valid
# values, and the function that encodes one as JSON.
_PLAIN_FIELDS: dict[Any, tuple[type, Callable[[Any], str]]] = {
    fields.String: (str, encode_basestring_ascii),
    fields.Integer: (int, int.__repr__),
}
# These attributes do not prevent the fast path, because it handles them, or they do not affect a str or an int.
_HANDLED_ATTRIBUTES = {"required", "validate", "validators", "strict", "error_messages", "metadata"}
_HANDLED_ATTRIBUTES |= {"name", "parent", "root"}  # set when a field is bound to its schema
# If the fast path fails, marshmallow calls the validators again, so they must be free of side effects.
_PURE_VALIDATORS = {Length, Range, Regexp}
# If a subclass overrides any of these, it does not use the fast path, which skips most of marshmallow's methods.
_OVERRIDABLE = [name for name, value in vars(Schema).items() if callable(value)]


class NotAPlant(ValidationError):
    """The document is not a valid plant; ``messages`` maps each invalid member to its errors."""


class FastSchema(Schema):
    """A schema that loads valid documents and dumps plants itself, in an eighth of the time that marshmallow takes.

    Each schema checks its own declaration. If it has hooks, or a field whose type or options the fast path does not
    handle, marshmallow does everything. So the result is always what marshmallow would return.
    """

    error_messages: dict[str, str] = {"type": "Not a JSON object."}

    class Meta:
        """Options: ignore members that the schema does not declare."""

        # Do not register it, because an embedding application may look up its own PlantSchema by name.
        register = False
        unknown = EXCLUDE

    def _init_fields(self) -> None:
        super()._init_fields()
        # Make plans at the first use, because the constructor of a subclass may change the fields.
        self._plans: Any = None

    def _make_plans(self) -> Any:
        self._plans = ()
        if (
            any(self._hooks.values())
            or self.dict_class is not dict
            or self.opts.render_module is not json
            or type(self).__mro__[-len(FastSchema.__mro__) :] != FastSchema.__mro__  # A mixin may follow FastSchema.
            or any(getattr(type(self), name) is not getattr(FastSchema, name) for name in _OVERRIDABLE)
            or not all("." not in name and _is_plain(field) for name, field in self.fields.items())
        ):
            return self._plans
        load_plan = [
            (name, _PLAIN_FIELDS[type(field)][0], bool(field.required), *_split(field.validators))
            for name, field in self.load_fields.items()
        ]
        dump_plan = [
            (name, f"{json.dumps(name)}: ", *_PLAIN_FIELDS[type(field)]) for name, field in self.dump_fields.items()
        ]
        self._plans = load_plan, dump_plan
        return self._plans

    def load(self, data: Any, **options: Any) -> Any:
        """Validate a document and return the members that the schema declares.

        :raises NotAPlant: a member is missing or invalid.
        """
        plans = self._make_plans() if self._plans is None else self._plans
        if plans and not options and type(data) is dict and not self.many and self.unknown == EXCLUDE:
            try:
                loaded = load_by_plan(plans[0], data)
                if loaded is not None:
                    return loaded
            except ValidationError:
                pass  # marshmallow's load collects the errors of all members.
        try:
            return super().load(data, **options)
        except ValidationError as error:
            if type(error) is not ValidationError:
                raise
            # A subclass has a handle_error that does not raise, so marshmallow raised its own exception.
            raise NotAPlant(error.messages, data=error.data, valid_data=error.valid_data) from None

    def dumps(self, obj: Any, *args: Any, **options: Any) -> Any:
        """Return the members that the plant has, as JSON."""
        plans = self._make_plans() if self._plans is None else self._plans
        if plans and type(obj) is Plant and not (args or options or self.many):
            dumped = dumps_by_plan(plans[1], obj)
            if dumped is not None:
                return dumped
        return super().dumps(obj, *args, **options)

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:
        """Return an attribute; None counts as missing, so that a plant without a tag is dumped without one."""
        value = super().get_attribute(obj, attr, default)
        return default if value is None else value

    def handle_error(self, error: ValidationError, data: Any, **options: Any) -> NoReturn:
        """Raise NotAPlant, so that a ValidationError from a store is not mistaken for an invalid body."""
        raise NotAPlant(error.messages, data=error.data, valid_data=error.valid_data)


def _split(validators: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the ``regex.match`` of each Regexp, and the other validators. ``match`` is twice as fast as a Regexp."""
    patterns = [validate.regex.match for validate in validators if type(validate) is Regexp]
    return patterns, [validate for validate in validators if type(validate) is not Regexp]


def _is_plain(field: Any) -> bool:
    """Return whether the fast path handles the field's type, options and validators."""
    if type(field) not in _PLAIN_FIELDS or not all(type(validate) in _PURE_VALIDATORS for validate in field.validators):
        return False
    defaults = vars(type(field)())
    return all(name in _HANDLED_ATTRIBUTES or value == defaults.get(name) for name, value in vars(field).items())


class PlantSchema(FastSchema):
    """A plant in a response: ``name``, and ``tag`` if the plant has one."""

    name = fields.String(required=True, **_TEXT)
    tag = fields.String(**_TEXT)


class NewPlantSchema(FastSchema):
    """The body of a create request: a plant and its ``id``, an int64."""

    id = fields.Integer(strict=True, required=True, **_INT64)
    name = fields.String(required=True, **_TEXT)
    tag = fields.String(**_TEXT)


class ErrorSchema(Schema):
    """The body of every response that is not a success."""

    class Meta:
        """marshmallow's options."""

        register = False

    error: fields.Integer = fields.Integer(required=True)
    message: fields.String = fields.String(required=True)
