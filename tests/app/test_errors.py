"""The response to a failure, and its line in the log."""

import copy
import io
import logging
from typing import Any

import falcon
import pytest
from marshmallow import ValidationError

import plants
from plants import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.falcon_defaults import json_app
from plants.testing import FaultyStore
from tests.contract import AUTH, JSON_TYPE, TOKEN, Response, new_plant
from tests.support.calls import call, sender


def test_the_message_names_the_id_that_is_in_use(app: Any, store: PlantStore) -> None:
    store.add(Plant(1, "Fern"))
    assert call(app, io.BytesIO(new_plant()), wsgi_input_terminated=True).message == "The id 1 is in use."


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


class Failing:
    """A resource that raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def on_post(self, *_arguments: Any) -> None:
        raise self.error


def response_to(error: Exception) -> Response:
    app = json_app()
    app.add_route("/plants", Failing(error))
    return sender(app)(headers=[])


def test_a_message_is_shorter_than_500_characters() -> None:
    assert response_to(falcon.HTTPError(418, description="x" * 1000)).message == "x" * 499


def test_an_unknown_status_has_an_error_body() -> None:
    assert response_to(falcon.HTTPError(799)).error == 79900
