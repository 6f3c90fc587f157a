"""The factory of the hosted service, for any WSGI server: the API, its probes and the page, with their settings."""

import logging
from typing import NamedTuple

import falcon

from plants.app import PlantApp
from plants.errors import ErrorCode, http_error
from plants.hosting.page import PAGE
from plants.hosting.settings import Settings
from plants.probes import public_resources
from plants.stores.health import LoggedStore

_log = logging.getLogger(__name__)


class HostedService(NamedTuple):
    """A service: its application, and the settings from which it was made."""

    settings: Settings
    app: PlantApp


def create_service(settings: Settings) -> HostedService:
    """Return the service that these settings describe. It opens nothing: the store connects at its first use."""
    store = LoggedStore(settings.store) if settings.store.worker_threads else settings.store
    app = PlantApp(store, settings.token_checks, public_resources(store) | PAGE, settings.max_body_bytes)
    if not settings.store.multiprocess:
        app.add_middleware(_OneProcess())
    return HostedService(settings, app)


class _OneProcess:
    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        if req.env["wsgi.multiprocess"]:
            _log.error("the store cannot be shared by several processes: set PLANTS_STORE, or run one process")
            raise http_error(ErrorCode.INTERNAL)
