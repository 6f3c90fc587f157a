"""The response to a failure, and its line in the log."""

import copy
import io
import logging
import pickle
from typing import Any

import falcon
import pytest
from marshmallow import ValidationError

import plants
from plants import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.falcon_defaults import json_app
from plants.schemas import NotAPlant
from plants.testing import FaultyStore
from tests.contract import AUTH, JSON_TYPE, TOKEN, Response, new_plant
from tests.support.calls import call, sender


def test_the_message_names_the_id_that_is_in_use(app: Any, store: PlantStore) -> None:
    store.add(Plant(1, "Fern"))
    assert call(app, io.BytesIO(new_plant()), wsgi_input_terminated=True).message == "The id 1 is in use."


@pytest.mark.parametrize(
    "duplicate", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"]
)
def test_a_store_error_can_be_copied_and_pickled(duplicate: Any) -> None:
    error = duplicate(PlantIdInUse(17))
    assert (error.plant_id, str(error)) == (17, "a plant with the id 17 is already in the store")


def faulty(fault: Exception) -> FaultyStore:
    store = FaultyStore()
    store.fault = fault
    return store


def test_a_store_that_cannot_be_reached_is_503(caplog: pytest.LogCaptureFixture) -> None:
    response = sender(plants.create_app(faulty(StoreUnavailable("no connection")), tokens=[TOKEN]))(
        new_plant(), headers=[AUTH, JSON_TYPE]
    )
    assert response.error == 50300
    assert response.headers["retry-after"] == "1"
    assert "no connection" not in response.message
    assert caplog.messages == []


@pytest.mark.parametrize("messages", ["no", {"id": ["no"]}, {"id": {"x": ["no"]}}], ids=repr)
def test_a_validation_error_raised_by_a_store_is_500(messages: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = plants.create_app(faulty(ValidationError(messages)), tokens=[TOKEN])
    assert sender(app)(new_plant(), headers=[AUTH, JSON_TYPE]).error == 50000
    assert caplog.messages == ["a request failed"]


def test_a_fault_is_500_with_its_traceback_only_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    response = sender(plants.create_app(faulty(ZeroDivisionError("secret detail")), tokens=[TOKEN]))(
        new_plant(), headers=[AUTH, JSON_TYPE]
    )
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
    assert response_to(NotAPlant("x" * 1000)).message == f"The body is not a NewPlant. {'x' * 471}"
    assert response_to(falcon.HTTPError(418, description="x" * 1000)).message == "x" * 499


def test_an_unknown_status_has_an_error_body() -> None:
    assert response_to(falcon.HTTPError(799)).error == 79900
