"""The factory of a hosted service's application: the API, its probes and the page, for any WSGI server."""

import logging

import falcon

from plants.app import PlantApp
from plants.errors import ErrorCode, http_error
from plants.hosting.page import PAGE
from plants.hosting.settings import Settings
from plants.probes import public_resources
from plants.stores.health import LoggedStore

_log = logging.getLogger(__name__)


def create_hosted_app(settings: Settings) -> PlantApp:
    """Return the application that these settings describe. It opens nothing: the store connects at its first use."""
    store = LoggedStore(settings.store) if settings.store.worker_threads else settings.store
    app = PlantApp(store, settings.token_checks, public_resources(store) | PAGE, settings.max_body_bytes)
    if not settings.store.multiprocess:
        app.add_middleware(_OneProcess())
    return app


class _OneProcess:
    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        if req.env["wsgi.multiprocess"]:
            _log.error("the store cannot be shared by several processes: set PLANTS_STORE, or run one process")
            raise http_error(ErrorCode.INTERNAL)
