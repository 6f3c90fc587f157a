"""Checks of the start and of a reload (``HUP``) in Gunicorn's master, and of ``plants serve --check-config``.

Each check stops with one line, which names the setting. A reload logs this line, and keeps the old configuration.
"""

import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from plants.hosting import metrics
from plants.hosting.settings import Settings, stop, without_passwords
from plants.server.worker import tls_context
from plants.stores import StoreMissing, StoreUnavailable, StoreUnusable
from plants.tokens import TokenCheck

_log = logging.getLogger("plants")


def check(cfg: Any, settings: Settings) -> None:
    """Stop if the service cannot have these workers, this certificate, or metrics with this class of workers."""
    if problem := problem_of_worker_count(cfg.workers, settings):
        stop(problem)
    if cfg.is_ssl:
        try:
            tls_context(cfg)
        except Exception as error:  # any error of the system, of OpenSSL, or of the user's hook
            stop(f"cannot use certfile={cfg.certfile} and keyfile={cfg.keyfile}: {error}")
    if settings.metrics_bind and not hasattr(cfg.worker_class, "hosted"):
        stop("PLANTS_METRICS_BIND needs the packaged worker class, so do not set another one (-k, worker_class)")
    _check_user(cfg, settings)


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


def _check_user(cfg: Any, settings: Settings) -> None:
    """Stop if the workers run as another user (``--user``), and there is no SQLite file that this user may write.

    The master does not create the file, because the file would belong to the master's user.
    """
    if (cfg.uid, cfg.gid) == (os.geteuid(), os.getegid()) or not settings.store_url.startswith("sqlite:"):
        return
    file = Path(unquote(settings.store_url.removeprefix("sqlite:///")))
    if not (file.exists() and _may_write(file, cfg) and _may_write(file.parent, cfg)):
        stop(f"no file {settings.store_url} exists that --user {cfg.uid} may write; start the service as this user")


def _may_write(path: Path, cfg: Any) -> bool:
    found = path.stat()
    shift = 6 if found.st_uid == cfg.uid else 3 if found.st_gid == cfg.gid else 0
    return bool(found.st_mode >> shift & 0o2)


def listen_for_metrics(address: tuple[str, int]) -> None:
    """Listen on the address of the metrics, or stop."""
    try:
        metrics.listen(address)
    except OSError as error:
        stop(f"PLANTS_METRICS_BIND={name_of(address)} is not usable: {error.strerror}")


def prepare_store(settings: Settings, *, create: bool) -> None:
    """Prepare the store before the workers start; if it cannot be used now, log a warning.

    :param create: False for a check, which stops with one line if a start needs a repair.
    """
    store = settings.store
    try:
        store.prepare(create=create)
    except StoreUnavailable as error:
        problem = " ".join(str(error).split())
        if create:
            _log.warning("the store cannot be used yet: %s", problem)
        elif not isinstance(error, StoreUnusable):
            _log.warning("the store cannot be used now: %s", problem)
        elif not isinstance(error, StoreMissing):  # A start creates what is missing.
            stop(f"the store cannot be used: {problem}")
    except Exception as error:  # A store of somebody else's may raise any error.
        where = f"{type(store).__module__}:{type(store).__qualname__}"
        problem = without_passwords(f"{type(error).__name__}: {error}")
        stop(f"the store {settings.store_url.partition(':')[0]}: ({where}) failed in prepare with {problem}")


def token_check_answer(check: TokenCheck) -> str:
    """Return what a token check of the user's own answers to a made-up token."""
    try:
        answer = repr(check.accepts(secrets.token_urlsafe()))
    except Exception as error:  # Its back end may be down for a moment, so the service starts all the same.
        answer = type(error).__name__
    expected = "" if answer == "False" else ", not False"
    return f"PLANTS_TOKENS_CHECK answered {answer} to a made-up token{expected}"


def reload_or_keep(app: Any, settings: Settings, load: Callable[[], None]) -> None:
    """Reload (``HUP``); if the configuration or its certificate does not load, log that and keep the old one."""
    before = vars(app).copy()
    try:
        load()
        check(app.cfg, settings)
    except (Exception, SystemExit) as error:
        vars(app).update(before)
        reason = "Gunicorn has printed the reason" if str(error) == "1" else str(error).removeprefix("plants: ")
        _log.error("the new configuration cannot be used, so the old one stays: %s", reason)


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
