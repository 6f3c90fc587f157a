"""The check of the bearer token."""

from typing import Any

import pytest

import plants
from plants import MAX_BODY_BYTES, MemoryStore
from plants.app import PlantApp
from tests.contract import TOKEN
from tests.support.calls import Stream, call


def test_a_token_that_the_server_checked_is_not_checked_again() -> None:
    check, other = Check(), Check()
    own, others = (PlantApp(MemoryStore(), [each], {}, MAX_BODY_BYTES) for each in (check, other))
    for app in (own, others):
        assert call(app, Stream(), **{"plants.auth": own.auth}).error == 40001
    assert (check, other) == ([], [TOKEN])


class Check(list[str]):
    """A token check that records the tokens."""

    def accepts(self, token: str) -> bool:
        self.append(token)
        return token != "wrong"


async def asynchronous(_token: str) -> bool:
    return True


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_token_check_that_returns_no_bool_accepts_no_token(caplog: pytest.LogCaptureFixture) -> None:
    for accepts, kind in ((asynchronous, "coroutine"), (lambda _: None, "NoneType"), (lambda _: 1, "int")):
        check = type("Check", (), {"accepts": staticmethod(accepts)})()
        assert call(plants.create_app(tokens=check), Stream()).error == 50000
        assert f"accepts() returned {kind}, not True or False" in caplog.text


def test_the_token_check_gets_only_rfc_6750_tokens() -> None:
    check = Check()
    app = plants.create_app(tokens=check)
    for token, error in {"AZaz09-._~+/===": 40001, "wrong": 40101}.items():
        assert call(app, Stream(), HTTP_AUTHORIZATION=f"Bearer {token}").error == error
    for token in ("abc ", "abc\n", "ab\u017f", "ab\u212a", "\xe4bc"):
        assert call(app, Stream(), HTTP_AUTHORIZATION=f"Bearer {token}").error == 40101
    assert check == ["AZaz09-._~+/===", "wrong"]


@pytest.mark.parametrize(
    "tokens",
    ["secret", b"secret", None, 1, [1], [], [""], ["a b"], ["=a"], ["a\n"], ["bearer"], ["ok", "sécret"]],
)
def test_create_app_takes_any_iterable_of_valid_tokens_and_quotes_none(tokens: Any) -> None:
    assert call(plants.create_app(tokens=iter(["one", TOKEN])), Stream()).error == 40001
    error = ValueError if isinstance(tokens, list) and tokens != [1] else TypeError
    with pytest.raises(error) as caught:
        plants.create_app(tokens=tokens)
    assert "cret" not in str(caught.value)
