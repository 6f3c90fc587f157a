"""The application of a hosted service: the API, its probes, and ``/docs``, the interface description as a page."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication

import falcon

from plants import __version__
from plants.app import OPERATIONS, PlantApp
from plants.errors import ErrorCode, http_error, respond
from plants.hosting.settings import Settings
from plants.probes import Constant, public_resources
from plants.stores import GroupCommitStore
from plants.stores.memory import MemoryStore
from plants.stores.outage import LoggedStore

_log = logging.getLogger(__name__)

# The page loads only its own script and style, sends requests only to this service, and cannot be framed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PLACE = "An interactive description is at the Location of this response."
_REDIRECTION = falcon.HTTPError(302, description=_PLACE, headers={"Location": "docs"})


class HostedService(NamedTuple):
    """A service. Its server checks tokens and finds routes as ``api`` does, and calls ``app``, which calls ``api``."""

    settings: Settings
    api: PlantApp
    app: WSGIApplication


def create_service(settings: Settings) -> HostedService:
    """Return the service that these settings describe. It opens nothing: the store connects at its first use."""
    store = settings.store
    if not isinstance(store, MemoryStore | GroupCommitStore):  # The first has no outages, the second logs its own.
        store = LoggedStore(store)
    api = PlantApp(store, settings.token_checks, public_resources(store) | PAGE, settings.max_body_bytes)
    return HostedService(settings, api, _hosted(api, settings))


def _file(name: str, content_type: str) -> Constant:
    content = files("plants.hosting").joinpath(name).read_bytes().replace(b"PACKAGE_VERSION", __version__.encode())
    return Constant(content, {"Content-Type": content_type, "Content-Security-Policy": _POLICY})


# Links between these files are relative, so that a proxy may add a prefix.
PAGE: Final[dict[str, object]] = {
    "/docs": _file("page.html", "text/html; charset=utf-8"),
    "/docs/page.css": _file("page.css", "text/css; charset=utf-8"),
    "/docs/page.js": _file("page.js", "text/javascript; charset=utf-8"),
}


def _hosted(api: PlantApp, settings: Settings) -> WSGIApplication:
    """Return an application that redirects browsers from ``/`` to the page, and passes all else to ``api``.

    If the server has several processes, but the store cannot be shared, it rejects creates and is not ready.
    """
    is_shared = settings.store.multiprocess

    def hosted(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if not is_shared and environ["wsgi.multiprocess"] and _reaches_store(environ, api):
            _log_processes(settings.shown_store)
            return respond(http_error(ErrorCode.INTERNAL), environ, start_response)
        if environ.get("PATH_INFO") == "/" and wants_page(environ):
            return respond(_REDIRECTION, environ, start_response)
        return api(environ, start_response)

    return hosted


def wants_page(environ: dict[str, Any]) -> bool:
    """Return whether this is a browser's request for a page. If its path is ``/``, it needs no token."""
    # Every browser names text/html. Falcon would take 40 ms and 3 MB to parse a stranger's long field.
    return environ["REQUEST_METHOD"] in {"GET", "HEAD"} and "text/html" in (environ.get("HTTP_ACCEPT") or "")


def _reaches_store(environ: dict[str, Any], api: PlantApp) -> bool:
    path = environ.get("PATH_INFO", "")
    has_store = path == "/readyz" or api.router.template_of(path) in OPERATIONS
    with suppress(Exception):  # If a check of the user's own raises an exception, the application responds with 500.
        return has_store and not api.auth.refusal(path, environ.get("HTTP_AUTHORIZATION") or "")
    return False


@cache
def _log_processes(shown_store: str) -> None:
    _log.error("PLANTS_STORE=%s cannot be shared by several processes: set another store, or run one", shown_store)
