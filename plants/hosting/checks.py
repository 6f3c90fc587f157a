"""Checks before a start, for problems that Gunicorn would report late or with a traceback."""

import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from gunicorn.glogging import Logger, SafeAtoms
from gunicorn.instrument.statsd import Statsd
from gunicorn.pidfile import Pidfile
from gunicorn.util import get_username

from plants.hosting.settings import stop
from plants.server.worker import tls_context


def start_directory(cfg: Any) -> str:
    """Return the working directory before ``--chdir``, to which relative paths refer."""
    directory: str = cfg.settings["chdir"].default
    return directory


def check_raw_env(cfg: Any) -> None:
    """Stop with one line if ``raw_env`` sets a ``PLANTS_`` variable, because Gunicorn applies ``raw_env`` too late."""
    for name in cfg.env:
        if name.startswith("PLANTS_"):
            stop(f"{name} has no effect in --env or raw_env; set it in the environment")


def check(cfg: Any) -> None:
    """Stop with one line if a setting in this configuration is not usable, or would have no effect."""
    if cfg.is_ssl:
        with _or_stop("cannot use the certificate", "one with --certfile and --keyfile"), as_workers(cfg):
            tls_context(cfg)
    for name in () if cfg.is_ssl else ("ssl_context", *cfg.ssl_options):
        if cfg.settings[name].get() != type(cfg.settings[name])().get():
            stop(f"{name} has no effect without a certificate; set --certfile and --keyfile")
    if cfg.loglevel.lower() not in Logger.LOG_LEVELS:
        stop(f"--log-level {cfg.loglevel} is not a level; choose one of {', '.join(Logger.LOG_LEVELS)}")
    with _or_stop("cannot use the access log's format", "one with --access-logformat"):
        _ = cfg.access_log_format % SafeAtoms({})
    if cfg.logconfig_json:
        with _or_stop(f"cannot use {cfg.logconfig_json}", "file with --log-config-json"):
            Path(cfg.logconfig_json).open().close()
    if cfg.statsd_host and not issubclass(cfg.logger_class, Statsd):
        stop("--statsd-host has no effect without --logger-class gunicorn.instrument.statsd.Statsd")
    with _or_stop("cannot make a file for a worker", "folder with --worker-tmp-dir"):
        tempfile.TemporaryFile(dir=cfg.worker_tmp_dir).close()
    if "PLANTS_METRICS_BIND" in os.environ:
        # Importing this reads the environment, which ``plants check`` should not do.
        from plants.hosting.worker import Worker

        if not issubclass(cfg.worker_class, Worker):
            stop("PLANTS_METRICS_BIND needs the packaged worker class, so do not set another one (-k, worker_class)")
    tokens = Path(start_directory(cfg), os.environ.get("PLANTS_TOKENS_FILE", os.devnull))
    master_can_read = os.access(tokens, os.R_OK, effective_ids=True)
    with as_workers(cfg):
        workers_can_read = os.access(tokens, os.R_OK, effective_ids=True)
    if master_can_read and not workers_can_read:
        stop("PLANTS_TOKENS_FILE is not usable: the user of the workers cannot read it (--user, --initgroups)")


def check_pid_file(cfg: Any, *, may_be_in_use: bool = False) -> None:
    """Stop with one line if the pid file cannot be made, or has the id of another process that is running."""
    if not cfg.pidfile:
        return
    with _or_stop(f"cannot make {cfg.pidfile}", "file with --pid"):
        tempfile.TemporaryFile(dir=Path(cfg.pidfile).parent).close()
    if not may_be_in_use and (pid := Pidfile(cfg.pidfile).validate()) not in {None, os.getpid()}:
        stop(f"{cfg.pidfile} has the id of another process, {pid}; choose another file with --pid")


def name_of(address: Any) -> str:
    """Return an address as ``--bind`` spells it."""
    if isinstance(address, tuple):
        host, port = address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"fd://{address}" if isinstance(address, int) else f"unix:{address}"


def url_of(address: Any, cfg: Any) -> str:
    """Return the URL of an address for clients on this machine, or ``name_of(address)`` if there is no URL."""
    if not isinstance(address, tuple):
        return name_of(address)
    host, port, *_ = address
    own_host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # not bound here
    return f"{'https' if cfg.is_ssl else 'http'}://{name_of((own_host, port))}"


def try_to_bind(
    *addresses: Any, may_be_in_use: bool = False, reuse_port: bool = False, setting: str = "--bind HOST:PORT"
) -> None:
    """If the addresses cannot all be bound at the same time, stop and name the setting. Skip file descriptors."""
    with ExitStack() as probes:
        for address in addresses:
            with _or_stop(f"cannot listen on {name_of(address)}", f"address with {setting}"):
                try:
                    _bind(address, probes, reuse_port=reuse_port)
                except OSError as error:
                    if not (may_be_in_use and error.errno == errno.EADDRINUSE):
                        raise


def _bind(address: Any, probes: ExitStack, *, reuse_port: bool) -> None:
    match address:
        case host, port:
            probe = probes.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
            probe.bind((host, port))
            if not reuse_port:  # On a shared port, a listening probe would receive other processes' clients.
                probe.listen()  # Without this, the same address could be bound a second time.
        case str(path):
            if Path(path).exists() and not Path(path).is_socket():
                raise OSError(errno.ENOTSOCK, "not a socket")
            with socket.socket(socket.AF_UNIX) as client:
                client.setblocking(False)
                # Gunicorn would replace a running service's socket. On exit, that service would remove the new socket.
                if client.connect_ex(path) in {0, errno.EAGAIN}:
                    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            tempfile.TemporaryFile(dir=Path(path).parent).close()  # The folder must be writable.


@contextmanager
def as_workers(cfg: Any) -> Iterator[None]:
    """Run the block as the workers' user and group."""
    user, group, groups = os.geteuid(), os.getegid(), os.getgroups()
    if (cfg.uid, cfg.gid) == (user, group):  # A sandbox may forbid even system calls that change nothing.
        yield
        return
    try:
        if cfg.initgroups:
            with suppress(KeyError):  # Gunicorn also skips this for a user without a name.
                os.initgroups(get_username(cfg.uid), cfg.gid)
        os.setegid(cfg.gid)
        os.seteuid(cfg.uid)
    except PermissionError:
        stop("only root can start workers as another user or group (--user, --group)")
    try:
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)
        if cfg.initgroups:
            os.setgroups(groups)


@contextmanager
def _or_stop(problem: str, another: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # any error of the system, of a certificate or of a name look-up
        stop(f"{problem} ({getattr(error, 'strerror', None) or error}); choose another {another}")
