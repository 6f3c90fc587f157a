"""Gunicorn's configuration of the hosted service: settings, which an option overrides, and hooks.

Loading it makes the service from the environment, once; after ``HUP``, it is still the same service.
"""

import logging
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import plants
from plants.app import PLANTS_PATH
from plants.hosting import logs, metrics, startup, worker
from plants.hosting.settings import (
    GUNICORN_SETTINGS,
    SettingsError,
    announce_token,
    generate_token,
    is_on_terminal,
    stop,
)
from plants.server import implementation
from plants.stores import StoreMissing, StoreUnavailable, StoreUnusable

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
    cfg = server.cfg
    if server.pidfile:
        # If the start fails, Gunicorn leaves this file. After USR2, the file would suggest that the new master runs.
        metrics.at_exit_of_master(server.pidfile.unlink)
    on_reload(server)
    server.app.reload = partial(startup.reload_or_keep, server.app, settings, server.app.reload)
    startup.check(cfg, settings)
    takes_over = "GUNICORN_PID" in os.environ
    if settings.metrics_bind:
        startup.check_addresses(settings.metrics_bind, reuse_port=takes_over, setting="PLANTS_METRICS_BIND")
        metrics.listen(settings.metrics_bind, takes_over=takes_over)
    if not {"GUNICORN_FD", "LISTEN_FDS"} & os.environ.keys():
        startup.check_addresses(*cfg.address, reuse_port=cfg.reuse_port)
    announce_token(new_token)
    try:
        with startup.as_workers(cfg):  # If this creates the database file, the workers must be able to write to it.
            # After USR2 the store is already in use, so create nothing.
            settings.store.prepare(create=not takes_over)
    except StoreUnavailable as error:
        logging.getLogger("plants").warning("the store cannot be used yet: %s", error)


def when_ready(server: Any) -> None:
    """Log in one line what started."""
    listeners = [listener.sock.getsockname() for listener in server.LISTENERS] or server.cfg.address
    urls = [startup.url_of(address, server.cfg) for address in listeners]
    names = " ".join(map(startup.name_of, listeners))
    lifetime = ", until the process ends" * _is_in_memory() + ", which is new" * settings.store.is_new
    facts = [f"plants {plants.__version__} ({implementation()}) listens on {names}"]
    facts.append(f"plants are stored in {settings.shown_store}{lifetime}")
    if settings.metrics_bind:
        facts.append(f"metrics: {startup.url_of(settings.metrics_bind, server.cfg)}/metrics")
    facts += [f"try it at {url}/docs" for url in urls if url.startswith("http")][:1]
    server.log.info("%s", "; ".join(facts))
    if _is_in_memory() and _is_deployed():
        server.log.warning("all plants will be lost when this process ends; set PLANTS_STORE to keep them")


def _is_in_memory() -> bool:
    return not settings.store.multiprocess


def _is_deployed() -> bool:
    """Return whether this runs in a container, or under systemd (without a terminal)."""
    container = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    names = {"container", "KUBERNETES_SERVICE_HOST", "INVOCATION_ID"}
    return not is_on_terminal() and (container or bool(names & os.environ.keys()))


def post_worker_init(_worker: Any) -> None:
    """Start watching the token file now instead of at the first request with a token."""
    service.auth.refusal(PLANTS_PATH, "Bearer -")


def pre_exec(server: Any) -> None:
    """Pass the generated token to the next master (``USR2``), whose environment is this master's first one."""
    if new_token:
        server.cfg.env_orig["PLANTS_TOKENS"] = new_token


def nworkers_changed(server: Any, new_value: int, old_value: int | None) -> None:
    """Reject zero worker processes, or several for a store that they cannot share, however the number was set."""
    problem = startup.problem_of_worker_count(new_value, settings)
    if old_value is None:
        startup.check_raw_env(server.cfg)  # Gunicorn logs its configuration next, and the log must not show a token.
        if problem:
            stop(problem)
    elif problem:
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
    if _is_in_memory() and server.LISTENERS:  # There are none while the service stops.
        server.log.warning("all plants in memory were lost with worker %d; their ids are free again", ended.pid)
    if metrics.listening_sockets:
        metrics.reset_gauges(ended.metrics_slot)


def check_start(cfg: Any) -> None:
    """Stop with one line if a start with this configuration would fail, even if such a service is running."""
    startup.check(cfg, settings)
    startup.check_addresses(*cfg.address, may_be_in_use=True, reuse_port=cfg.reuse_port)
    startup.check_addresses(settings.metrics_bind, may_be_in_use=True, setting="PLANTS_METRICS_BIND")
    startup.check_pid_file(cfg, may_be_in_use=True)
    try:
        with suppress(StoreMissing), startup.as_workers(cfg):  # A start creates what is missing.
            settings.store.prepare(create=False)
    except StoreUnusable as error:
        stop(f"the store cannot be used: {error}")
    except StoreUnavailable as error:
        problem, *_ = str(error).splitlines()  # PostgreSQL's driver adds advice.
        logging.getLogger("plants").warning("the store cannot be used now: %s", problem)
