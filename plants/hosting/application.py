"""The application of a hosted service: the API, its probes, and ``/docs``, the interface description as a page."""

import logging
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication

import falcon

from plants import __version__
from plants.app import PlantApp
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
    limits = Limits._make(getattr(settings, name) for name in Limits._fields)
    api = PlantApp(store, settings.token_checks, public_resources(store) | PAGE, limits)
    return HostedService(settings, api, api if settings.store.multiprocess else _for_one_process(api))


def _for_one_process(api: PlantApp) -> WSGIApplication:
    """Return an application that calls ``api``; if the server has several processes, each response is a 500."""

    def app(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ["wsgi.multiprocess"]:
            _log_processes()
            return respond(http_error(ErrorCode.INTERNAL), environ, start_response)
        return api(environ, start_response)

    return app


@cache
def _log_processes() -> None:
    _log.error("the store cannot be shared by several processes: set PLANTS_STORE, or run one process")


class Redirect:
    """``/``: a redirect to the page."""

    public = True
    blocks = False

    def on_get(self, _req: falcon.Request, _resp: falcon.Response) -> None:
        """Redirect. The location is relative, because a proxy may add a prefix."""
        raise falcon.HTTPError(302, headers={"Location": "docs"})

    on_head = on_get


def _file(name: str, content_type: str) -> Constant:
    content = files("plants.hosting").joinpath(name).read_bytes().replace(b"PACKAGE_VERSION", __version__.encode())
    return Constant(content, {"Content-Type": content_type, "Content-Security-Policy": _POLICY})


# Links between these files are relative, so that a proxy may add a prefix.
PAGE: Final[dict[str, object]] = {
    "/": Redirect(),
    "/docs": _file("page.html", "text/html; charset=utf-8"),
    "/docs/page.css": _file("page.css", "text/css; charset=utf-8"),
    "/docs/page.js": _file("page.js", "text/javascript; charset=utf-8"),
}
