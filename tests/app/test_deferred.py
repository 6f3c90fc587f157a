"""Deferred responses: if the server supports them, the application returns before the plant is stored."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import falcon
import pytest

import plants
from plants import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.stores import GroupCommitStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import TOKEN, new_plant
from tests.support.calls import sender


class Request:
    """A request whose response the application may defer."""

    def __init__(self, app: Any, body: bytes, **environ: object) -> None:
        self.started: list[Any] = []
        environ = {key.replace("server_", "server."): value for key, value in environ.items()}
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/plants",
            "SCRIPT_NAME": "",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_AUTHORIZATION": f"Bearer {TOKEN}",
            "wsgi.input": io.BytesIO(body),
            "server.deferred_response": True,
        } | environ
        setup_testing_defaults(environ)
        self.iterable: Iterable[bytes] = app(environ, lambda *arguments: self.started.append(arguments))

    def finish(self) -> tuple[str, list[tuple[str, str]], bytes]:
        body = b"".join(self.iterable)
        [(status, headers)] = self.started
        return status, sorted(headers), body

    def status(self) -> str:
        return self.finish()[0]


class FailingStore(GroupCommitStore):
    """A store whose commit fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def submit(self, plant: Plant) -> Callable[[], None]:  # noqa: ARG002
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
    requests = [Request(app, new_plant(id=plant_id)) for plant_id in (1, 2, 1)]
    assert [request.started for request in requests] == [[], [], []]
    assert store.get(1) is None
    assert requests[1].status() == "200 OK"
    assert store.get(1)
    assert [requests[number].status() for number in (0, 2)] == ["200 OK", "400 Bad Request"]


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
        response = Request(app, new_plant(), server_deferred_response=deferred).finish()
        log = [
            (record.name, record.levelno, record.message, record.exc_info and record.exc_info[1])
            for record in caplog.records
        ]
        results.append((response, log))
        caplog.clear()
    assert results[0] == results[1]
    assert len(log) == isinstance(error, ZeroDivisionError)


def test_a_deferred_success_is_like_any_other(app: Any) -> None:
    first, second = new_plant(id=1, tag="tree"), new_plant(id=2, tag="tree")
    assert Request(app, first).finish() == Request(app, second, server_deferred_response=False).finish()


@pytest.mark.parametrize(
    "environ", [{"server_deferred_response": False}, {"SCRIPT_NAME": "/store"}], ids=["another server", "mounted"]
)
def test_nothing_is_deferred_if_mounted_or_without_server_support(app: Any, environ: dict[str, Any]) -> None:
    request = Request(app, new_plant(), **environ)
    [(status, _)] = request.started
    assert status == "200 OK"


class Audited(SQLiteStore):
    def add(self, plant: Plant) -> None:
        super().add(plant._replace(id=100))


def test_an_add_that_a_subclass_or_a_caller_replaced_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Audited(f"{tmp_path}/audited.db")) as store:
        assert Request(plants.create_app(store, tokens=[TOKEN]), new_plant()).status() == "200 OK"
        assert store.get(100)
        added: list[Plant] = []
        monkeypatch.setattr(store, "add", added.append)
        assert Request(plants.create_app(store, tokens=[TOKEN]), new_plant()).status() == "200 OK"
        assert added == [Plant(1, "Fern")]


def test_a_response_without_a_plant_is_not_deferred(app: Any) -> None:
    request = Request(app, b"{}")
    assert len(request.started) == 1
    assert request.status() == "400 Bad Request"


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
    headers = [("Authorization", f"Bearer {TOKEN}"), ("Content-Type", "application/json")]
    assert [send(new_plant(), headers=headers).status for _ in range(2)] == [200, 400]
    assert calls == ["request", "200 OK", "request", "400 Bad Request"]
