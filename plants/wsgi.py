"""The hosted service's application, ``app``, built from the environment."""

import logging
import os

from plants.app import create_app
from plants.hosting.probes import Hosted
from plants.hosting.settings import Settings
from plants.stores import open_store

settings = Settings.from_environ(os.environ)
if settings.new_token:
    logging.getLogger("plants").warning(
        "no token is set; a new one is valid until the service stops: %s", settings.new_token
    )
store = open_store(settings.store)
app = Hosted(create_app(store, tokens=settings.tokens, max_body_bytes=settings.max_body_bytes), store)
