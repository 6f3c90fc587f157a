"""The hosted service's application, ``app``, built from the environment."""

from typing import Final

from plants.app import create_app
from plants.hosting.probes import Hosted
from plants.hosting.service import announce_new_token, settings, store

announce_new_token()
app: Final = Hosted(create_app(store, tokens=settings.tokens, max_body_bytes=settings.max_body_bytes), store)
