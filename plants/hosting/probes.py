"""What surrounds the interface in a hosted service."""

from typing import TYPE_CHECKING

from plants.hosting.page import page
from plants.probes import WithoutToken, probes
from plants.stores import PlantStore

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


class Hosted(WithoutToken):
    """A WSGI application that answers the paths around the interface itself, and leaves all else to ``app``."""

    def __init__(self, app: "WSGIApplication", store: PlantStore) -> None:
        super().__init__(app, probes(store) | page())
