"""The application, called in this process."""

import io
import runpy
from collections.abc import Callable
from typing import Any

import falcon
import pytest

import plants
from plants import MemoryStore, Plant, PlantStore, falcon_defaults
from plants.probes import Constant
from plants.stores.health import LoggedStore
from plants.testing import FaultyStore
from tests.contract import TOKEN, Contract, new_plant
from tests.support.calls import Stream, call


class TestInProcess(Contract):
    pass


@pytest.mark.parametrize(
    ("key", "value", "status"),
    [
        ("PATH_INFO", "", 404),
        ("PATH_INFO", "/\uff50lants", 404),
        ("PATH_INFO", "/plants\uff50", 404),
        ("CONTENT_TYPE", None, 415),
        ("CONTENT_TYPE", 1, 415),
        ("CONTENT_LENGTH", None, 400),
        ("CONTENT_LENGTH", len(new_plant()), 200),
        ("CONTENT_LENGTH", " 25\t", 200),
        ("CONTENT_LENGTH", "0025", 200),
        ("HTTP_AUTHORIZATION", None, 401),
        ("HTTP_AUTHORIZATION", 1, 401),
        ("HTTP_CONTENT_ENCODING", 1, 415),
        ("HTTP_CONTENT_ENCODING", None, 200),
        ("QUERY_STRING", None, 200),
    ],
)
def test_an_environ_value_may_be_none_a_number_unicode_or_padded(app: Any, key: str, value: Any, status: int) -> None:
    """PEP 3333 requires Latin-1 strings, but Bottle decodes the path, and some hosts set None or a number."""
    environ = {"CONTENT_LENGTH": str(len(new_plant())), key: value}
    assert call(app, io.BytesIO(new_plant()), **environ).status == status


def test_path_info_may_be_missing(app: Any) -> None:
    """PEP 3333 allows a server to leave out every variable that is empty."""
    statuses: list[str] = []
    app({"REQUEST_METHOD": "POST", "wsgi.input": None, "wsgi.errors": None}, lambda status, _: statuses.append(status))
    assert statuses == ["401 Unauthorized"]


class AsyncStore(MemoryStore):
    async def add(self, plant: Plant) -> None:  # type: ignore[override]  # the mistake that is tested
        super().add(plant)


@pytest.mark.parametrize(
    "kind",
    [AsyncStore, lambda: LoggedStore(AsyncStore()), lambda: FaultyStore(AsyncStore())],
    ids=["embedded", "hosted", "in tests"],
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_an_asynchronous_store_is_never_a_200(kind: Callable[[], PlantStore], caplog: pytest.LogCaptureFixture) -> None:
    app = plants.create_app(kind(), tokens=[TOKEN])
    assert call(app, io.BytesIO(new_plant()), wsgi_input_terminated=True).error == 50000
    assert "the store returned coroutine, not None" in caplog.text


class Observed(falcon.App):  # type: ignore[type-arg]  # OpenTelemetry's class is not generic.
    __class_getitem__ = None

    def __init__(self, **options: Any) -> None:
        self.seen: list[str] = []
        options["middleware"].insert(0, self)
        super().__init__(**options)

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        self.seen.append(req.path)

    def process_response(self, _req: falcon.Request, resp: falcon.Response, *_: object) -> None:
        assert isinstance(resp.status, str)
        self.seen += resp.status.split(" ", 1)  # as OpenTelemetry and Datadog do


def test_a_monitoring_tool_may_replace_the_falcon_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry replaces ``falcon.App`` with a class that is not generic, and requires a list of middleware."""
    monkeypatch.setattr(falcon, "App", Observed)
    app = runpy.run_path(falcon_defaults.__file__)["App"]()
    app.add_route("/livez", Constant(b""))
    assert call(app, Stream()).error == 40400
    assert call(app, Stream(), PATH_INFO="/livez", REQUEST_METHOD="GET").status == 200
    assert app.seen == ["/plants", "404", "Not Found", "/livez", "200", "OK"]
