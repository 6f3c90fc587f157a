"""The application: one operation, ``POST /plants``, behind a bearer token."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final
from wsgiref.types import WSGIApplication

import falcon

from plants import MAX_BODY_BYTES
from plants.auth import BearerAuth
from plants.errors import error_response
from plants.falcon_defaults import App
from plants.fast_path import dumper, loader
from plants.json_body import read_json
from plants.schemas import NewPlantSchema, PlantSchema
from plants.stores import PlantStore
from plants.stores.group_commit import GroupCommitStore, group_commit_of
from plants.stores.memory import MemoryStore
from plants.tokens import TokenCheck, Tokens

PLANTS_PATH: Final = "/plants"


def create_app(
    store: PlantStore | None = None, *, tokens: Iterable[str] | TokenCheck, max_body_bytes: int = MAX_BODY_BYTES
) -> WSGIApplication:
    """Return a WSGI application (PEP 3333) with one operation, ``POST /plants``.

    :param store: where plants are stored; a new ``MemoryStore`` if None.
    :param tokens: the valid bearer tokens, or an object whose ``accepts(token: str) -> bool`` checks one.
    :param max_body_bytes: the largest request body, in bytes.
    :raises TypeError, ValueError: a token is not usable, or there is none; the message shows no token.
    """
    store = MemoryStore() if store is None else store
    check = tokens if isinstance(tokens, TokenCheck) else Tokens(tokens)
    return PlantApp(store, [check], {}, max_body_bytes)


class PlantApp(App):
    """An application like that of ``create_app`` that also serves other resources, keyed by URI template.

    A resource declares what a server must know before it calls the application: ``public = True`` if it needs no token
    and reads no body, and ``blocks = False`` if it never waits. The path of such a resource has no parameters.

    :param checks: a token is valid if any of these accepts it.
    """

    def __init__(
        self, store: PlantStore, checks: Iterable[TokenCheck], resources: Mapping[str, object], max_body_bytes: int
    ) -> None:
        routes = {template: make(store, max_body_bytes) for template, make in OPERATIONS.items()} | dict(resources)
        public_paths = frozenset(path for path, resource in routes.items() if getattr(resource, "public", False))
        self.non_blocking_paths = frozenset(path for path, each in routes.items() if not getattr(each, "blocks", True))
        self.auth = BearerAuth(*checks, public_paths=public_paths)
        super().__init__(self.auth)
        for template, resource in routes.items():
            self.add_route(template, resource)


class PlantCollection:
    """``/plants``: the plants of one store."""

    def __init__(self, store: PlantStore, max_body_bytes: int) -> None:
        self._store = store
        self._may_group = isinstance(store, GroupCommitStore)  # A proxy object may only look like one.
        self._max_body_bytes = max_body_bytes
        self._load = loader(NewPlantSchema())
        self._dump = dumper(PlantSchema())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Add the plant in the body, and respond with it."""
        plant = self._load(read_json(req, self._max_body_bytes))
        resp.data = self._dump(plant)
        pending = req.env.get("server.pending")
        store = group_commit_of(self._store) if self._may_group else None
        if store and pending is not None:
            store.raise_if_down()
            pending.append((partial(store.submit, plant), error_response))
            return
        added: object = self._store.add(plant)
        if added is not None:  # An asynchronous store returns a coroutine, and has not stored the plant.
            raise TypeError(f"add() of the store returned {type(added).__name__}, not None")


#: The operations of the interface: the class of each resource by URI template. The metrics have a label for each.
OPERATIONS: Final[dict[str, Callable[[PlantStore, int], object]]] = {PLANTS_PATH: PlantCollection}
