"""Mount the plant store under /store of a Falcon application (in this folder: gunicorn falcon_app:app)."""

from typing import Any

import falcon

import plants


class Garden:
    """The host's own page."""

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Return the page."""
        resp.text = "garden"


host = falcon.App()
host.add_route("/", Garden())
store = plants.create_app(tokens=["secret"])


def app(environ: dict[str, Any], start_response: Any) -> Any:
    """Pass a request below /store to the plant store, and any other to the host."""
    if environ["PATH_INFO"].startswith("/store/"):
        environ["SCRIPT_NAME"] += "/store"
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix("/store")
        return store(environ, start_response)
    return host(environ, start_response)
