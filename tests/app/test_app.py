"""The application, called in this process."""

import io
import json
from collections.abc import Callable
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

import plants
from plants import MemoryStore, Plant, PlantStore, StoreUnavailable
from plants.stores.outage import LoggedStore
from plants.testing import FaultyStore
from tests.contract import TOKEN, Contract, new_plant
from tests.support.calls import Stream, call, no_reference_cycle


class TestInProcess(Contract):
    pass


def test_path_info_may_be_missing(app: Any) -> None:
    """PEP 3333 allows a server to leave out every variable that is empty."""
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    del environ["PATH_INFO"]
    (body,) = app(environ, lambda *_: None)
    assert json.loads(body)["error"] == 40100


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("PATH_INFO", "", 40400),
        ("PATH_INFO", "/\uff50lants", 40400),
        ("CONTENT_TYPE", None, 41500),
        ("CONTENT_TYPE", 1, 41500),
        ("CONTENT_LENGTH", None, 40001),
        ("CONTENT_LENGTH", 0, 40001),
        ("CONTENT_LENGTH", -1, 40000),
        ("HTTP_AUTHORIZATION", None, 40100),
        ("HTTP_AUTHORIZATION", 1, 40100),
        ("HTTP_CONTENT_ENCODING", 1, 41500),
    ],
)
def test_an_environ_value_that_is_no_latin_1_string_is_no_500(app: Any, key: str, value: Any, error: int) -> None:
    """PEP 3333 requires such strings, but Bottle decodes the path, and some hosts set None or a number."""
    assert call(app, Stream(), **{key: value}).error == error


def test_values_of_the_environ_may_be_none_or_numbers(app: Any) -> None:
    environ = {"QUERY_STRING": None, "HTTP_CONTENT_ENCODING": None, "CONTENT_LENGTH": len(new_plant())}
    assert call(app, io.BytesIO(new_plant()), **environ).plant == {"name": "Fern"}


def test_an_unknown_attribute_of_the_package_raises() -> None:
    with pytest.raises(AttributeError, match=r"^module 'plants' has no attribute 'crate_app'$"):
        plants.__getattr__("crate_app")


class AsyncStore(MemoryStore):
    async def add(self, plant: Plant) -> None:  # type: ignore[override]  # the mistake that is tested
        super().add(plant)

    async def check(self) -> None:  # type: ignore[override]
        raise StoreUnavailable


@pytest.mark.parametrize(
    "kind",
    [AsyncStore, lambda: LoggedStore(AsyncStore()), lambda: FaultyStore(AsyncStore())],
    ids=["embedded", "hosted", "in tests"],
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_an_asynchronous_store_is_never_a_200(kind: Callable[[], PlantStore], caplog: pytest.LogCaptureFixture) -> None:
    app = plants.create_app(kind(), tokens=[TOKEN])
    assert call(app, io.BytesIO(new_plant()), wsgi_input_terminated=True).error == 50000
    assert "add() of the store returned coroutine, not None" in caplog.text
    if isinstance(store := kind(), LoggedStore):
        with pytest.raises(TypeError, match=r"check\(\) of the store returned coroutine, not None"):
            store.check()


@pytest.mark.parametrize(
    ("body", "error"), [(new_plant(), 40003), (b'{"id": "1"}', 40002), (new_plant(name="\0"), 40002), (b"x", 40001)]
)
def test_a_failed_request_leaves_no_reference_cycle(app: Any, store: MemoryStore, body: bytes, error: int) -> None:
    store.add(Plant(1, "Fern"))
    with no_reference_cycle():
        assert call(app, io.BytesIO(body), CONTENT_LENGTH=str(len(body))).error == error
