"""The application of a hosted service: the API, its probes, and ``/docs``, the interface description as a page."""

import logging
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication

from plants import __version__
from plants.app import PLANTS_PATH, build_app
from plants.auth import BearerAuth
from plants.errors import HEADERS, ErrorCode, error_body
from plants.falcon_defaults import Router
from plants.hosting.settings import Settings
from plants.public_paths import Constant, public_paths, public_resources
from plants.schemas import Limits
from plants.stores.memory import MemoryStore

_log = logging.getLogger(__name__)

# The page loads only its own script and style, sends requests only to this service, and cannot be framed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


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
    resources = public_resources(settings.store) | PAGE
    auth = BearerAuth(*settings.token_checks, public_paths=public_paths(resources))
    limits = Limits._make(getattr(settings, name) for name in Limits._fields)
    api = build_app(settings.store, auth, resources, limits=limits)
    app = require_one_process(api, auth) if isinstance(settings.store, MemoryStore) else api
    return HostedService(settings, auth, redirect_browsers(app), api.router, resources)


def _file(name: str, content_type: str) -> Constant:
    content = files("plants.hosting").joinpath(name).read_bytes().replace(b"PACKAGE_VERSION", __version__.encode())
    return Constant(content, {"Content-Type": content_type, "Content-Security-Policy": _POLICY})


# Links between these files are relative, so that a proxy may add a prefix.
PAGE: Final[dict[str, object]] = {
    "/docs": _file("page.html", "text/html; charset=utf-8"),
    "/docs/page.css": _file("page.css", "text/css; charset=utf-8"),
    "/docs/page.js": _file("page.js", "text/javascript; charset=utf-8"),
}


def require_one_process(app: WSGIApplication, auth: BearerAuth) -> WSGIApplication:
    """Return an application that rejects creates, and is not ready, if the server has several processes."""
    has_logged = False

    def hosted(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        nonlocal has_logged
        path = environ.get("PATH_INFO", "")
        may_pass = not environ.get("wsgi.multiprocess") or path not in (PLANTS_PATH, "/readyz")
        if may_pass or auth.refusal(path, environ.get("HTTP_AUTHORIZATION", "")):
            return app(environ, start_response)
        if not has_logged:
            has_logged = True
            _log.error(
                "memory: cannot be shared by several processes, so plants are rejected; "
                "set PLANTS_STORE to sqlite:///FILE or postgresql://..., or run one process"
            )
        body = error_body(ErrorCode.INTERNAL)
        start_response("500 Internal Server Error", [*HEADERS.items(), ("Content-Length", str(len(body)))])
        return [body] if environ["REQUEST_METHOD"] != "HEAD" else []

    return hosted


def redirect_browsers(app: WSGIApplication) -> WSGIApplication:
    """Return an application that redirects browsers from ``/`` to the page, and passes all else to ``app``."""

    def hosted(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        is_root = environ.get("PATH_INFO") == "/" and environ["REQUEST_METHOD"] in {"GET", "HEAD"}
        # Every browser names text/html. Falcon would take 40 ms and 3 MB to parse a stranger's long field.
        if not is_root or "text/html" not in environ.get("HTTP_ACCEPT", ""):
            return app(environ, start_response)
        body = error_body(30200, "An interactive description is at the Location of this response.")
        start_response("302 Found", [*HEADERS.items(), ("Location", "docs"), ("Content-Length", str(len(body)))])
        return [body] if environ["REQUEST_METHOD"] == "GET" else []

    return hosted
