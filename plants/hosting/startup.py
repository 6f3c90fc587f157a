"""What Gunicorn's master does when the hosted service starts; importing this reads the environment."""

import logging
import os
import socket
from typing import Any, Final, Never

from plants.hosting.settings import Settings, SettingsError
from plants.stores import open_store
from plants.stores.memory import MemoryStore


def _stop(message: str) -> Never:
    raise SystemExit(f"plants: {message}.")


# Whatever is wrong with the settings is said once and in one line, before anything is forked.
try:
    settings: Final = Settings.from_environ(os.environ)
except SettingsError as error:
    _stop(str(error))

_store = open_store(settings.store)
_IS_IN_PROCESS = isinstance(_store, MemoryStore)

# A dictionary never waits. A store that answers many requests together needs a thread for the next ones while it
# commits, and some for what needs no store while it cannot; one that answers them one by one needs one for each.
THREADS: Final = 1 if _IS_IN_PROCESS else 4 if hasattr(_store, "together") else 16


def on_starting(server: Any) -> None:
    """Stop at an address that cannot be listened at, which Gunicorn would try for five seconds; log a new token."""
    inherited = {"GUNICORN_FD", "LISTEN_FDS"} & os.environ.keys()
    if not inherited and not server.cfg.reuse_port:
        for address in server.cfg.address:
            if isinstance(address, tuple):
                _try_to_bind(*address)
    if settings.new_token:
        server.log.warning("no token is set; a new one is valid until the service stops: %s", settings.new_token)


def _try_to_bind(host: str, port: int) -> None:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        _stop(f"cannot listen at {host}:{port} ({error.strerror}); choose another address with --bind HOST:PORT")


def nworkers_changed(server: Any, new_value: int, old_value: int | None) -> None:
    """Keep the dictionary store to one worker process, by whatever means another number was set."""
    if new_value > 1 and _IS_IN_PROCESS:
        message = (
            f"PLANTS_STORE=memory: cannot be shared by {new_value} worker processes; "
            "use one (WEB_CONCURRENCY or --workers), or set PLANTS_STORE to a store that can be shared"
        )
        if old_value is None:
            _stop(message)
        server.log.error(message)
        server.num_workers = old_value


def post_fork(_server: Any, worker: Any) -> None:
    """Let the logs of the service and of its driver go where Gunicorn's goes, unless a configuration says where."""
    for log in map(logging.getLogger, ("plants", "psycopg.pool")):
        if not log.hasHandlers():
            log.handlers = worker.log.error_log.handlers
            log.setLevel(worker.log.loglevel)
