"""Gunicorn's configuration of the hosted service: settings, which an option overrides, and hooks.

Its first import makes the service from the environment. ``HUP`` does not import it again, so the service stays.
"""

import logging
import os
from functools import partial
from typing import Any

import plants
from plants.hosting import exit_on_signals, logs, metrics, startup, worker
from plants.hosting.settings import (
    GUNICORN_SETTINGS,
    SettingsError,
    announce_token,
    generate_token,
    is_on_terminal,
    stop,
)
from plants.server import implementation

exit_on_signals()

try:  # Report a bad setting in one line, before any fork.
    new_token = generate_token(os.environ)
    from plants.wsgi import service
except SettingsError as error:
    stop(error)

settings = service.settings
globals().update(GUNICORN_SETTINGS)
threads = settings.store.worker_threads


class Logger(logs.Logger):
    """The logger of this service."""

    log_format = settings.log_format


class Worker(worker.Worker):
    """The worker of this service."""

    hosted = service


def on_starting(server: Any) -> None:
    """Set up the log, check the configuration, and set up the metrics and the store."""
    on_reload(server)
    server.app.reload = partial(startup.reload_or_keep, server.app, settings, server.app.reload)
    os.register_at_fork(after_in_parent=worker.unblock_signals)
    startup.check(server.cfg, settings)
    if settings.metrics_bind:
        startup.listen_for_metrics(settings.metrics_bind)
    announce_token(new_token)
    if settings.tokens_check:
        server.log.info("%s", startup.token_check_answer(settings.tokens_check))
    startup.prepare_store(settings, create=True)


def when_ready(server: Any) -> None:
    """Log in one line what started."""
    listeners = [listener.sock.getsockname() for listener in server.LISTENERS] or server.cfg.address
    urls = [startup.url_of(address, server.cfg) for address in listeners]
    names = " ".join(map(startup.name_of, listeners))
    lifetime = ", until the process ends" * settings.in_memory + ", which is new" * settings.store.is_new
    facts = [f"plants {plants.__version__} ({implementation()}) listens on {names}"]
    facts.append(f"plants are stored in {settings.shown_store}{lifetime}")
    if settings.metrics_bind:
        facts.append(f"metrics: {startup.url_of(settings.metrics_bind, server.cfg)}/metrics")
    facts += [f"try it at {url}/docs" for url in urls if url.startswith("http")][:1]
    server.log.info("%s", "; ".join(facts))
    if settings.in_memory and not is_on_terminal():  # On a terminal, somebody tries the service.
        server.log.warning("all plants will be lost when this process ends; set PLANTS_STORE to keep them")


def nworkers_changed(server: Any, new_value: int, old_value: int | None) -> None:
    """Reject zero worker processes, or several for a store that they cannot share, however the number was set."""
    problem = startup.problem_of_worker_count(new_value, settings)
    if problem and old_value is None:
        stop(problem)
    if problem:
        server.log.error(problem)
        server.num_workers = old_value


def on_reload(server: Any) -> None:
    """Use Gunicorn's log handlers and level for our logger. Runs at the start and after ``HUP``."""
    log = logging.getLogger("plants")
    # Do not replace the user's logging configuration. After HUP, the old handlers are still there, so decide once.
    if vars(log).setdefault("follows_gunicorn", not log.hasHandlers()):
        log.handlers = server.log.error_log.handlers
        log.setLevel(server.log.loglevel)


def child_exit(server: Any, ended: Any) -> None:
    """Warn of plants that were lost with a worker, and remove its gauges from the sum."""
    if settings.in_memory and server.LISTENERS:  # There are none while the service stops.
        server.log.warning("all plants in memory were lost with worker %d; their ids are free again", ended.pid)
    if metrics.listening_sockets:
        metrics.reset_gauges(ended.metrics_slot)


def check_start(cfg: Any) -> None:
    """Stop with one line if a start with this configuration would fail. The service may be running."""
    startup.check(cfg, settings)
    if settings.tokens_check:
        logging.getLogger("plants").warning("%s", startup.token_check_answer(settings.tokens_check))
    startup.prepare_store(settings, create=False)
