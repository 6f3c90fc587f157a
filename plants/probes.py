"""The paths around the interface. They need no token, and show nothing of the store."""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication

import falcon

from plants.errors import ErrorCode, http_error
from plants.framework import json_app
from plants.stores import PlantStore


class Readiness:
    """``/readyz``: requests can be sent here now."""

    def __init__(self, store: PlantStore) -> None:
        self._store = store

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer 200, or 503 if an ``add`` would fail now or the server says that it is stopping."""
        if req.env.get("server.stopping"):
            raise http_error(ErrorCode.UNAVAILABLE, "The service is stopping.")
        self._store.check()
        resp.text = '{"status": "ready"}'

    on_head = on_get


class Constant:
    """An answer that is always the same."""

    def __init__(self, content: bytes, headers: dict[str, str] | None = None) -> None:
        self._content = content
        self._headers = headers or {}

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Answer 200."""
        resp.data = self._content
        resp.set_headers(self._headers)

    on_head = on_get


def probes(store: PlantStore) -> dict[str, object]:
    """Give the resources that every service has, by their paths."""
    return {
        # It never asks the store, so an outage of the store restarts no process.
        "/livez": Constant(b'{"status": "live"}'),
        "/readyz": Readiness(store),
        "/openapi.json": Constant(files("plants").joinpath("openapi.json").read_bytes()),
    }


class WithoutToken:
    """A WSGI application that answers the paths of some resources, and passes all other requests to ``app``."""

    def __init__(self, app: WSGIApplication, resources: Mapping[str, object]) -> None:
        self._app = app
        self._resources = json_app()
        for path, resource in resources.items():
            self._resources.add_route(path, resource)
        self._paths = frozenset(resources)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request (PEP 3333)."""
        app = self._resources if environ.get("PATH_INFO") in self._paths else self._app
        return app(environ, start_response)
