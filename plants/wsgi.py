"""The hosted service's application, ``app``, built from the environment."""

from typing import Final

from plants.app import create_app_with_resources
from plants.hosting.environment import announce_new_token, settings, store
from plants.hosting.page import PAGE, redirect_browsers
from plants.probes import probes

announce_new_token()
_resources = probes(store) | PAGE
app: Final = redirect_browsers(
    create_app_with_resources(_resources, store, tokens=settings.tokens, max_body_bytes=settings.max_body_bytes)
)
