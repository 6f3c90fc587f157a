"""The paths around the interface in a hosted service."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from plants.hosting.logs import current_request
from plants.hosting.page import PAGE
from plants.probes import WithoutToken, probes
from plants.stores import PlantStore

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication


class Hosted(WithoutToken):
    """A WSGI application that answers the paths around the interface, and passes all other requests to ``app``."""

    def __init__(self, app: "WSGIApplication", store: PlantStore) -> None:
        super().__init__(app, probes(store) | PAGE)

    def __call__(self, environ: dict[str, Any], start_response: "StartResponse") -> Iterable[bytes]:
        """Answer a request (PEP 3333); what is logged meanwhile has its id."""
        token = current_request.set(environ.get("plants.request_id", ""))
        try:
            return super().__call__(environ, start_response)
        finally:
            current_request.reset(token)
