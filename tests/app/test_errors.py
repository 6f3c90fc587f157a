"""The response to a failure, its line in the log, and Error bodies."""

import copy
import json
import logging

import falcon
import pytest
from marshmallow import ValidationError

import plants
from plants import PlantIdInUse, StoreUnavailable
from plants.errors import ErrorCode, error_response, http_error
from plants.stores import PlantRefused
from plants.testing import FaultyStore
from tests.contract import AUTH, JSON_TYPE, TOKEN, Response, new_plant
from tests.support.calls import sender


def test_a_store_error_can_be_copied() -> None:
    error = copy.copy(PlantIdInUse(17))
    assert (error.plant_id, str(error)) == (17, "a plant with the id 17 is already in the store")


def response_with(fault: Exception) -> Response:
    store = FaultyStore()
    store.fault = fault
    return sender(plants.create_app(store, tokens=[TOKEN]))(new_plant(), headers=[AUTH, JSON_TYPE])


def test_a_store_that_cannot_be_reached_is_503(caplog: pytest.LogCaptureFixture) -> None:
    response = response_with(StoreUnavailable("no connection"))
    assert (response.error, response.headers["retry-after"]) == (50300, "1")
    assert "no connection" not in response.message
    assert caplog.messages == []


def test_a_refused_plant_is_503_without_retry_after(caplog: pytest.LogCaptureFixture) -> None:
    response = response_with(PlantRefused("CHECK constraint failed: name_not_empty"))
    assert (response.error, response.headers.get("retry-after")) == (50301, None)
    assert caplog.messages == ["the store refused a plant: CHECK constraint failed: name_not_empty"]


@pytest.mark.parametrize("kind", [ZeroDivisionError, ValidationError])
def test_a_fault_is_500_with_its_traceback_only_in_the_log(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    response = response_with(kind("secret detail"))
    assert response.error == 50000
    assert "secret" not in response.message
    assert caplog.record_tuples == [("plants.errors", logging.ERROR, "a request failed")]
    assert "secret detail" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (falcon.HTTPError(799), 79900, "The request failed."),
        (falcon.HTTPError(431), 43100, "Request Header Fields Too Large"),
        (falcon.HTTPError(418, description="x" * 1000), 41800, "x" * 499),
        *((http_error(code), code, code.message) for code in ErrorCode),
    ],
)
def test_any_http_error_has_a_code_and_a_short_message(error: falcon.HTTPError, code: int, message: str) -> None:
    assert json.loads(error_response(error)[2]) == {"error": code, "message": message}
