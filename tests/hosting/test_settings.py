"""The settings of a hosted service."""

import re
from pathlib import Path

import pytest

from plants.hosting.settings import SETTINGS, Settings, SettingsError
from plants.tokens import Tokens

FIVE = Tokens(["five"])


def test_tokens_of_all_kinds_are_valid_together_and_each_value_is_used(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("four\n")
    environ = {"PLANTS_TOKENS": " one ,\n\ttwo,, three ", "PLANTS_TOKENS_FILE": f"{tmp_path}/tokens"}
    environ["PLANTS_TOKENS_CHECK"] = f"{__name__}:FIVE"
    environ |= {"PLANTS_REQUEST_TIMEOUT": "0.5", "PLANTS_LOG_FORMAT": "json", "PLANTS_METRICS_BIND": "localhost:9100"}
    settings = Settings.from_environ(environ)
    assert settings[5:8] == (0.5, "json", ("localhost", 9100))
    tokens = ["one", "two", "three", "four", "five", "six"]
    assert [any(check.accepts(token) for check in settings.token_checks) for token in tokens] == [True] * 5 + [False]


BAD_SETTINGS = [
    ("PLANTS_TOKEN", "secret", f"PLANTS_TOKEN is not a setting; the settings are {', '.join(SETTINGS)};"),
    ("PLANTS_\n\udcff", "secret", "is not a setting"),
    ("PLANTS_PORT", "tcp://10.0.0.1:8000", "if Kubernetes sets it for a Service, set enableServiceLinks: false"),
    ("PLANTS_TOKENS_CHECK", "", "set package.module:object$"),
    ("PLANTS_TOKENS_CHECK", "no_such_module:x", "No module named 'no_such_module'$"),
    ("PLANTS_TOKENS_CHECK", "json:dumps", r"this is not an object with a method accepts\(token\)$"),
    ("PLANTS_TOKENS_CHECK", "plants.tokens:Tokens", r"this is not an object with a method accepts\(token\)$"),
    ("PLANTS_TOKENS", "", "tokens has no token"),
    ("PLANTS_TOKENS", "good,'secret'", "RFC 6750"),
    ("PLANTS_TOKENS_FILE", "/missing/tokens", "No such file or directory: '/missing/tokens'"),
    ("PLANTS_MAX_BODY_BYTES", "0", "set a number of bytes"),
    ("PLANTS_MAX_BODY_BYTES", "9" * 5000, "set a number of bytes"),
    ("PLANTS_REQUEST_TIMEOUT", "0.0", "set a number of seconds"),
    ("PLANTS_REQUEST_TIMEOUT", f"0.{'0' * 400}1", "set a number of seconds"),
    ("PLANTS_LOG_FORMAT", "JSON", "set json or text"),
]
BAD_SETTINGS += [
    ("PLANTS_METRICS_BIND", text, r"set an address and a port, such as 127\.0\.0\.1:9100")
    for text in ("", "9100", ":9100", "127.0.0.1", "127.0.0.1:0", "::1:9100", "a b:1")
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_SETTINGS, ids=lambda value: ascii(value[:30]) or "empty")
def test_a_bad_setting_is_named_in_one_line(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environ({"PLANTS_TOKENS": "secret", name: value})
    problem = str(caught.value)
    assert re.search(message, problem)
    assert problem.startswith(ascii(name)[1:-1])
    assert problem.isprintable()
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://me:secret@a,b/db", "postgresql://me:***@a,b/db"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("postgresql://me:se?c@ret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db?port=1&pass%77ord=secret", "postgresql://me@host/db"),
    ],
)
def test_the_password_and_the_query_of_a_store_are_hidden(url: str, masked: str) -> None:
    assert Settings.from_environ({})._replace(store_url=url).shown_store == masked
