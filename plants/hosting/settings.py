"""The settings of a hosted service: its own, from the environment, and what the service sets in Gunicorn."""

import logging
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, MutableMapping
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple, NoReturn, Self, TypeVar
from urllib.parse import unquote

from gunicorn.errors import AppImportError

from plants import MAX_BODY_BYTES
from plants.stores import PlantStore, open_store
from plants.tokens import TokenCheck, TokenFile, Tokens

LAST_PORT: Final = 65535

# The names, each with its default and its meaning.
SETTINGS: Final = {
    "PLANTS_TOKENS": ("", "valid tokens, separated by commas or white space"),
    "PLANTS_TOKENS_FILE": ("", "a file of valid tokens, or of their digests"),
    "PLANTS_TOKENS_CHECK": ("", "package.module:object, whose accepts(token) decides"),
    "PLANTS_STORE": ("memory:", "the store's URL: memory:, sqlite:///FILE or postgresql://..."),
    "PLANTS_MAX_BODY_BYTES": (str(MAX_BODY_BYTES), "the largest request body, in bytes"),
    "PLANTS_REQUEST_TIMEOUT": ("10", "how long a request may take to arrive whole, in seconds"),
    "PLANTS_LOG_FORMAT": ("", "json or text; by default text on a terminal, else json"),
    "PLANTS_METRICS_BIND": ("", "a separate address for GET /metrics, such as 127.0.0.1:9100"),
}

SETTINGS_HELP: Final = "\n".join(
    [
        "settings, from the environment:",
        *(
            f"  {name:23} {meaning}{default and f' (default: {default})'}"
            for name, (default, meaning) in SETTINGS.items()
        ),
        "  PORT                    listen on this port of all IPv4 addresses (default: 127.0.0.1:8000)",
        "  WEB_CONCURRENCY         the number of worker processes (default: 1)",
        "  GUNICORN_CMD_ARGS       options of plants serve",
    ]
)

# What the packaged configuration sets in Gunicorn, beside its hooks and the number of threads, which the store decides.
GUNICORN_SETTINGS: Final[dict[str, Any]] = {
    "wsgi_app": "plants.wsgi:app",
    "worker_class": "plants.hosting.gunicorn_conf.Worker",
    "logger_class": "plants.hosting.gunicorn_conf.Logger",
    "control_socket_disable": True,
    "keepalive": 75,  # clients and load balancers keep idle connections for up to 60 s
    # The root of a container may be read-only and without /tmp.
    "worker_tmp_dir": "/dev/shm" if os.access("/dev/shm", os.W_OK) else None,  # noqa: S108  # Gunicorn makes a new file
    # The service needs no information from a proxy.
    "forwarded_allow_ips": "",
    "forwarder_headers": "",
    "secure_scheme_headers": {},
}

_T = TypeVar("_T")


class SettingsError(AppImportError):
    """A service cannot start with this setting. The message names the setting and the problem.

    Gunicorn prints such an exception in one line, without a traceback, and stops.
    """


def stop(problem: object) -> NoReturn:
    """End the process with one line on standard error: the first line of the problem's text."""
    first, *_ = [*str(problem).strip().splitlines(), repr(problem)]
    sys.exit(f"plants: {first.rstrip(' .:')}.")


