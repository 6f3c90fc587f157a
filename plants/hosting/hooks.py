"""Gunicorn's server hooks. Importing this module reads the environment."""

import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from plants.hosting.checks import as_workers, check, check_raw_env, start_directory, try_to_bind, url_of
from plants.hosting.settings import SettingsError, is_on_terminal, stop, without_passwords
from plants.stores import StoreUnavailable

# Report bad settings once, in one line, before any fork.
try:
    from plants.hosting.environment import STORE_IS_IN_PROCESS, announce_new_token, settings, store
    from plants.hosting.metrics import at_exit_of_master, listen, listening_sockets
except SettingsError as _error:
    stop(_error)

_STOP_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def on_starting(server: Any) -> None:
    """Set up the log, check the configuration, and set up the metrics and the store."""
    for number in _STOP_SIGNALS:  # Until Gunicorn handles them, they would end the process without its exit handlers.
        signal.signal(number, lambda *_: sys.exit())
    if server.pidfile:
        # If the start fails, Gunicorn leaves this file. After USR2, the file would suggest that the new master runs.
        at_exit_of_master(server.pidfile.unlink)
    on_reload(server)
    cfg = server.cfg
    check(cfg)
    takes_over = "GUNICORN_PID" in os.environ
    if settings.metrics_bind:
        try_to_bind(settings.metrics_bind, reuse_port=takes_over, setting="PLANTS_METRICS_BIND")
    listen(cfg, takes_over=takes_over)
    if not {"GUNICORN_FD", "LISTEN_FDS"} & os.environ.keys():
        try_to_bind(*cfg.address, reuse_port=cfg.reuse_port)
    announce_new_token()
    _protect_signals_from_forks()
    try:
        with as_workers(cfg):  # If this creates the database file, the workers must be able to write to it.
            # After USR2 the store is already in use, so create nothing.
            store.prepare(create=not takes_over)
    except StoreUnavailable as error:
        logging.getLogger("plants").warning("the store cannot be used yet: %s", error)


def when_ready(server: Any) -> None:
    """On a terminal, log where the service listens, where it stores plants, and the URL of its page."""
    if is_on_terminal():
        where = f"{without_passwords(settings.store)}{', until the process ends' * STORE_IS_IN_PROCESS}"
        urls = [url_of(listener.sock.getsockname(), server.cfg) for listener in server.LISTENERS]
        page = "".join([f"; try it at {url}/docs" for url in urls if url.startswith("http")][:1])
        server.log.info("listening on %s; plants are stored in %s%s", " ".join(map(str, server.LISTENERS)), where, page)


def pre_fork(server: Any, worker: Any) -> None:
    """Reserve a slot of the metrics: the lowest that no living worker has."""
    used = {other.metrics_slot for other in server.WORKERS.values()}
    worker.metrics_slot = min({*range(1, len(used) + 2)} - used)


def post_worker_init(_worker: Any) -> None:
    """Start watching the token file now instead of at the first request with a token."""
    settings.tokens.accepts("-")


def _protect_signals_from_forks() -> None:
    """Let a signal end a worker even before the worker has set up its own handlers.

    Python forgets a signal that arrives between ``fork()`` and the child's first instruction, and the handlers of the
    master would swallow a later one. In both cases the master would wait for that worker until ``graceful_timeout``.
    """

    def in_child() -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        unblock()

    unblock = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _STOP_SIGNALS)
    block = partial(signal.pthread_sigmask, signal.SIG_BLOCK, _STOP_SIGNALS)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)


def pre_exec(server: Any) -> None:
    """Pass the generated token to the next master, or exit if Gunicorn cannot start that master (``USR2``).

    Gunicorn calls this in a fork of the master. If an exception ended the fork, Gunicorn would stop the master's
    workers, and remove the master's unix sockets and pid file.
    """
    cwd = server.START_CTX["cwd"] = start_directory(server.cfg)
    try:
        os.chdir(cwd)
        Path(server.START_CTX[0]).stat()
    except OSError as error:
        server.log.error("a new master cannot start: %s", error)
        sys.exit(1)
    if settings.new_token:
        server.cfg.env_orig["PLANTS_TOKENS"] = settings.new_token


def nworkers_changed(server: Any, new_value: int, old_value: int | None) -> None:
    """Reject zero worker processes, or several for a store that they cannot share, however the number was set."""
    if old_value is None:
        check_raw_env(server.cfg)  # Gunicorn logs its configuration next, and the log must not show a token.
    if new_value < 1:
        message = "the service needs a worker process: set WEB_CONCURRENCY or --workers to 1 or more"
    elif new_value > 1 and STORE_IS_IN_PROCESS:
        message = (
            f"PLANTS_STORE=memory: cannot be shared by {new_value} worker processes; "
            "use one (WEB_CONCURRENCY or --workers), or set PLANTS_STORE to a store that can be shared"
        )
    else:
        return
    if old_value is None:
        stop(message)
    server.log.error(message)
    server.num_workers = old_value


def on_reload(server: Any) -> None:
    """Use Gunicorn's log handlers and level for our logger. Runs at the start and after ``HUP``."""
    log = logging.getLogger("plants")
    # Do not replace the user's logging configuration. After HUP, the old handlers are still there, so decide once.
    if vars(log).setdefault("follows_gunicorn", not log.hasHandlers()):
        log.handlers = server.log.error_log.handlers
        log.setLevel(server.log.loglevel)


def child_exit(server: Any, worker: Any) -> None:
    """Warn of plants that were lost with a worker, and remove its gauges from the sum."""
    if STORE_IS_IN_PROCESS and server.LISTENERS:  # There are none while the service stops.
        server.log.warning("all plants in memory were lost with worker %d; their ids are free again", worker.pid)
    if listening_sockets:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(getattr(worker, "metrics_slot", 0) or worker.pid)
