"""Deferred responses: if the server supports them, the application returns before the plant is stored."""

import io
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import falcon
import pytest

import plants
from plants import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.stores import GroupCommitStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.calls import Call, sender


def request(app: Any, body: bytes, **environ: Any) -> Call:
    """Make a request whose response the application may defer."""
    environ = {"server_deferred_response": True, "wsgi_input_terminated": True} | environ
    return Call(app, io.BytesIO(body), **environ)


class FailingStore(GroupCommitStore):
    """A store whose commit fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def submit(self, plant: Plant) -> Callable[[], None]:  # noqa: ARG002  # Every commit fails.
        return self.commit

    def commit(self) -> None:
        raise self._error

    def get(self, plant_id: int) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PlantStore]:
    with closing(SQLiteStore(f"{tmp_path}/plants.db")) as store:
        yield store


def test_reading_any_response_commits_the_whole_batch(app: Any, store: PlantStore) -> None:
    requests = [request(app, new_plant(id=plant_id)) for plant_id in (1, 2, 1)]
    assert [request.started for request in requests] == [[], [], []]
    assert store.get(1) is None
    assert requests[1].response().status == 200
    assert store.get(1)
    assert [requests[number].response().status for number in (0, 2)] == [200, 400]


ERRORS = {
    "in use": PlantIdInUse(1),
    "unavailable": StoreUnavailable("no connection"),
    "Falcon's": falcon.HTTPError(507, description="full"),
    "a fault": ZeroDivisionError("secret detail"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_deferred_error_is_like_any_other(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    app = plants.create_app(FailingStore(error), tokens=[TOKEN])
    results = []
    for deferred in (True, False):
        call = request(app, new_plant(), server_deferred_response=deferred)
        response = call.response()
        log = [
            (record.name, record.levelno, record.message, record.exc_info and record.exc_info[1])
            for record in caplog.records
        ]
        results.append((response, call.started[0][0], log))
        caplog.clear()
    assert results[0] == results[1]
    assert len(log) == isinstance(error, ZeroDivisionError)


def test_a_deferred_success_is_like_any_other(app: Any) -> None:
    first = request(app, new_plant(id=1, tag="tree"))
    second = request(app, new_plant(id=2, tag="tree"), server_deferred_response=False)
    assert (first.response(), first.started) == (second.response(), second.started)


@pytest.mark.parametrize(
    ("body", "environ", "status"),
    [
        (new_plant(), {"server_deferred_response": False}, "200 OK"),
        (new_plant(), {"SCRIPT_NAME": "/store"}, "200 OK"),
        (b"{}", {}, "400 Bad Request"),
    ],
    ids=["another server", "mounted", "no plant"],
)
def test_nothing_else_is_deferred(app: Any, body: bytes, environ: dict[str, Any], status: str) -> None:
    call = request(app, body, **environ)
    assert [started for started, _ in call.started] == [status]
    call.response()


class Audited(SQLiteStore):
    def add(self, plant: Plant) -> None:
        super().add(plant._replace(id=100))


def test_an_add_that_a_subclass_or_a_caller_replaced_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Audited(f"{tmp_path}/audited.db")) as store:
        assert request(plants.create_app(store, tokens=[TOKEN]), new_plant()).response().status == 200
        assert store.get(100)
        added: list[Plant] = []
        monkeypatch.setattr(store, "add", added.append)
        assert request(plants.create_app(store, tokens=[TOKEN]), new_plant()).response().status == 200
        assert added == [Plant(1, "Fern")]


def test_pep_3333_middleware_sees_each_request_once(app: Any) -> None:
    calls: list[str] = []

    def middleware(environ: Any, start_response: Any) -> Iterator[bytes]:
        calls.append("request")

        def start(status: str, headers: Any, exc_info: Any = None) -> Any:
            calls.append(status)
            return start_response(status, headers, exc_info)

        environ["server.deferred_response"] = True
        yield from app(environ, start)

    send = sender(middleware)
    assert [send(new_plant(), headers=[AUTH, JSON_TYPE]).status for _ in range(2)] == [200, 400]
    assert calls == ["request", "200 OK", "request", "400 Bad Request"]
