"""The application: one operation, ``POST /plants``, behind a bearer token."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from wsgiref.types import WSGIApplication

import falcon

from plants import MAX_BODY_BYTES
from plants.auth import BearerAuth
from plants.errors import error_response
from plants.falcon_defaults import App
from plants.fast_path import dumper, loader
from plants.json_body import read_json
from plants.schemas import NewPlantSchema, PlantSchema
from plants.stores import Plant, PlantStore
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

    A resource declares what a server must know before it calls the application, see ``Route``: ``public`` and
    ``blocks``.

    :param checks: a token is valid if any of these accepts it.
    """

    def __init__(
        self, store: PlantStore, checks: Iterable[TokenCheck], resources: Mapping[str, object], max_body_bytes: int
    ) -> None:
        routes = {template: make(store, max_body_bytes) for template, make in OPERATIONS.items()} | dict(resources)
        super().__init__()
        self.auth = BearerAuth(*checks, router=self.router)
        self.add_middleware(self.auth)
        for template, resource in routes.items():
            self.add_route(template, resource)


class PlantCollection:
    """``/plants``: the plants of one store."""

    def __init__(self, store: PlantStore, max_body_bytes: int) -> None:
        self._store = store
        self._max_body_bytes = max_body_bytes
        self._load = loader(NewPlantSchema())
        self._dump = dumper(PlantSchema())

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Add the plant in the body, and respond with it."""
        plant = self._load(read_json(req, self._max_body_bytes))
        resp.data = self._dump(plant)
        begin(self._store, plant, req.env)


def begin(store: PlantStore, plant: Plant | None, environ: dict[str, Any]) -> None:
    """Add a plant, or check the store (None); leave it to the server to wait for the outcome, if it can."""
    if "server.pending" not in environ:
        PlantStore.begin(store, plant)
        return
    # Look it up on the type, because a proxy object would pass it on to its store, past an ``add`` of its own.
    wait = getattr(type(store), "begin", PlantStore.begin)(store, plant)
    if wait:
        environ["server.pending"].append((wait, error_response))


#: The operations of the interface: the class of each resource by URI template. The metrics have a label for each.
OPERATIONS: Final[dict[str, Callable[[PlantStore, int], object]]] = {PLANTS_PATH: PlantCollection}
