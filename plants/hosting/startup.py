"""Hooks of Gunicorn's master when the hosted service starts. Importing this module reads the environment."""

import errno
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gunicorn.sock import ssl_context

from plants.hosting.cli import stop
from plants.hosting.settings import SettingsError
from plants.stores import StoreUnavailable

# Report bad settings once, in one line, before any fork.
try:
    from plants.hosting.metrics import listen, listeners
    from plants.hosting.service import IS_IN_PROCESS, announce_new_token, settings, store
except SettingsError as _error:
    stop(_error)


def on_starting(server: Any) -> None:
    """Set up the log, the metrics and the store, after a look at what Gunicorn finds late or shows as a traceback."""
    on_reload(server)
    cfg = server.cfg
    check(cfg)
    takes_over = "GUNICORN_PID" in os.environ
    try_to_bind(settings.metrics_bind, may_be_in_use=takes_over, setting="PLANTS_METRICS_BIND")
    listen(cfg, takes_over=takes_over)
    if not {"GUNICORN_FD", "LISTEN_FDS"} & os.environ.keys():
        for address in cfg.address:
            try_to_bind(address, may_be_in_use=cfg.reuse_port)
    announce_new_token()
    _protect_signals_from_forks()
    try:
        with _as_workers(cfg):  # They could not write into a file of another user.
            # After USR2 the store is already in use, and nothing is made.
            store.prepare(make=not takes_over)
    except StoreUnavailable as error:
        logging.getLogger("plants").warning("the store cannot be used yet: %s", error)


def check(cfg: Any) -> None:
    """Stop with one line if no worker could start with this configuration."""
    if cfg.is_ssl:
        with _or_stop("cannot use the certificate", "one with --certfile and --keyfile"):
            ssl_context(cfg)
    with _or_stop("cannot make a file for a worker", "folder with --worker-tmp-dir"):
        tempfile.TemporaryFile(dir=cfg.worker_tmp_dir).close()
    if cfg.pidfile:
        with _or_stop(f"cannot make {cfg.pidfile}", "file with --pid"):
            tempfile.TemporaryFile(dir=Path(cfg.pidfile).parent).close()
    tokens = os.environ.get("PLANTS_TOKENS_FILE", os.devnull)
    master_can_read = os.access(tokens, os.R_OK, effective_ids=True)
    with _as_workers(cfg):
        workers_can_read = os.access(tokens, os.R_OK, effective_ids=True)
    if master_can_read and not workers_can_read:
        stop("PLANTS_TOKENS_FILE is not usable: the user of the workers cannot read it (--user, --group)")


def try_to_bind(address: Any, *, may_be_in_use: bool, setting: str = "--bind HOST:PORT") -> None:
    """Stop with one line if nothing can listen at an address; the line names the setting that could change it."""
    name = "{}:{}".format(*address) if isinstance(address, tuple) else f"unix:{address}"
    with _or_stop(f"cannot listen at {name}", f"address with {setting}"):
        try:
            _bind(address)
        except OSError as error:
            if not (may_be_in_use and error.errno == errno.EADDRINUSE):
                raise


def _bind(address: Any) -> None:
    match address:
        case host, port:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        case str(path):
            Path(path).parent.stat()  # It has to be there.
            if Path(path).exists() and not Path(path).is_socket():
                raise OSError(errno.ENOTSOCK, "not a socket")
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                # Gunicorn would put a new socket in the place of another service's, which removes it at its end.
                if client.connect_ex(path) in {0, errno.EAGAIN}:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@contextmanager
def _as_workers(cfg: Any) -> Iterator[None]:
    """Be the user whom the workers run as. A sandbox may forbid these calls."""
    user, group = os.geteuid(), os.getegid()
    if (cfg.uid, cfg.gid) == (user, group):
        yield
        return
    try:
        os.setegid(cfg.gid)
        os.seteuid(cfg.uid)
    except PermissionError:
        stop("only root can start workers as another user or group (--user, --group)")
    try:
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)


@contextmanager
def _or_stop(problem: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Whatever the system, a certificate or a name raises.
        stop(f"{problem} ({getattr(error, 'strerror', None) or error}); choose another {remedy}")


def post_worker_init(_worker: Any) -> None:
    """Start to watch the token file; without this, the first request would."""
    settings.tokens.accepts("-")


def _protect_signals_from_forks() -> None:
    """Let a signal that reaches a worker before it has set up its own handlers end that worker.

    Python forgets a signal that arrives between ``fork()`` and the child's first instruction, and the handlers of the
    master would swallow a later one. Then the master would wait for that worker until ``graceful_timeout``.
    """
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

    def in_child() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        unblock()

    unblock = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, numbers)
    block = partial(signal.pthread_sigmask, signal.SIG_BLOCK, numbers)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)


def pre_exec(server: Any) -> None:
    """Pass the generated token to the next master."""
    if settings.new_token:
        server.cfg.env_orig["PLANTS_TOKENS"] = settings.new_token


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
    """Take the gauges of a worker that has ended out of the sum."""
    if listeners:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(worker.pid)
