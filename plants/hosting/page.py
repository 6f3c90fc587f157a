"""The page ``/docs``, for people who call the service: the interface description, interactive, and a redirect to it."""

from importlib.resources import files
from typing import Final

import falcon

from plants import __version__
from plants.probes import Constant

# The page loads only its own script and style, sends requests only to this service, and cannot be framed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


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
