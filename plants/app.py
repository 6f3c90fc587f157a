"""The application."""

from collections.abc import Iterable
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
    :raises TypeError: ``tokens`` is one string.
    :raises ValueError: there is no token, or one that no client could send.
    """
    app = json_app(BearerAuth(tokens if isinstance(tokens, TokenCheck) else Tokens(tokens)))
    app.add_route("/plants", PlantCollection(MemoryStore() if store is None else store, max_body_bytes))
    return app
