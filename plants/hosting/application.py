"""What is made from the settings: the application of a hosted service, and what the server shares with it."""

from typing import NamedTuple
from wsgiref.types import WSGIApplication

from plants.app import build_app
from plants.auth import BearerAuth
from plants.hosting.page import PAGE, redirect_browsers
from plants.hosting.settings import Settings
from plants.public_paths import public_resources


class HostedService(NamedTuple):
    """A service. The application and the server check tokens with the same ``auth``."""

    settings: Settings
    auth: BearerAuth
    app: WSGIApplication


def create_service(settings: Settings) -> HostedService:
    """Return the service that these settings describe. It opens nothing: the store connects at its first use."""
    resources = public_resources(settings.store) | PAGE
    auth = BearerAuth(*settings.token_checks, public_paths=resources.keys())
    app = build_app(settings.store, auth, resources, max_body_bytes=settings.max_body_bytes)
    return HostedService(settings, auth, redirect_browsers(app))