class Settings(NamedTuple):
    """The validated settings.

    ``store`` is at ``store_url``, and is not connected yet; a token is valid if one of the ``token_checks`` accepts it;
    ``max_body_bytes`` limits a request's body; ``request_timeout`` is how long, in seconds, a request may take to
    arrive; ``log_format`` is ``json`` or ``text``; ``metrics_bind`` is a host and a port, or None.
    """

    store: PlantStore
    store_url: str
    token_checks: tuple[TokenCheck, ...]
    max_body_bytes: int
    request_timeout: float
    log_format: str
    metrics_bind: tuple[str, int] | None

    @property
    def shown_store(self) -> str:
        """The store's URL, without its passwords."""
        return without_passwords(self.store_url)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Parse the settings.

        :raises SettingsError: a name is unknown, or a value is not usable.
        """
        unknown = sorted(name for name in environ if name.startswith("PLANTS_") and name not in SETTINGS)
        if unknown:
            # A name in an environment may have line breaks, or bytes that are not text.
            name = ascii(unknown[0])[1:-1]
            advice = "".join(f"did you mean {match}?" for match in get_close_matches(name, SETTINGS, 1)) or "unset it."
            raise SettingsError(f"{name} is not a setting; {advice} The settings are {', '.join(SETTINGS)}")
        parse = partial(_parse, {"PLANTS_LOG_FORMAT": "text" if is_on_terminal() else "json", **environ})
        return cls(
            store=parse("PLANTS_STORE", open_store),
            store_url=environ.get("PLANTS_STORE", SETTINGS["PLANTS_STORE"][0]),
            token_checks=tuple(parse(name, check) for name, check in _TOKEN_CHECKS.items() if name in environ),
            max_body_bytes=int(parse("PLANTS_MAX_BODY_BYTES", _parse_bytes)),
            request_timeout=float(parse("PLANTS_REQUEST_TIMEOUT", _parse_seconds)),
            log_format=parse("PLANTS_LOG_FORMAT", _parse_log_format),
            metrics_bind=parse("PLANTS_METRICS_BIND", _parse_address) if "PLANTS_METRICS_BIND" in environ else None,
        )


def generate_token(environ: MutableMapping[str, str]) -> str | None:
    """If no setting for tokens is set, set ``PLANTS_TOKENS`` to a new token, and return the token.

    As the token is in the environment, all processes of the service accept it, also after ``USR2``.
    """
    if environ.keys() & _TOKEN_CHECKS.keys():
        return None
    environ["PLANTS_TOKENS"] = token = secrets.token_urlsafe(32)
    return token


def announce_token(token: str | None) -> None:
    """Log a generated token, if there is one."""
    if token:
        logging.getLogger("plants").warning("no token is set; a new one is valid until the service stops: %s", token)


def is_on_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return bool(sys.stderr and sys.stderr.isatty())  # sys.stderr is None if it was closed at the start.


def without_passwords(url: str) -> str:
    """Return a store's URL with each password replaced by asterisks."""
    # If a password contains @, more than the password may be hidden, but never less.
    url = re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(
        r"([^?&=]*)=([^&]*)", lambda found: f"{found[1]}=***" if "password" in unquote(found[1]) else found[0], url
    )


def _parse(environ: Mapping[str, str], name: str, value_of: Callable[[str], _T]) -> _T:
    try:
        return value_of(environ.get(name, SETTINGS[name][0]))
    except Exception as error:  # A store or a check of somebody else's may raise any error.
        raise SettingsError(f"{name} is not usable: {str(error) or repr(error)}") from None


def _matching(pattern: str, advice: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"set {advice}")
    return text


_parse_bytes = partial(_matching, "[1-9][0-9]{0,17}", f"a number of bytes, such as {MAX_BODY_BYTES}")
_parse_seconds = partial(_matching, r"(?=.*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?", "a number of seconds above 0, such as 10")
_parse_log_format = partial(_matching, "json|text", "json or text")


def _load_check(text: str) -> TokenCheck:
    if ":" not in text:
        raise ValueError("set package.module:object")
    check = resolve_name(text)
    if isinstance(check, type) or not isinstance(check, TokenCheck):
        raise TypeError("this is not an object with a method accepts(token)")
    return check


def _parse_address(text: str) -> tuple[str, int]:
    address = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})", text)
    if not address or not 0 < int(address[3]) <= LAST_PORT:
        raise ValueError("set an address and a port, such as 127.0.0.1:9100")
    if not find_spec("prometheus_client"):
        raise ValueError("prometheus-client is not installed; run pip install 'plants[metrics]'")
    return address[1] or address[2], int(address[3])


_TOKEN_CHECKS: dict[str, Callable[[str], TokenCheck]] = {
    "PLANTS_TOKENS": lambda text: Tokens(re.findall(r"[^,\s]+", text)),
    "PLANTS_TOKENS_FILE": TokenFile,
    "PLANTS_TOKENS_CHECK": _load_check,
}
