"""The hosted service's application, ``app``, built from the environment."""

from typing import Final

from plants.app import create_app
from plants.hosting.page import PAGE
from plants.hosting.service import announce_new_token, settings, store
from plants.probes import WithoutToken, probes

announce_new_token()
app: Final = WithoutToken(
    create_app(store, tokens=settings.tokens, max_body_bytes=settings.max_body_bytes), probes(store) | PAGE
)
