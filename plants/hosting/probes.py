"""What surrounds the interface in a hosted service."""

from typing import TYPE_CHECKING

from plants.probes import WithoutToken, probes
from plants.stores import PlantStore

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


class Hosted(WithoutToken):
    """A WSGI application that answers the paths around the interface itself, and leaves all else to ``app``.

    ``together`` is the store's, if it has one (see ``SQLiteStore``): a server that has several requests to answer may
    have it call the application for them all.
    """

    def __init__(self, app: "WSGIApplication", store: PlantStore) -> None:
        super().__init__(app, probes(store))
        self.together = getattr(store, "together", None)
