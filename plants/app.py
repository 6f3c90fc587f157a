"""The application: one operation, ``POST /plants``, behind a bearer token."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from wsgiref.types import WSGIApplication

import falcon

from plants import MAX_BODY_BYTES
from plants.auth import BearerAuth
from plants.falcon_defaults import App, DeferredResponse, json_app, may_defer
from plants.fast_path import dumper, loader
from plants.json_body import read_json
from plants.schemas import Limits, PlantSchema
from plants.stores import GroupCommitStore, PlantStore
from plants.stores.memory import MemoryStore
from plants.tokens import TokenCheck, Tokens

PLANTS_PATH: Final = "/plants"


def create_app(
    store: PlantStore | None = None, *, tokens: Iterable[str] | TokenCheck, max_body_bytes: int = MAX_BODY_BYTES
) -> WSGIApplication:
    """Return a WSGI application (PEP 3333) with one operation, ``POST /plants``.

    :param store: where plants are stored; a new ``MemoryStore`` if None.
    :param tokens: the valid bearer tokens, or an object whose ``accepts(token: str) -> bool`` checks one.
    :param max_body_bytes: the size of the largest request body that is read.
    :raises TypeError, ValueError: ``tokens`` is not usable; the message shows no token.
    """
    store = MemoryStore() if store is None else store
    auth = BearerAuth(tokens if isinstance(tokens, TokenCheck) else Tokens(tokens))
    return build_app(store, auth, limits=Limits(max_body_bytes))


def build_app(
    store: PlantStore,
    auth: BearerAuth,
    resources: Mapping[str, object] | None = None,
    *,
    limits: Limits | None = None,
) -> App:
    """Return an application like that of ``create_app`` that also serves other resources, keyed by URI template.

    :param auth: checks the token; its ``public_paths`` are those of the resources that need none.
    """
    app = json_app(auth)
    operations = {template: make(store, limits or Limits()) for template, make in OPERATIONS.items()}
    for template, resource in (operations | dict(resources or {})).items():
        app.add_route(template, resource)
    return app


class PlantCollection:
    """``/plants``: the plants of one store."""

    def __init__(self, store: PlantStore, limits: Limits) -> None:
        self._store = store
        # submit() would bypass an add() that a subclass overrides or that an instrumentation replaces.
        commits_groups = getattr(store.add, "__func__", None) is GroupCommitStore.add
        self._group_store = store if isinstance(store, GroupCommitStore) and commits_groups else None
        self._max_body_bytes = limits.max_body_bytes
        self._load = loader(limits.new_plant_schema())
        self._dump = dumper(PlantSchema())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Add the plant in the body, and respond with it."""
        plant = self._load(read_json(req, self._max_body_bytes))
        body = self._dump(plant)
        if self._group_store and may_defer(req.env):
            stream: Any = DeferredResponse(self._group_store.submit(plant), body)
            resp.stream = stream
            resp.content_length = len(body)
            return
        added: object = self._store.add(plant)
        if added is not None:  # An asynchronous store returns a coroutine, and has not stored the plant.
            raise TypeError(f"add() of the store returned {type(added).__name__}, not None")
        resp.data = body


#: The operations of the interface: the class of each resource by URI template. The metrics have a label for each.
OPERATIONS: Final[dict[str, Callable[[PlantStore, Limits], object]]] = {PLANTS_PATH: PlantCollection}
