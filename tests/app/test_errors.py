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
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.calls import sender


def test_a_store_error_can_be_copied() -> None:
    error = copy.copy(PlantIdInUse(17))
    assert (error.plant_id, str(error)) == (17, "a plant with the id 17 is already in the store")


@pytest.mark.parametrize(
    ("fault", "error", "retry_after", "logged"),
    [
        (StoreUnavailable("secret detail"), 50300, "1", []),
        (PlantRefused("secret detail"), 50301, None, ["the store refused a plant: secret detail"]),
        (ZeroDivisionError("secret detail"), 50000, None, ["a request failed"]),
        (ValidationError("secret detail"), 50000, None, ["a request failed"]),
    ],
    ids=repr,
)
def test_the_details_of_a_failure_are_only_in_the_log(
    fault: Exception, error: int, retry_after: str | None, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore()
    store.fault = fault
    response = sender(plants.create_app(store, tokens=[TOKEN]))(new_plant(), headers=[AUTH, JSON_TYPE])
    assert (response.error, response.headers.get("retry-after")) == (error, retry_after)
    assert "secret" not in response.message
    assert caplog.record_tuples == [("plants.errors", logging.ERROR, message) for message in logged]
    assert ("secret detail" in caplog.text) == bool(logged)
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
