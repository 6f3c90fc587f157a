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
from typing import Annotated, Any, Final, NamedTuple, NoReturn, Self, get_origin, get_type_hints
from urllib.parse import unquote

from gunicorn.errors import AppImportError

from plants import MAX_BODY_BYTES
from plants.stores import PlantStore, open_store
from plants.stores.memory import MemoryStore
from plants.tokens import TokenCheck, TokenFile, Tokens

LAST_PORT: Final = 65535

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

_KUBERNETES: Final = re.compile(r"PLANTS_(.*_)?(SERVICE_(HOST|PORT)|PORT_[0-9]+_|PORT=(tcp|udp|sctp)://)")


class SettingsError(AppImportError):
    """A service cannot start with this setting. The message names the setting and the problem.

    Gunicorn prints such an exception in one line, without a traceback, and stops.
    """


def stop(problem: object) -> NoReturn:
    """End the process with one line on standard error: the first line of the problem's text."""
    first, *_ = [*str(problem).strip().splitlines(), repr(problem)]
    sys.exit(f"plants: {first.rstrip(' .:')}.")


def _matching(pattern: str, advice: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"set {advice}")
    return text


def _parse_bytes(text: str) -> int:
    return int(_matching("[1-9][0-9]{0,17}", f"a number of bytes, such as {MAX_BODY_BYTES}", text))


def _parse_seconds(text: str) -> float:
    return float(_matching(r"(?=.*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?", "a number of seconds above 0, such as 10", text))


_parse_log_format = partial(_matching, "json|text", "json or text")


def _parse_tokens(text: str) -> Tokens:
    return Tokens(re.findall(r"[^,\s]+", text))


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


class Setting(NamedTuple):
    """The row of a setting: its meaning, its default, and how its text is parsed."""

    meaning: str
    default: str | None  #: the text that is parsed if the setting is not set; if None, the value is None
    parse: Callable[[str], object]


class Settings(NamedTuple):
    """The table of settings, parsed. The name of a setting is ``PLANTS_`` and the field's name in capitals."""

    tokens: Annotated[Tokens | None, Setting("valid tokens, separated by commas or white space", None, _parse_tokens)]
    tokens_file: Annotated[TokenFile | None, Setting("a file of valid tokens, or of their digests", None, TokenFile)]
    tokens_check: Annotated[
        TokenCheck | None, Setting("package.module:object, whose accepts(token) decides", None, _load_check)
    ]
    store: Annotated[
        PlantStore, Setting("the store's URL: memory:, sqlite:///FILE or postgresql://...", "memory:", open_store)
    ]
    max_body_bytes: Annotated[int, Setting("the largest request body, in bytes", str(MAX_BODY_BYTES), _parse_bytes)]
    request_timeout: Annotated[
        float, Setting("the seconds within which a whole request must arrive", "10", _parse_seconds)
    ]
    log_format: Annotated[
        str, Setting("json or text; by default text on a terminal, else json", None, _parse_log_format)
    ]
    metrics_bind: Annotated[
        tuple[str, int] | None,
        Setting("an address of its own for GET /metrics, such as 127.0.0.1:9100", None, _parse_address),
    ]
    store_url: str

    @property
    def token_checks(self) -> tuple[TokenCheck, ...]:
        """The checks of which one must accept a token."""
        return tuple(check for check in (self.tokens, self.tokens_file, self.tokens_check) if check)

    @property
    def in_memory(self) -> bool:
        """Whether all plants are lost when the process ends."""
        return isinstance(self.store, MemoryStore)

    @property
    def shown_store(self) -> str:
        """The store's URL, without its passwords."""
        return without_passwords(self.store_url)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Parse the settings.

        :raises SettingsError: a name is unknown, or a value is not usable.
        """
        if unknown := sorted(name for name in environ if name.startswith("PLANTS_") and name not in SETTINGS):
            raise SettingsError(_problem_of_name(unknown[0], environ[unknown[0]]))
        values = {
            name.removeprefix("PLANTS_").lower(): _parse(row, name, environ.get(name, row.default))
            for name, row in SETTINGS.items()
        }
        values["log_format"] = values["log_format"] or ("text" if is_on_terminal() else "json")
        return cls(**values, store_url=environ.get("PLANTS_STORE", SETTINGS["PLANTS_STORE"].default))


SETTINGS: Final = {
    f"PLANTS_{name.upper()}": hint.__metadata__[0]
    for name, hint in get_type_hints(Settings, include_extras=True).items()
    if get_origin(hint) is Annotated
}

SETTINGS_HELP: Final = "\n".join(
    [
        "settings, from the environment:",
        *(
            f"  {name:23} {row.meaning}{f' (default: {row.default})' if row.default else ''}"
            for name, row in SETTINGS.items()
        ),
        "  PORT                    listen on this port of all IPv4 addresses (default: 127.0.0.1:8000)",
        "  WEB_CONCURRENCY         the number of worker processes (default: 1)",
        "  GUNICORN_CMD_ARGS       options of plants serve",
    ]
)
_TOKEN_SETTINGS = {"PLANTS_TOKENS", "PLANTS_TOKENS_FILE", "PLANTS_TOKENS_CHECK"}


def _problem_of_name(variable: str, value: str) -> str:
    name = ascii(variable)[1:-1]  # A name in an environment may have line breaks, or bytes that are not text.
    problem = f"{name} is not a setting"
    if _KUBERNETES.match(f"{variable}={value}"):
        return f"{problem}; Kubernetes sets it for a Service: set enableServiceLinks: false in the pod"
    advice = "".join(f"did you mean {match}?" for match in get_close_matches(name, SETTINGS, 1)) or "unset it."
    return f"{problem}; {advice} The settings are {', '.join(SETTINGS)}"


def _parse(row: Setting, name: str, text: str | None) -> Any:
    try:
        return None if text is None else row.parse(text)
    except Exception as error:  # A store or a check of somebody else's may raise any error.
        raise SettingsError(f"{name} is not usable: {str(error) or repr(error)}") from None


def generate_token(environ: MutableMapping[str, str]) -> str | None:
    """If no setting for tokens is set, set ``PLANTS_TOKENS`` to a new token, and return the token.

    As the token is in the environment, all processes of the service accept it.
    """
    if environ.keys() & _TOKEN_SETTINGS:
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
