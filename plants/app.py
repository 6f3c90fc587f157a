"""The application."""

from collections.abc import Iterable, Mapping
from inspect import iscoroutinefunction
from wsgiref.types import WSGIApplication

from plants.auth import BearerAuth
from plants.framework import json_app
from plants.resources import PlantCollection
from plants.stores import PlantStore
from plants.stores.memory import MemoryStore
from plants.tokens import TokenCheck, Tokens


def create_app(
    store: PlantStore | None = None, *, tokens: Iterable[str] | TokenCheck, max_body_bytes: int = 1_048_576
) -> WSGIApplication:
    """Return a WSGI application (PEP 3333) with one operation, ``POST /plants``.

    :param store: where plants are stored; a new ``MemoryStore`` if None.
    :param tokens: the valid bearer tokens, or an object whose ``accepts(token: str) -> bool`` checks one.
    :param max_body_bytes: the size of the largest request body that is read.
    :raises TypeError, ValueError: an argument is not usable; the message says which, and shows no token.
    """
    store = MemoryStore() if store is None else store
    return create_app_with_resources({}, store, tokens=tokens, max_body_bytes=max_body_bytes)


def create_app_with_resources(
    public_resources: Mapping[str, object],
    store: PlantStore,
    *,
    tokens: Iterable[str] | TokenCheck,
    max_body_bytes: int = 1_048_576,
) -> WSGIApplication:
    """Return an application like that of ``create_app`` that also serves public resources, which need no token."""
    _require("store", store, "PlantStore", "add", "check", "close", "get")
    check = tokens if isinstance(tokens, TokenCheck) else Tokens(tokens)
    _require("tokens", check, "token check", "accepts")
    app = json_app(BearerAuth(check, public_resources.keys()))
    app.add_route("/plants", PlantCollection(store, max_body_bytes))
    for path, resource in public_resources.items():
        app.add_route(path, resource)
    return app


def _require(argument: str, value: object, kind: str, *methods: str) -> None:
    if isinstance(value, type):
        raise TypeError(f"{argument} is the class {value.__name__}, not a {kind} object")
    for name in methods:
        method = getattr(value, name, None)
        if not callable(method) or iscoroutinefunction(method):
            raise TypeError(f"{argument} is not a {kind} object, because it has no synchronous {name}() method")
