"""The settings and the store of this process. Importing this module reads the environment."""

import logging
import os
from functools import cache
from typing import Final

from plants.hosting.settings import Settings
from plants.stores import open_store

settings: Final = Settings.from_environ(os.environ)
store: Final = open_store(settings.store)

STORE_IS_IN_PROCESS: Final = not store.multiprocess


@cache
def announce_new_token() -> None:
    """Log the generated token, once."""
    if settings.new_token:
        logging.getLogger("plants").warning(
            "no token is set; a new one is valid until the service stops: %s", settings.new_token
        )
