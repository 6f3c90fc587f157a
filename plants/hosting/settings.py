"""The settings of a hosted service, from the environment."""

import re
import secrets
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Final, NamedTuple, NoReturn, Self, TypeVar
from urllib.parse import unquote

from gunicorn.errors import AppImportError

from plants.hosting import LAST_PORT
from plants.stores import open_store
from plants.tokens import TokenCheck, TokenFile, Tokens

# The names, each with its default and its meaning.
SETTINGS: Final = {
    "PLANTS_TOKENS": ("", "valid tokens, separated by commas or white space"),
    "PLANTS_TOKENS_FILE": ("", "a file of valid tokens, or of their digests"),
    "PLANTS_STORE": ("memory:", "the store's URL: memory:, sqlite:///FILE or postgresql://..."),
    "PLANTS_MAX_BODY_BYTES": ("1048576", "the largest request body, in bytes"),
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

    ``store`` is the store's URL; ``tokens`` decides which tokens are valid; ``max_body_bytes`` limits a request's body;
    ``request_timeout`` is how long, in seconds, a request may take to arrive; ``log_format`` is ``json`` or ``text``;
    ``metrics_bind`` is a host and a port, or None; ``new_token`` is the generated token, or None if the environment has
    tokens.
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
        """Parse the settings. If neither setting for tokens is set, generate a token.

        :raises SettingsError: a name is unknown, or a value is not usable.
        """
        unknown = sorted(name for name in environ if name.startswith("PLANTS_") and name not in SETTINGS)
        if unknown:
            # A name in an environment may have line breaks, or bytes that are not text.
            name = ascii(unknown[0])[1:-1]
            raise SettingsError(f"{name} is not a setting; unset it. The settings are {', '.join(SETTINGS)}")
        new_token = None
        if not _TOKEN_CHECKS.keys() & environ.keys():
            new_token = secrets.token_urlsafe(32)
            environ = {**environ, "PLANTS_TOKENS": new_token}
        if "PLANTS_LOG_FORMAT" not in environ:
            environ = {**environ, "PLANTS_LOG_FORMAT": "text" if is_on_terminal() else "json"}
        parse = partial(_parse, environ)
        checks = tuple(parse(name, make_check) for name, make_check in _TOKEN_CHECKS.items() if name in environ)
        return cls(
            store=parse("PLANTS_STORE", _parse_store_url),
            tokens=checks[0] if len(checks) == 1 else _Either(checks),
            max_body_bytes=int(parse("PLANTS_MAX_BODY_BYTES", _parse_bytes)),
            request_timeout=float(parse("PLANTS_REQUEST_TIMEOUT", _parse_seconds)),
            log_format=parse("PLANTS_LOG_FORMAT", _parse_log_format),
            metrics_bind=parse("PLANTS_METRICS_BIND", _parse_address) if "PLANTS_METRICS_BIND" in environ else None,
            new_token=new_token,
        )


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
    except (OSError, ValueError) as error:
        raise SettingsError(f"{name} is not usable: {error}") from None


def _matching(pattern: str, advice: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"set {advice}")
    return text


_parse_bytes = partial(_matching, "[1-9][0-9]{0,17}", "a number of bytes, such as 1048576")
_parse_seconds = partial(_matching, r"(?=.*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?", "a number of seconds above 0, such as 10")
_parse_log_format = partial(_matching, "json|text", "json or text")


def _parse_store_url(url: str) -> str:
    open_store(url).close()
    return url


def _parse_address(text: str) -> tuple[str, int]:
    address = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})", text)
    if not address or not 0 < int(address[3]) <= LAST_PORT:
        raise ValueError("set an address and a port, such as 127.0.0.1:9100")
    if not find_spec("prometheus_client"):
        raise ValueError("prometheus-client is not installed; run pip install 'plants[metrics]'")
    return address[1] or address[2], int(address[3])


class _Either(NamedTuple):
    checks: tuple[TokenCheck, ...]

    def accepts(self, token: str) -> bool:
        # Use a list so that all checks run, because the time must not show which one matched.
        return any([check.accepts(token) for check in self.checks])  # noqa: C419


_TOKEN_CHECKS: dict[str, Callable[[str], TokenCheck]] = {
    "PLANTS_TOKENS": lambda text: Tokens(re.findall(r"[^,\s]+", text)),
    "PLANTS_TOKENS_FILE": TokenFile,
}
