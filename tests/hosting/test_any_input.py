"""A service starts, or fails with one line, whatever is in its token file or in a setting."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plants import tokens as tokens_module
from plants.hosting.settings import SETTINGS, Settings, SettingsError
from plants.tokens import TokenFile
from tests.support.examples import examples

SECRET = "s3cr3t-t0ken-of-ours"

lines = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"#", b"# note", b"token", b"sha256:", b"sha256:" + b"a" * 64, b"\xef\xbb\xbf", b"\xff", b"\0"]),
    st.binary(max_size=4).map(lambda odd: SECRET.encode() + odd),
    st.binary(max_size=4).map(lambda odd: odd + SECRET.encode()),
)
contents = st.lists(lines, max_size=6).flatmap(
    lambda parts: st.sampled_from([b"\n", b"\r\n", b"\r", b""]).map(lambda end: end.join(parts))
)
# An environment variable has no U+0000, and its bytes that are not UTF-8 become surrogates.
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
    st.text("0123456789abcf:.[]-/?=%&@\n ", max_size=12).flatmap(
        lambda text: st.sampled_from(
            [text, f"sqlite:///{text}", f"postgresql://{text}", f"postgresql://{SECRET}@{text}"]
        )
    ),
    st.binary(max_size=30).map(lambda value: value.replace(b"\0", b"").decode(errors="surrogateescape")),
    st.sampled_from(
        ["", "1", "0.1", "json", "memory:", "[::1]:9100", "localhost:1", "sqlite:///", "postgresql://", "sqlite:///%00"]
    ),
)


def test_a_file_changed_to_any_bytes_is_applied_or_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    monkeypatch.setattr(tokens_module, "CHECK_SECONDS", 0.0)

    @examples(100)
    @given(contents)
    def check(content: bytes) -> None:
        path.write_bytes(b"earlier")
        tokens = TokenFile(path)
        assert tokens.accepts("earlier")
        new = path.with_name("new")
        new.write_bytes(content)
        new.replace(path)
        accepts_earlier = tokens.accepts("earlier")
        try:
            started_later = TokenFile(path)
        except ValueError:
            assert accepts_earlier
        else:
            assert accepts_earlier == started_later.accepts("earlier")
            assert tokens.accepts(SECRET) == started_later.accepts(SECRET)

    check()
    assert caplog.messages
    assert not [message for message in caplog.messages if SECRET in message or not message.isprintable()]


@pytest.mark.parametrize("name", SETTINGS)
def test_any_text_in_a_setting_is_valid_or_rejected_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @examples(50)
    @given(texts)
    def check(text: str) -> None:
        value = f"{SECRET},{text}" if name == "PLANTS_TOKENS" else text
        # If the text is valid, there is no message; this placeholder passes the assertions.
        problem = f"{name} is not usable: "
        try:
            Settings.from_environ({"PLANTS_TOKENS": SECRET} | {name: value})
        except SettingsError as error:
            problem = str(error)
        assert problem.startswith(f"{name} is not usable: ")
        assert problem.isprintable()
        # These two name a place, which the message shows. Some examples have SECRET in it.
        assert name in {"PLANTS_TOKENS_FILE", "PLANTS_TOKENS_CHECK"} or SECRET not in problem

    check()
