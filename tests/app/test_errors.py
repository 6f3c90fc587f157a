"""The response to a failure, its line in the log, and Error bodies."""

import copy
import json
import logging
from functools import partial

import falcon
import pytest
from marshmallow import ValidationError

import plants
from plants import Plant, PlantIdInUse
from plants.errors import ErrorCode, error_response, http_error
from plants.stores import PlantRefused, StoreUnusable, Wait
from plants.testing import FaultyStore
from tests.app.test_deferred import served, waiting
from tests.contract import TOKEN, new_plant


class FailingStore(FaultyStore):
    def __len__(self) -> int:
        return 0  # It is false, and still the store that was given.

    def begin(self, _plant: Plant | None) -> Wait:
        return lambda done, key: done([(key, self.fault)])


@pytest.mark.parametrize(
    ("fault", "error", "retry_after", "logged"),
    [
        (copy.copy(PlantIdInUse(1)), 40003, False, []),  # A store may copy or pickle it.
        (StoreUnusable("secret detail"), 50300, True, []),
        (PlantRefused("secret detail"), 50301, False, ["the store refused a plant: secret detail"]),
        (ValidationError("secret detail"), 50000, False, ["a request failed"]),
        (falcon.HTTPStatus("204 secret detail"), 50000, False, ["a request failed"]),
    ],
    ids=repr,
)
def test_the_details_of_a_failure_are_only_in_the_log(
    fault: Exception, error: int, retry_after: bool, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    store = FailingStore()
    store.fail(fault)
    app = plants.create_app(store, tokens=[TOKEN])
    responses = set()
    for each in (app, partial(waiting, app)):  # The server waits for the store, or the application does.
        caplog.clear()
        with served(each) as create:
            responses.add(create(new_plant()))
        assert caplog.record_tuples == [("plants.errors", logging.ERROR, message) for message in logged]
        assert ("secret detail" in caplog.text) == bool(logged)
        assert TOKEN not in caplog.text
    [(head, body)] = responses
    assert (json.loads(body)["error"], b"\r\nRetry-After: 1" in head) == (error, retry_after)
    assert b"secret" not in body


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (falcon.HTTPError(799), 79900, "The request failed."),
        (falcon.HTTPError(418, description="x" * 1000), 41800, "x" * 499),
        *((http_error(code), code, code.message) for code in ErrorCode),
    ],
)
def test_any_http_error_has_a_code_and_a_short_message(error: falcon.HTTPError, code: int, message: str) -> None:
    assert json.loads(error_response(error)[2]) == {"error": code, "message": message}
