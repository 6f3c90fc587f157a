"""``/docs``: the interface description as a page to read and to try, in three files, without third-party scripts."""

from functools import partial
from typing import Final

from plants.probes import File

# The page runs its own script, shows its own style, asks this service alone, and cannot be framed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_file = partial(File, "plants.hosting", content_security_policy=_POLICY)

# The files by their paths. One names another relative to itself, so that a proxy may add a prefix.
PAGE: Final[dict[str, object]] = {
    "/docs": _file("page.html", content_type="text/html; charset=utf-8"),
    "/docs/page.css": _file("page.css", content_type="text/css; charset=utf-8"),
    "/docs/page.js": _file("page.js", content_type="text/javascript; charset=utf-8"),
}
