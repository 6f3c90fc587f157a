"""The configuration of Gunicorn's master for the hosted service: settings, which an option overrides, and hooks.

Its first import makes the service from the environment. ``HUP`` does not import it again, so the service stays.
"""

import gc
import logging
import os
import re
import socket
from collections.abc import Callable
from functools import partial
from logging.handlers import SysLogHandler
from pathlib import Path
from typing import Any

from gunicorn.glogging import loggers

import plants
from plants.hosting.logs import Logger, output_to
from plants.hosting.metrics import Metrics
from plants.hosting.settings import SettingsError, exit_with
from plants.hosting.worker import Worker
from plants.server import implementation
from plants.server.loop import allow_descriptors
from plants.server.worker import tls_context
from plants.stores import StoreUnavailable, StoreUnusable

try:  # Report a bad setting in one line, before any fork.
    from plants.wsgi import app, settings
except SettingsError as error:
    exit_with(error)

# What was imported lives as long as the service. If the collector visited it, each process would end 0.1 s later.
gc.freeze()

Worker.settings = settings
Worker.hosted_app = app
Logger.log_format = settings.log_format

wsgi_app = "plants.wsgi:app"
worker_class = "plants.hosting.worker.Worker"
logger_class = "plants.hosting.logs.Logger"
threads = settings.store.worker_threads or 4  # The latter is for an application that wraps the service.
accesslog = "-"
access_log_format = "%(t)s %(m)s %(U)s %(s)s %(B)s %(L)s"  # of other workers; without the query, which may be secret
keepalive = 650  # Load balancers keep idle connections for up to 600 s. A full worker closes idle ones first.
control_socket_disable = True
# The root of a container may be read-only and without /tmp.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # Gunicorn makes a new file
if "PORT" in os.environ and socket.has_dualstack_ipv6():
    bind = f"[::]:{os.environ['PORT']}"

_FOLDER = Path.cwd()  # Gunicorn changes it after the settings have been parsed.


def on_starting(server: Any) -> None:
    """Set up the log, check the configuration, and set up the metrics and the store, which may be unusable yet."""
    log = logging.getLogger("plants")
    if not log.hasHandlers():  # Do not replace the user's logging configuration.
        log.parent = server.log.error_log  # whose handlers and level HUP may change
    check(server.cfg)
    # Gunicorn would try for 5 s, with two lines each time. systemd, or the master before USR2, may have bound sockets.
    may_share = {"LISTEN_FDS", "GUNICORN_FD"} & os.environ.keys() or server.cfg.reuse_port
    for host, port in [each for each in server.cfg.address if isinstance(each, tuple) and not may_share]:
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as attempt:
                attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                attempt.bind((host, port))  # It does not listen, so no client can connect to it.
        except (OSError, OverflowError) as error:
            exit_with(f"cannot listen on {host}:{port}, so set another address (--bind or PORT): {error}")
    server.app.reload = partial(_reload_or_keep, server.app, server.app.reload)
    if settings.metrics_bind:
        try:
            Worker.metrics = Metrics(settings.metrics_bind)
        except (OSError, OverflowError) as error:  # The port may be above 65535.
            exit_with(f"PLANTS_METRICS_BIND is not usable: {error}")
    try:
        settings.store.prepare()
    except StoreUnusable as error:
        exit_with(f"PLANTS_STORE is not usable: {error}")
    except StoreUnavailable as error:
        log.warning("the store cannot be used yet: %s", " ".join(str(error).split()))
    except Exception as error:  # A store of somebody else's may raise any error, whose message may have a password.
        exit_with(f"the store {settings.shown_store} failed in prepare with {type(error).__name__}")


def when_ready(server: Any) -> None:
    """Log in one line what started."""
    addresses = [str(listener) for listener in server.LISTENERS] or server.cfg.bind
    facts = [
        f"plants {plants.__version__} ({implementation()}) listens on {' '.join(addresses)}",
        f"the store is {settings.shown_store}",
        *[f"try it at {address}/docs" for address in addresses if address.startswith("http")][:1],
    ]
    server.log.info("%s", "; ".join(facts))
    if settings.in_memory:
        server.log.warning("all plants will be lost when this process ends; set PLANTS_STORE to keep them")


def nworkers_changed(server: Any, new_value: int, old_value: int | None) -> None:
    """Reject zero worker processes, or several for a store that they cannot share, however the number was set."""
    if new_value == 1 or (new_value > 1 and settings.store.multiprocess):
        return
    problem = (
        f"PLANTS_STORE={settings.shown_store} cannot be shared by {new_value} worker processes; "
        "use one (WEB_CONCURRENCY or --workers), or set PLANTS_STORE to a store that can be shared"
    )
    if old_value is None:
        exit_with(problem)
    server.log.error(problem)
    server.num_workers = old_value


def child_exit(server: Any, ended: Any) -> None:
    """Warn of plants that were lost with a worker, and remove its gauges from the sum."""
    if settings.in_memory and server.LISTENERS:  # There are none while the service stops.
        server.log.warning("all plants in memory were lost with worker %d; their ids are free again", ended.pid)
    if Worker.metrics:
        Worker.metrics.remove_worker(ended.metrics_row)


def check(cfg: Any) -> None:
    """Stop with one line if the service cannot run with this configuration."""
    nworkers_changed(None, cfg.workers, None)
    try:
        allow_descriptors(cfg.worker_connections)
    except ValueError as error:
        exit_with(error)
    for name, pattern in (("PLANTS_STORE", "sqlite:///[^/]"), ("PLANTS_TOKENS_FILE", "[^/]")):
        if Path.cwd() != _FOLDER and re.match(pattern, os.environ.get(name, "")):
            exit_with(f"{name} has a relative path, for which chdir comes too late; set an absolute path")
    for name in cfg.env:
        if name.startswith("PLANTS_"):
            exit_with(f"{name} in raw_env or --env comes too late; set it in the environment")
    # A log configuration may have such a handler, too.
    handlers = [handler for log in (logging.root, *loggers()) for handler in log.handlers]
    if cfg.syslog or any(isinstance(handler, SysLogHandler) for handler in handlers):
        exit_with("syslog is not supported, because it could block the service; pipe the service's output to logger(1)")
    if cfg.is_ssl:
        try:
            tls_context(cfg)
        except Exception as error:  # any error of the system, of OpenSSL, or of the user's hook
            exit_with(f"cannot use certfile={cfg.certfile} and keyfile={cfg.keyfile}: {error}")
    if settings.metrics_bind and not hasattr(cfg.worker_class, "hosted_app"):
        exit_with("PLANTS_METRICS_BIND needs the packaged worker class, so do not set another one (-k, worker_class)")


def _reload_or_keep(app: Any, load: Callable[[], None]) -> None:
    """Reload (``HUP``); if the configuration or its certificate does not load, log that and keep the old one."""
    before = vars(app).copy()
    try:
        load()
        check(app.cfg)
        for path in (app.cfg.errorlog, app.cfg.accesslog):
            output_to(path, None)  # A worker inherits it, and starts even if it could not open the file.
    except (Exception, SystemExit) as error:
        vars(app).update(before)
        reason = "Gunicorn has printed the reason" if str(error) == "1" else str(error).removeprefix("plants: ")
        logging.getLogger("plants").error("the new configuration cannot be used, so the old one stays: %s", reason)
