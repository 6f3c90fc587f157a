"""The plant store under /store of another Falcon application: gunicorn -c /dev/null examples.falcon_app:app."""

from typing import Any

import falcon

import plants


class Garden:
    """The host's own page."""

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        """Answer with it."""
        resp.text = "garden"


host = falcon.App()
host.add_route("/", Garden())
store = plants.create_app(tokens=["secret"])


def app(environ: dict[str, Any], start_response: Any) -> Any:
    """Give the store what is below /store, and the host the rest."""
    if environ["PATH_INFO"].startswith("/store/"):
        environ["SCRIPT_NAME"] += "/store"
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix("/store")
        return store(environ, start_response)
    return host(environ, start_response)
