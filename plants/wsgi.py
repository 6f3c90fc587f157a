"""The hosted service's application, ``app``, built from the environment."""

from typing import Final

from plants.app import build_app
from plants.auth import BearerAuth
from plants.hosting.environment import announce_new_token, settings, store
from plants.hosting.page import PAGE, redirect_browsers
from plants.public_paths import public_resources

announce_new_token()
_resources = public_resources(store) | PAGE
app: Final = redirect_browsers(
    build_app(
        store,
        BearerAuth(settings.tokens, public_paths=_resources.keys()),
        _resources,
        max_body_bytes=settings.max_body_bytes,
    )
)
