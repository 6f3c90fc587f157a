"""The page ``/docs``, for people who call the service: the interface description, interactive, and a redirect to it."""

from importlib.resources import files
from typing import Final

import falcon

from plants import __version__
from plants.errors import error_response
from plants.probes import Constant

# The page loads only its own script and style, sends requests only to this service, and cannot be framed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def _file(name: str, content_type: str) -> Constant:
    content = files("plants.hosting").joinpath(name).read_bytes().replace(b"PACKAGE_VERSION", __version__.encode())
    return Constant(content, {"Content-Type": content_type, "Content-Security-Policy": _POLICY})


_FOUND = error_response(falcon.HTTPError(302))[2]

# Links between these files are relative, and so is the location of the redirect, so that a proxy may add a prefix.
PAGE: Final[dict[str, object]] = {
    "/": Constant(_FOUND, {"Location": "docs"}, 302),
    "/docs": _file("page.html", "text/html; charset=utf-8"),
    "/docs/page.css": _file("page.css", "text/css; charset=utf-8"),
    "/docs/page.js": _file("page.js", "text/javascript; charset=utf-8"),
}
