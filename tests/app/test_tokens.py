"""The token file: its format, its changes, and its first use."""

import hashlib
import logging
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from plants.tokens import TokenFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.symlink_to("first")  # Kubernetes mounts a file as a link that it replaces.
    path.write_text("first\n")
    return path


def test_each_line_is_a_token_or_the_digest_of_one(path: Path) -> None:
    three, four = (hashlib.sha256(token).hexdigest() for token in (b"three", b"four"))
    every = "AZaz09-._~+/=="  # This token has every kind of character that RFC 6750 allows.
    text = f"\ufeff# ours\n  # theirs\n\nOne\r\n  {every}  \nsha256:{three}\nsha256:{four.upper()}\nOne\n#five\n"
    path.write_bytes(text.encode().ljust(1 << 20, b"#"))  # the largest file
    tokens = TokenFile(path)
    presented = ["One", every, "three", "four", "five", "#five", three]
    assert [token for token in presented if tokens.accepts(token)] == presented[:4]


BAD_FILES = {
    "a space inside": (b"good\nse cret\n", "line 2"),
    "not UTF-8": (b"secret\xff\n", "line 1"),
    "a byte order mark in the second line": (b"good\n\xef\xbb\xbfsecret\n", "line 2"),
    "63 digits": (b"sha256:" + b"0" * 63, "line 1"),
    "larger than 1 MiB": (b"good\n".ljust((1 << 20) + 1, b"#"), "it is larger than 1 MiB"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_an_invalid_token_file_is_rejected_without_quoting_it(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        TokenFile(path)
    assert "cret" not in str(caught.value)


@pytest.fixture(autouse=True)
def two_seconds_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", count(step=2.0).__next__)


def accepted(tokens: TokenFile) -> list[str]:
    return [token for token in ("first", "second") if tokens.accepts(token)]


def test_a_change_takes_effect_within_two_seconds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    monkeypatch.chdir(path.parent)
    tokens = TokenFile(path.name)
    monkeypatch.chdir("/")
    assert accepted(tokens) == ["first"]
    path.write_text("second\n")
    os.utime(path, (0, 0))  # An older file may replace a newer one.
    assert accepted(tokens) == ["first"]  # The file is read at most once a second.
    monkeypatch.setattr("time.monotonic", lambda: 2.0)
    assert accepted(tokens) == ["second"]


def link_to_a_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


BAD_CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bad line": (lambda path: path.write_text("not a token\n"), "line 1 is neither a token"),
    "gone": (Path.unlink, "No such file"),
    "device": (link_to_a_device, "it is not a regular file"),
}


@pytest.mark.parametrize(("change", "reason"), BAD_CHANGES.values(), ids=BAD_CHANGES)
def test_a_bad_change_leaves_the_tokens_valid_and_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object], reason: str
) -> None:
    tokens = TokenFile(path)
    assert accepted(tokens) == ["first"]
    change(path)
    assert accepted(tokens) == ["first"]
    ((logger, level, message),) = caplog.record_tuples
    assert (logger, level) == ("plants.tokens", logging.ERROR)
    assert message.startswith("the token file cannot be used, so the old tokens stay valid: ")
    assert reason in message
    assert "not a token" not in caplog.text
    new = path.with_name("new")
    caplog.set_level(logging.INFO)
    for content in ("", "first\n"):
        new.write_text(content)
        new.replace(path)
        assert accepted(tokens) == ["first"]
    assert caplog.messages[1].endswith("so the old tokens stay valid: the file has no token")
    assert caplog.messages[2:] == ["the token file has changed; valid tokens: 1"]


def test_the_first_use_reads_the_file_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Workers are forked from a process that has only checked the file, maybe long before."""
    for content, valid in {"second\n": ["second"], "not a token\n": []}.items():
        path.write_text("first\n")
        tokens = TokenFile(path)
        path.write_text(content)
        assert accepted(tokens) == valid
    assert "so no token is valid: line 1 " in caplog.text
    path.write_text("first\n")
    assert accepted(tokens) == ["first"]
