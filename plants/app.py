"""The application."""

from collections.abc import Iterable
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
    """Give a WSGI application (PEP 3333) whose one operation is ``POST /plants``.

    :param store: where plants are kept; a new ``MemoryStore`` if None.
    :param tokens: the valid bearer tokens, or an object whose ``accepts(token: str) -> bool`` says which are valid.
    :param max_body_bytes: the largest request body that is read.
    :raises TypeError, ValueError: an argument cannot be used; the message says which, and shows no token.
    """
    if store is not None and (not hasattr(store, "add") or iscoroutinefunction(store.add)):
        raise TypeError("store is not a PlantStore, or is asynchronous; plants.open_store(url) gives one for a URL")
    app = json_app(BearerAuth(tokens if isinstance(tokens, TokenCheck) else Tokens(tokens)))
    app.add_route("/plants", PlantCollection(MemoryStore() if store is None else store, max_body_bytes))
    return app
