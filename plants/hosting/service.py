"""The settings and the store of this process. Importing this module reads the environment."""

import logging
import os
from functools import cache
from typing import Final

from plants.hosting.settings import Settings
from plants.stores import open_store

settings: Final = Settings.from_environ(os.environ)
store: Final = open_store(settings.store)

_KIND = settings.store.partition(":")[0]
IS_IN_PROCESS: Final = _KIND == "memory"
# A dictionary never waits. With SQLite, one thread answers while the other commits; PostgreSQL commits several batches.
THREADS: Final = {"memory": 1, "sqlite": 2}.get(_KIND, 4)
REQUESTS_A_BATCH: Final = 1 if IS_IN_PROCESS else 256


@cache
def announce_new_token() -> None:
    """Log the generated token, once."""
    if settings.new_token:
        logging.getLogger("plants").warning(
            "no token is set; a new one is valid until the service stops: %s", settings.new_token
        )
