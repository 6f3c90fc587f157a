"""The settings of a hosted service, from the environment."""

import re
import secrets
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple, Self, TypeVar

from gunicorn.errors import AppImportError

from plants.hosting import LAST_PORT
from plants.stores import open_store
from plants.tokens import TokenCheck, TokenFile, Tokens

NAMES = (
    "PLANTS_TOKENS",
    "PLANTS_TOKENS_FILE",
    "PLANTS_STORE",
    "PLANTS_MAX_BODY_BYTES",
    "PLANTS_REQUEST_TIMEOUT",
    "PLANTS_LOG_FORMAT",
    "PLANTS_METRICS_BIND",
)

_T = TypeVar("_T")


class SettingsError(AppImportError):
    """A setting that a service cannot be started with; the message names it and says how to mend it.

    Gunicorn prints such an exception in a line, without a traceback, and stops.
    """


class Settings(NamedTuple):
    """The settings, checked.

    ``store`` is a store's URL; ``tokens`` tells which tokens are valid; ``max_body_bytes`` bounds a request's body;
    ``request_timeout`` is how long, in seconds, a request may take to arrive; ``log_format`` is ``json`` or ``text``;
    ``metrics_bind`` is a host and a port, or None; ``new_token`` is the token that was made because the environment had
    none, or else None.
    """

    store: str
    tokens: TokenCheck
    max_body_bytes: int
    request_timeout: float
    log_format: str
    metrics_bind: tuple[str, int] | None
    new_token: str | None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings. Where the environment has no token, a new one is made.

        :raises SettingsError: a name is not known, or a value is not usable.
        """
        unknown = sorted(name for name in environ if name.startswith("PLANTS_") and name not in NAMES)
        if unknown:
            # An environment's names may have line breaks, and bytes that are no text.
            name = ascii(unknown[0])[1:-1]
            raise SettingsError(f"{name} is not a setting; unset it. The settings are {', '.join(NAMES)}")
        new_token = None
        if not _TOKENS_OF.keys() & environ.keys():
            new_token = secrets.token_urlsafe(32)
            environ = {**environ, "PLANTS_TOKENS": new_token}
        is_terminal = sys.stderr and sys.stderr.isatty()  # It is None where standard error was closed at the start.
        log_format = "text" if is_terminal else "json"
        read = partial(_read, environ)
        checks = tuple(read(name, "", tokens_of) for name, tokens_of in _TOKENS_OF.items() if name in environ)
        return cls(
            store=read("PLANTS_STORE", "memory:", _store),
            tokens=checks[0] if len(checks) == 1 else _Either(checks),
            max_body_bytes=int(read("PLANTS_MAX_BODY_BYTES", "1048576", _BYTES)),
            request_timeout=float(read("PLANTS_REQUEST_TIMEOUT", "10", _SECONDS)),
            log_format=read("PLANTS_LOG_FORMAT", log_format, _LOG_FORMAT),
            metrics_bind=read("PLANTS_METRICS_BIND", "", _address) if "PLANTS_METRICS_BIND" in environ else None,
            new_token=new_token,
        )


def _read(environ: Mapping[str, str], name: str, default: str, value_of: Callable[[str], _T]) -> _T:
    try:
        return value_of(environ.get(name, default))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name} is not usable: {error}") from None


def _matching(pattern: str, advice: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"set {advice}")
    return text


_BYTES = partial(_matching, "[1-9][0-9]{0,17}", "a number of bytes, such as 1048576")
_SECONDS = partial(_matching, r"(?=.*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?", "a number of seconds above 0, such as 10")
_LOG_FORMAT = partial(_matching, "json|text", "json or text")


def _store(url: str) -> str:
    open_store(url).close()
    return url


def _address(text: str) -> tuple[str, int]:
    address = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})", text)
    if not address or not 0 < int(address[3]) <= LAST_PORT:
        raise ValueError("set an address and a port, such as 127.0.0.1:9100")
    if not find_spec("prometheus_client"):
        raise ValueError("prometheus-client is not installed; run pip install 'plants[metrics]'")
    return address[1] or address[2], int(address[3])


class _Either(NamedTuple):
    checks: tuple[TokenCheck, ...]

    def accepts(self, token: str) -> bool:
        # A list, not a generator: all checks run, so the time does not show which one matched.
        return any([check.accepts(token) for check in self.checks])  # noqa: C419


_TOKENS_OF: dict[str, Callable[[str], TokenCheck]] = {
    "PLANTS_TOKENS": lambda text: Tokens(re.findall(r"[^,\s]+", text)),
    "PLANTS_TOKENS_FILE": TokenFile,
}
