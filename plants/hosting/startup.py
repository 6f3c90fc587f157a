"""Checks of a start and of a reload, for problems that Gunicorn would report late or with a traceback.

The hooks of the packaged configuration call these in Gunicorn's master, and ``plants serve --check-config`` calls them
without a start. Each stops with one line, which names the setting. A reload (``HUP``) logs that line, and goes on with
the old configuration.
"""

import errno
import io
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any

from gunicorn.pidfile import Pidfile

from plants.hosting.settings import Settings, stop
from plants.server.worker import tls_context

_log = logging.getLogger("gunicorn.error")


def check(cfg: Any, settings: Settings) -> None:
    """Stop if a setting is not usable, or would have no effect."""
    check_raw_env(cfg)
    if problem := problem_of_worker_count(cfg.workers, settings):
        stop(problem)
    if cfg.is_ssl:
        with _or_stop(f"cannot use {_certificate(cfg)}", "--certfile and --keyfile"):
            tls_context(cfg)
    for name in () if cfg.is_ssl else ("ssl_context", *cfg.ssl_options):
        if cfg.settings[name].get() != type(cfg.settings[name])().get():
            stop(f"{name} has no effect without a certificate; set --certfile and --keyfile")
    with _or_stop("cannot make a file for a worker", "--worker-tmp-dir"):
        tempfile.TemporaryFile(dir=cfg.worker_tmp_dir).close()
    if settings.metrics_bind and not hasattr(cfg.worker_class, "hosted"):
        stop("PLANTS_METRICS_BIND needs the packaged worker class, so do not set another one (-k, worker_class)")
    if settings.metrics_bind in cfg.address:
        stop("PLANTS_METRICS_BIND is an address of the service itself; set another one")


def check_raw_env(cfg: Any) -> None:
    """Stop if ``raw_env`` sets a ``PLANTS_`` variable, because Gunicorn applies ``raw_env`` too late."""
    for name in cfg.env:
        if name.startswith("PLANTS_"):
            stop(f"{name} has no effect in --env or raw_env; set it in the environment")


def problem_of_worker_count(count: int, settings: Settings) -> str:
    """Return why the service cannot have this many worker processes, or an empty string if it can."""
    if count < 1:
        return "the service needs a worker process: set WEB_CONCURRENCY or --workers to 1 or more"
    if count > 1 and not settings.store.multiprocess:
        return (
            f"PLANTS_STORE={settings.shown_store} cannot be shared by {count} worker processes; "
            "use one (WEB_CONCURRENCY or --workers), or set PLANTS_STORE to a store that can be shared"
        )
    return ""


def check_pid_file(cfg: Any, *, may_be_in_use: bool = False) -> None:
    """Stop if the pid file cannot be made, or has the id of another process that is running."""
    if not cfg.pidfile:
        return
    with _or_stop(f"cannot make {cfg.pidfile}", "--pid"):
        tempfile.TemporaryFile(dir=Path(cfg.pidfile).parent).close()
    if not may_be_in_use and (pid := Pidfile(cfg.pidfile).validate()) not in {None, os.getpid()}:
        stop(f"{cfg.pidfile} has the id of another process, {pid}; set another one with --pid")


def reload_or_keep(app: Any, settings: Settings, load: Callable[[], None]) -> None:
    """Reload the configuration of a Gunicorn application (``HUP``); if it is not usable, keep the old one."""
    before = vars(app).copy()
    printed = io.StringIO()  # Gunicorn prints the problem, which belongs in the log.
    try:
        with redirect_stderr(printed):
            load()
        cfg = app.cfg
        _ = cfg.logger_class(cfg)
        check(cfg, settings)
        check_pid_file(cfg)
        # If these change, Gunicorn or its workers bind all addresses again while the old workers still listen.
        if (cfg.address, cfg.reuse_port) != (before["cfg"].address, before["cfg"].reuse_port):
            check_addresses(*cfg.address, reuse_port=cfg.reuse_port)
    except (Exception, SystemExit) as error:
        vars(app).update(before)
        with suppress(Exception):  # A file of the old configuration may have become unusable, too.
            app.cfg.logger_class(app.cfg)  # The new configuration may have changed the log's handlers.
        lines = printed.getvalue().strip().splitlines() or [str(error).removeprefix("plants: ")]
        problem = "; ".join(dict.fromkeys([lines[0], lines[-1]]))
        _log.error("the new configuration cannot be used, so the old one stays: %s", problem)


def name_of(address: Any) -> str:
    """Return an address as ``--bind`` spells it."""
    if isinstance(address, tuple):
        host, port, *_ = address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"fd://{address}" if isinstance(address, int) else f"unix:{address}"


def url_of(address: Any, cfg: Any) -> str:
    """Return the URL of an address for clients on this machine, or ``name_of(address)`` if there is no URL."""
    if not isinstance(address, tuple):
        return name_of(address)
    host, port, *_ = address
    own_host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # not bound here
    return f"{'https' if cfg.is_ssl else 'http'}://{name_of((own_host, port))}"


def check_addresses(
    *addresses: Any, may_be_in_use: bool = False, reuse_port: bool = False, setting: str = "--bind HOST:PORT"
) -> None:
    """Stop and name the setting if these addresses cannot all be bound at the same time; check only those of TCP."""
    with ExitStack() as probes:
        for host, port in [address for address in addresses if isinstance(address, tuple)]:
            with _or_stop(f"cannot listen on {name_of((host, port))}", setting):
                probe = probes.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
                try:
                    probe.bind((host, port))
                    if not reuse_port:  # On a shared port, a listening probe would receive other processes' clients.
                        probe.listen()  # Without this, the same address could be bound a second time.
                except OSError as error:
                    if not (may_be_in_use and error.errno == errno.EADDRINUSE):
                        raise


@contextmanager
def as_workers(cfg: Any) -> Iterator[None]:
    """Run the block as the workers' user and group, without further groups."""
    user, group = os.geteuid(), os.getegid()
    if (cfg.uid, cfg.gid) == (user, group):  # A sandbox may forbid even system calls that change nothing.
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


def _certificate(cfg: Any) -> str:
    if not cfg.certfile:
        return f"the key {cfg.keyfile} without --certfile"
    return f"the certificate {cfg.certfile} {f'and the key {cfg.keyfile}' if cfg.keyfile else 'without --keyfile'}"


@contextmanager
def _or_stop(problem: str, setting: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # any error of the system, of a certificate or of a name look-up
        stop(f"{problem} ({getattr(error, 'strerror', None) or error}); set another one with {setting}")
