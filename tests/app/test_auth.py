"""The check of the bearer token."""

from collections.abc import Callable
from typing import Any

import pytest

import plants
from plants import MemoryStore
from plants.tokens import TokenCheck
from tests.contract import AUTH, JSON_TYPE, new_plant
from tests.support.calls import Stream, call, sender


def test_an_exception_in_the_token_check_is_a_500() -> None:
    class Broken:
        def accepts(self, token: str) -> bool:
            raise LookupError(token)

    store = MemoryStore()
    assert sender(plants.create_app(store, tokens=Broken()))(new_plant(), headers=[AUTH, JSON_TYPE]).error == 50000
    assert store.get(1) is None


def check_that_returns(value: object) -> TokenCheck:
    class Check:
        def accepts(self, _token: str) -> Any:
            return value

    return Check()


async def later() -> None: ...


@pytest.mark.parametrize("make_result", [later, lambda: 1, lambda: "user"], ids=["coroutine", "number", "string"])
def test_a_token_check_must_return_a_boolean(make_result: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    store, result = MemoryStore(), make_result()
    app = plants.create_app(store, tokens=check_that_returns(result))
    assert sender(app)(new_plant(), headers=[AUTH, JSON_TYPE]).error == 50000
    assert f"accepts() returned {type(result).__name__}, not True or False" in caplog.text
    assert store.get(1) is None
    if make_result is later:
        result.close()  # Python warns of a coroutine that was never awaited.


def test_tokens_may_be_any_object_with_accepts() -> None:
    class Odd:
        def accepts(self, token: str) -> bool:
            return len(token) % 2 == 1

    send = sender(plants.create_app(tokens=Odd()))
    assert send(new_plant(), headers=[("Authorization", "Bearer abc"), JSON_TYPE]).status == 200
    assert send(new_plant(), headers=[("Authorization", "Bearer abcd"), JSON_TYPE]).error == 40101


@pytest.mark.parametrize(
    "token",
    ["abc ", "abc\n", "ab\u017f", "ab\u212a", "\xe4bc"],
    ids=["a space", "a line feed", "a long s", "a Kelvin sign", "Latin-1"],
)
def test_the_token_check_gets_only_rfc_6750_tokens(token: str) -> None:
    checked = []

    class Open:
        def accepts(self, token: str) -> bool:
            checked.append(token)
            return True

    app = plants.create_app(tokens=Open())
    responses = [call(app, Stream(), HTTP_AUTHORIZATION=f"Bearer {presented}") for presented in ("abc", token)]
    assert [response.error for response in responses] == [40001, 40101]
    assert checked == ["abc"]


# The last token has every kind of character that RFC 6750 allows.
TOKENS = ["one", "two", "AZaz09-._~+/=="]


@pytest.mark.parametrize("token", TOKENS)
def test_each_of_several_tokens_is_valid(token: str) -> None:
    send = sender(plants.create_app(tokens=iter(TOKENS)))
    assert send(new_plant(), headers=[("Authorization", f"Bearer {token}"), JSON_TYPE]).status == 200


@pytest.mark.parametrize(
    "tokens",
    [[], [""], ["a b"], ["a,b"], ["é"], ["=a"], ["a\n"], ["ok", "\0"]],
    ids=["none", "empty", "a space", "a comma", "not ASCII", "padding first", "a line feed", "one of two"],
)
def test_create_app_rejects_an_empty_list_and_malformed_tokens(tokens: list[str]) -> None:
    message = r"^a token .* see RFC 6750$" if tokens else "^tokens has no token, so"
    with pytest.raises(ValueError, match=message) as caught:
        plants.create_app(tokens=tokens)
    assert not any(token in str(caught.value) for token in tokens if len(token) > 2)


@pytest.mark.parametrize("tokens", ["secret", b"secret", None, 1], ids=repr)
def test_create_app_rejects_what_is_not_a_list_of_tokens(tokens: Any) -> None:
    with pytest.raises(TypeError):
        plants.create_app(tokens=tokens)
