"""Where valid tokens come from."""

import hashlib
import logging
import os
import threading
from pathlib import Path

import pytest

from plants.tokens import TokenFile


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock as the token file sees it: its last item is the time."""
    times = [1000.0]
    monkeypatch.setattr("plants.tokens.time.monotonic", lambda: times[-1])
    return times


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("first\n")
    return path


def digest_line(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"


def test_each_line_is_a_token_or_the_digest_of_one(path: Path) -> None:
    upper_case = digest_line("four").upper().replace("SHA256", "sha256")
    path.write_text("# ours\n  # theirs\n\none\r\n  two  \n" + digest_line("three") + upper_case + "#five\n")
    tokens = TokenFile(path)
    assert [token for token in ("one", "two", "three", "four", "five", "#five") if tokens.accepts(token)] == [
        "one",
        "two",
        "three",
        "four",
    ]


def test_a_digest_is_not_itself_a_token(path: Path) -> None:
    path.write_text(digest_line("three"))
    assert not TokenFile(path).accepts(digest_line("three").strip().removeprefix("sha256:"))


BAD_FILES = {
    "empty": (b"", "the file has no token"),
    "comments alone": (b"# none\n\n", "the file has no token"),
    "a space inside": (b"good\nse cret\n", "line 2"),
    "a comma": (b"secret,other\n", "line 1"),
    "not ASCII": ("sécret\n".encode(), "line 1"),
    "not UTF-8": (b"secret\xff\n", "line 1"),
    "a byte order mark": (b"\xef\xbb\xbfsecret\n", "line 1"),
    "no digest": (b"sha256:secret\n", "line 1"),
    "62 digits": (b"sha256:" + b"0" * 62, "line 1"),
    "63 digits": (b"sha256:" + b"0" * 63, "line 1"),
    "66 digits": (b"sha256:" + b"0" * 66, "line 1"),
    "a space before the digits": (b"sha256: " + b"0" * 64, "line 1"),
    "NUL": (b"secret\0\n", "line 1"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_of_another_form_is_refused_without_showing_it(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        TokenFile(path)
    assert "cret" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        TokenFile(tmp_path / "nothing")


def test_a_change_takes_effect_after_a_second(path: Path, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tokens = TokenFile(path)
    path.write_text("second\n")
    clock.append(clock[-1] + 0.9)
    assert (tokens.accepts("first"), tokens.accepts("second")) == (True, False)
    clock.append(clock[-1] + 0.1)
    assert (tokens.accepts("first"), tokens.accepts("second")) == (False, True)
    clock.append(clock[-1] + 1)
    assert tokens.accepts("second")
    path.write_text("third\n")
    clock.append(clock[-1] + 0.9)
    assert tokens.accepts("second")
    assert caplog.messages == ["the token file has changed; valid tokens: 1"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "the file has no token"), (b"not a token\n", "line 1 is neither a token"), (None, "No such file")],
    ids=["empty", "bad line", "gone"],
)
def test_a_file_that_turns_bad_keeps_the_tokens_and_is_reported_once(
    path: Path, clock: list[float], caplog: pytest.LogCaptureFixture, content: bytes | None, reason: str
) -> None:
    tokens = TokenFile(path)
    path.unlink() if content is None else path.write_bytes(content)
    for _ in range(3):
        clock.append(clock[-1] + 1)
        assert tokens.accepts("first")
    ((logger, level, message),) = caplog.record_tuples
    assert (logger, level) == ("plants.tokens", logging.ERROR)
    assert message.startswith("the token file cannot be used, the old tokens stay valid: ")
    assert reason in message
    assert "not a token" not in caplog.text
    path.write_text("second\n")
    clock.append(clock[-1] + 1)
    assert (tokens.accepts("first"), tokens.accepts("second")) == (False, True)


def test_a_file_that_turns_bad_again_is_reported_again(
    path: Path, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    tokens = TokenFile(path)
    for content in ("", "first\n", ""):
        path.write_text(content)
        clock.append(clock[-1] + 1)
        tokens.accepts("first")
    assert len(caplog.records) == 2


def test_a_pipe_is_read_once_and_nobody_waits_for_it_again(
    tmp_path: Path, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=["first\n"])
    writer.start()
    tokens = TokenFile(pipe)
    writer.join()
    clock.append(clock[-1] + 1)
    assert tokens.accepts("first")
    assert caplog.messages == ["the token file cannot be used, the old tokens stay valid: it is a pipe, read once"]


def test_while_one_thread_reads_the_file_the_others_do_not_wait(path: Path, clock: list[float]) -> None:
    tokens = TokenFile(path)
    path.write_text("second\n")
    clock.append(clock[-1] + 1)
    with tokens._lock:
        assert tokens.accepts("first")
    assert tokens.accepts("second")
