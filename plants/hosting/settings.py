"""The settings of a hosted service, parsed from the environment: the table that all of hosting reads."""

import logging
import re
import secrets
import sys
from collections.abc import Mapping, MutableMapping
from functools import partial
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Annotated, Any, Final, NamedTuple, NoReturn, Self, get_origin, get_type_hints

from plants import MAX_BODY_BYTES
from plants.stores import PlantStore, open_store
from plants.tokens import TokenCheck, TokenFile, Tokens


class SettingsError(ValueError):
    """A bad setting, which the message names."""


def exit_with(problem: object) -> NoReturn:
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
    check = resolve_name(_matching(".+:.+", "package.module:object", text))
    if isinstance(check, type) or not isinstance(check, TokenCheck):
        raise TypeError("this is not an object with a method accepts(token)")
    return check


def _parse_address(text: str) -> tuple[str, int]:
    advice = "an address and a port, such as 127.0.0.1:9100"
    host, _, port = _matching(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[1-9][0-9]{0,4}", advice, text).rpartition(":")
    if not find_spec("prometheus_client"):
        raise ValueError("prometheus-client is not installed; run pip install 'plants[metrics]'")
    return host.strip("[]"), int(port)


class Settings(NamedTuple):
    """The table of settings, parsed. The name of a setting is ``PLANTS_`` and the field's name in capitals.

    Beside its type, a setting has the function that parses its text, and the text that is parsed if it is not set.
    """

    tokens: Annotated[Tokens | None, _parse_tokens, None]
    tokens_file: Annotated[TokenFile | None, TokenFile, None]
    tokens_check: Annotated[TokenCheck | None, _load_check, None]
    store: Annotated[PlantStore, open_store, "memory:"]
    max_body_bytes: Annotated[int, _parse_bytes, str(MAX_BODY_BYTES)]
    request_timeout: Annotated[float, _parse_seconds, "10"]
    log_format: Annotated[str | None, _parse_log_format, None]
    metrics_bind: Annotated[tuple[str, int] | None, _parse_address, None]
    store_url: str

    @property
    def token_checks(self) -> tuple[TokenCheck, ...]:
        """The checks of which one must accept a token."""
        return tuple(check for check in (self.tokens, self.tokens_file, self.tokens_check) if check)

    @property
    def in_memory(self) -> bool:
        """Whether all plants are lost when the process ends."""
        return self.store_url == "memory:"

    @property
    def shown_store(self) -> str:
        """The store's URL without secrets: its password is replaced by asterisks, and its query is left out."""
        # If a password contains @, more than the password may be hidden, but never less.
        return re.sub(r"(://[^:@/]*):.*@", r"\1:***@", self.store_url, flags=re.DOTALL).partition("?")[0]

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Parse the settings.

        :raises SettingsError: a name is unknown, or a value is invalid.
        """
        for name in environ:
            if name.startswith("PLANTS_") and name not in SETTINGS:
                raise SettingsError(
                    # A name may have line breaks, or bytes that are not text.
                    f"{ascii(name)[1:-1]} is not a setting; the settings are {', '.join(SETTINGS)}; "
                    "if Kubernetes sets it for a Service, set enableServiceLinks: false in the pod"
                )
        values: dict[str, Any] = {"store_url": environ.get("PLANTS_STORE", "memory:")}
        for name, (parse, default) in SETTINGS.items():
            text = environ.get(name, default)
            try:
                values[name.removeprefix("PLANTS_").lower()] = None if text is None else parse(text)
            except Exception as error:  # A store or a check of somebody else's may raise any error.
                raise SettingsError(f"{name} is invalid: {str(error) or repr(error)}") from None
        return cls(**values)


#: How the text of each setting is parsed, and its default, by the setting's name.
SETTINGS: Final = {
    f"PLANTS_{name.upper()}": hint.__metadata__
    for name, hint in get_type_hints(Settings, include_extras=True).items()
    if get_origin(hint) is Annotated
}


def settings_with_token(environ: MutableMapping[str, str]) -> Settings:
    """Parse the settings; if no token is set, set ``PLANTS_TOKENS`` to a new one, and log the token."""
    settings = Settings.from_environ(environ)
    if settings.token_checks:
        return settings
    environ["PLANTS_TOKENS"] = token = secrets.token_urlsafe(32)
    logging.getLogger("plants").warning("no token is set; a new one is valid until the service stops: %s", token)
    return settings._replace(tokens=Tokens([token]))
