"""The factory of the hosted service, for any WSGI server: the API, its probes and the page, with their settings."""

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication

from plants.app import PlantApp
from plants.errors import ErrorCode, http_error, respond
from plants.hosting.page import PAGE
from plants.hosting.settings import Settings
from plants.probes import public_resources
from plants.stores.health import LoggedStore

_log = logging.getLogger(__name__)


class HostedService(NamedTuple):
    """A service. ``app`` is what a server calls; ``api`` is the PlantApp in it, for the token check and the routes."""

    settings: Settings
    api: PlantApp
    app: WSGIApplication


def create_service(settings: Settings) -> HostedService:
    """Return the service that these settings describe. It opens nothing: the store connects at its first use."""
    store = LoggedStore(settings.store) if settings.store.worker_threads else settings.store
    api = PlantApp(store, settings.token_checks, public_resources(store) | PAGE, settings.max_body_bytes)
    return HostedService(settings, api, api if settings.store.multiprocess else _for_one_process(api))


def _for_one_process(api: PlantApp) -> WSGIApplication:
    """Return an application that calls ``api``; if the server has several processes, each response is a 500."""

    def app(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ["wsgi.multiprocess"]:
            _log.error("the store cannot be shared by several processes: set PLANTS_STORE, or run one process")
            return respond(http_error(ErrorCode.INTERNAL), environ, start_response)
        return api(environ, start_response)

    return app
