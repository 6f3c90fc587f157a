"""Wrap the hosted service in middleware that adds a header to errors (in this folder: plants serve wrapped_app:app)."""

from collections.abc import Iterable
from typing import Any

from plants.wsgi import app as service


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Call the service, and add a link for help to each error."""
    # Without the key, the application waits for the commit, so that this middleware sees whether it failed.
    environ.pop("server.pending", None)

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if status[0] in "45":
            headers = [*headers, ("Link", '<https://plants.example.com/help>; rel="help"')]
        return start_response(status, headers, exc_info)

    return service(environ, start)
