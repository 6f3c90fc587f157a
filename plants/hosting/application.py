"""The application of a hosted service: the API, its probes, and ``/docs``, the interface description as a page."""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication

import falcon

from plants import __version__
from plants.app import OPERATIONS, build_app
from plants.auth import BearerAuth
from plants.errors import ErrorCode, http_error, respond
from plants.falcon_defaults import App, Router
from plants.hosting.settings import Settings
from plants.public_paths import Constant, public_paths, public_resources
from plants.schemas import Limits
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
    """A service. Its application and its server check tokens with one ``auth``, and find routes with one ``router``.

    ``resources`` are those beside the interface, by path.
    """

    settings: Settings
    auth: BearerAuth
    app: WSGIApplication
    router: Router
    resources: Mapping[str, object]


def create_service(settings: Settings) -> HostedService:
    """Return the service that these settings describe. It opens nothing: the store connects at its first use."""
    store = settings.store
    if not isinstance(store, MemoryStore | GroupCommitStore):  # The one has no outages, the other logs them.
        store = LoggedStore(store)
    resources = public_resources(store) | PAGE
    auth = BearerAuth(*settings.token_checks, public_paths=public_paths(resources))
    limits = Limits._make(getattr(settings, name) for name in Limits._fields)
    app = build_app(store, auth, resources, limits)
    return HostedService(settings, auth, _hosted(app, settings, auth), app.router, resources)


def _file(name: str, content_type: str) -> Constant:
    content = files("plants.hosting").joinpath(name).read_bytes().replace(b"PACKAGE_VERSION", __version__.encode())
    return Constant(content, {"Content-Type": content_type, "Content-Security-Policy": _POLICY})


# Links between these files are relative, so that a proxy may add a prefix.
PAGE: Final[dict[str, object]] = {
    "/docs": _file("page.html", "text/html; charset=utf-8"),
    "/docs/page.css": _file("page.css", "text/css; charset=utf-8"),
    "/docs/page.js": _file("page.js", "text/javascript; charset=utf-8"),
}


def _hosted(app: App, settings: Settings, auth: BearerAuth) -> WSGIApplication:
    """Return an application that redirects browsers from ``/`` to the page, and passes all else to ``app``.

    If the server has several processes, but the store cannot be shared, it rejects creates and is not ready.
    """
    is_shared = settings.store.multiprocess

    def hosted(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if not is_shared and environ["wsgi.multiprocess"] and _reaches_store(environ, app.router, auth):
            _log_processes(settings.shown_store)
            return respond(http_error(ErrorCode.INTERNAL), environ, start_response)
        if is_redirected(environ):
            return respond(_REDIRECTION, environ, start_response)
        return app(environ, start_response)

    return hosted


def is_redirected(environ: dict[str, Any]) -> bool:
    """Return whether a browser requests ``/``, for which it needs no token."""
    is_root = environ.get("PATH_INFO") == "/" and environ["REQUEST_METHOD"] in {"GET", "HEAD"}
    # Every browser names text/html. Falcon would take 40 ms and 3 MB to parse a stranger's long field.
    return is_root and "text/html" in environ.get("HTTP_ACCEPT", "")


def _reaches_store(environ: dict[str, Any], router: Router, auth: BearerAuth) -> bool:
    path = environ.get("PATH_INFO", "")
    has_store = path == "/readyz" or router.template_of(path) in OPERATIONS
    return has_store and not auth.refusal(path, environ.get("HTTP_AUTHORIZATION", ""))


@cache
def _log_processes(shown_store: str) -> None:
    _log.error("PLANTS_STORE=%s cannot be shared by several processes: set another store, or run one", shown_store)
