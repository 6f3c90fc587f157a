"""Hooks of Gunicorn's master when the hosted service starts. Importing this module reads the environment."""

import atexit
import errno
import logging
import os
import signal
import socket
from typing import Any

from plants.hosting.cli import stop
from plants.hosting.settings import SettingsError
from plants.stores import StoreUnavailable

# Report bad settings once, in one line, before any fork.
try:
    from plants.hosting.metrics import forget_worker, listen
    from plants.hosting.service import IS_IN_PROCESS, announce_new_token, settings, store
except SettingsError as _error:
    stop(_error)


def on_starting(server: Any) -> None:
    """Set up the log, the metrics and the store. Check the addresses now: Gunicorn retries a bad one for 5 seconds."""
    on_reload(server)
    takes_over = "GUNICORN_PID" in os.environ
    if not takes_over:
        try_to_bind(settings.metrics_bind, "PLANTS_METRICS_BIND")
    try:
        listen(server.cfg)
    except OSError as error:
        stop(f"PLANTS_METRICS_BIND is not usable: {error.strerror}")
    inherited = {"GUNICORN_FD", "LISTEN_FDS"} & os.environ.keys()
    if not inherited and not server.cfg.reuse_port:
        for address in server.cfg.address:
            try_to_bind(address, "--bind HOST:PORT")
    announce_new_token()
    user, group = os.geteuid(), os.getegid()
    # Workers that run as another user could not write into a file of this one. A sandbox may forbid these calls.
    changes_user = (server.cfg.uid, server.cfg.gid) != (user, group)
    if changes_user:
        try:
            os.setegid(server.cfg.gid)
            os.seteuid(server.cfg.uid)
        except PermissionError:
            stop("only root can start workers as another user or group (--user, --group)")
    try:
        # After USR2 the store is already in use, and nothing is made.
        store.prepare(make=not takes_over)
    except StoreUnavailable as error:
        logging.getLogger("plants").warning("the store cannot be used yet: %s", error)
    if changes_user:
        os.seteuid(user)
        os.setegid(group)


def when_ready(_server: Any) -> None:
    """Let the master look at the token file every second, as workers do while they are asked.

    A worker that is started later begins with the tokens that the master knows. If those were old and the file were
    not usable now, a token that had been taken out of the file would be valid again.
    """
    # A signal and not a thread: a process that has threads should not fork. A worker does not inherit the timer.
    signal.signal(signal.SIGALRM, lambda *_: settings.tokens.accepts("-"))
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    # At its end Python removes the handler, and then the signal would end the process with another status.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)


def pre_exec(server: Any) -> None:
    """Pass the generated token to the next master."""
    if settings.new_token:
        server.cfg.env_orig["PLANTS_TOKENS"] = settings.new_token


def try_to_bind(address: Any, setting: str, *, may_be_in_use: bool = False) -> None:
    """Stop with one line if nothing can listen at an address; the line names the setting that could change it."""
    try:
        match address:
            case host, port:
                name = f"{host}:{port}"
                with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((host, port))
            case str(path):
                name = f"unix:{path}"
                with socket.socket(socket.AF_UNIX) as client:
                    client.setblocking(False)
                    # Gunicorn would put a new socket in the place of another service's, which removes it at its end.
                    if client.connect_ex(path) in {0, errno.EAGAIN}:
                        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    except (OSError, OverflowError) as error:
        if not (may_be_in_use and getattr(error, "errno", None) == errno.EADDRINUSE):
            reason = getattr(error, "strerror", None) or error
            stop(f"cannot listen at {name} ({reason}); choose another address with {setting}")


def nworkers_changed(server: Any, new_value: int, old_value: int | None) -> None:
    """Keep the dictionary store to one worker process, however the number was set."""
    if new_value > 1 and IS_IN_PROCESS:
        message = (
            f"PLANTS_STORE=memory: cannot be shared by {new_value} worker processes; "
            "use one (WEB_CONCURRENCY or --workers), or set PLANTS_STORE to a store that can be shared"
        )
        if old_value is None:
            stop(message)
        server.log.error(message)
        server.num_workers = old_value


def on_reload(server: Any) -> None:
    """Let the service log where, and from which level on, Gunicorn does now: at the start, and after ``HUP``."""
    handlers = server.log.error_log.handlers
    log = logging.getLogger("plants")
    if log.handlers is handlers or not log.hasHandlers():  # A logging configuration that names it is left alone.
        log.handlers = handlers
        log.setLevel(server.log.loglevel)


def child_exit(_server: Any, worker: Any) -> None:
    """Remove the gauges of a worker that has ended."""
    forget_worker(worker.pid)
