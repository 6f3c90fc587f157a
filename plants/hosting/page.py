"""``/docs``: the interface description as a page to read and to try, in three files, without third-party scripts."""

from importlib.resources import files
from typing import Final

from plants.probes import Constant

# The page runs its own script, shows its own style, asks this service alone, and cannot be framed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def _file(name: str, content_type: str) -> Constant:
    content = files("plants.hosting").joinpath(name).read_bytes()
    return Constant(content, {"Content-Type": content_type, "Content-Security-Policy": _POLICY})


# The files by their paths. One names another relative to itself, so that a proxy may add a prefix.
PAGE: Final[dict[str, object]] = {
    "/docs": _file("page.html", "text/html; charset=utf-8"),
    "/docs/page.css": _file("page.css", "text/css; charset=utf-8"),
    "/docs/page.js": _file("page.js", "text/javascript; charset=utf-8"),
}
