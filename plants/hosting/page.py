"""``/docs``: the interface description as a page to read and to try, in three files, without third-party scripts."""

from importlib.resources import files

import falcon

# The page runs its own script, shows its own style, asks this service alone, and cannot be framed.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageFile:
    """One file of the page."""

    def __init__(self, name: str, content_type: str) -> None:
        self._content = files("plants.hosting").joinpath(name).read_bytes()
        self._content_type = content_type

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with the file."""
        resp.data = self._content
        resp.content_type = self._content_type
        resp.set_header("Content-Security-Policy", _POLICY)

    on_head = on_get


def page() -> dict[str, PageFile]:
    """Give the page's files by their paths; one names another relative to itself, so that a proxy may add a prefix."""
    return {
        "/docs": PageFile("page.html", "text/html; charset=utf-8"),
        "/docs/page.css": PageFile("page.css", "text/css; charset=utf-8"),
        "/docs/page.js": PageFile("page.js", "text/javascript; charset=utf-8"),
    }
