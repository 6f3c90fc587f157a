"""Responses that wait for a commit, whatever wraps the application, Falcon or the store."""

import gc
import io
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import bottle  # type: ignore[import-untyped]
import falcon
import pytest
from pyramid.config import Configurator  # type: ignore[import-untyped]
from pyramid.wsgi import wsgiapp2  # type: ignore[import-untyped]
from webtest import lint
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import plants
from plants import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.server.request import Listener, Request
from plants.server.threads import Call
from plants.stores import GroupCommitStore, submit_of
from plants.stores.memory import MemoryStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import TOKEN, new_plant

App = Callable[..., Iterable[bytes]]
LOG = logging.getLogger("tests.server")


def calls_of(app: App, *bodies: bytes, path: str = "/plants", is_batch: bool = True) -> list[Call]:
    """Call the application for each body, as a thread of the server does for a batch."""
    calls = []
    with socket.socket() as sock:
        for body in bodies:
            request = Request(Listener(sock, app), {}, 0.0)
            environ = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "SCRIPT_NAME": "", "QUERY_STRING": ""}
            environ |= {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": "application/json"}
            request.environ |= environ | {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}", "SERVER_PROTOCOL": "HTTP/1.1"}
            setup_testing_defaults(request.environ)
            request.environ["wsgi.errors"] = io.StringIO()
            calls.append(Call(request, body, LOG, [] if is_batch else None))
    return calls


def results(calls: list[Call]) -> list[tuple[int, bytes]]:
    """Return the status and the body of each response; None, an application that failed, is a 500."""
    responses = [call.response() for call in calls]
    return [(int(each.status[:3]), each.body) if each else (500, b"") for each in responses]


PLANTS = [new_plant(id=plant_id) for plant_id in (1, 1, 2)]
SUCCESS = (200, b'{"name": "Fern"}')
IN_USE = (400, b'{"error": 40003, "message": "The id 1 is in use."}')


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PlantStore]:
    with closing(SQLiteStore(f"{tmp_path}/plants.db")) as store:
        yield store


# The application


def test_reading_any_response_commits_the_whole_batch(app: App, store: PlantStore) -> None:
    first, second, third = calls_of(app, *PLANTS)
    assert store.get(1) is None
    assert results([second]) == [IN_USE]
    assert store.get(2)
    assert results([third, first]) == [SUCCESS, SUCCESS]


class FailingStore(GroupCommitStore):
    """A store whose commit fails, or whose submit."""

    def __init__(self, error: Exception, *, submits: bool = True) -> None:
        self._error = error
        self._submits = submits

    def submit(self, plant: Plant) -> Callable[[], None]:  # noqa: ARG002  # Every commit fails.
        if not self._submits:
            raise self._error
        return self.commit

    def commit(self) -> None:
        raise self._error

    def get(self, plant_id: int) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


ERRORS = {
    "in use": PlantIdInUse(1),
    "unavailable": StoreUnavailable("no connection"),
    "Falcon's": falcon.HTTPError(507, description="full"),
    "a fault": ZeroDivisionError("secret detail"),
}


@pytest.mark.parametrize("submits", [True, False], ids=["commit", "submit"])
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_pending_error_is_like_any_other(error: Exception, submits: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = plants.create_app(FailingStore(error, submits=submits), tokens=[TOKEN])
    found = []
    for is_batch in (True, False):
        (call,) = calls_of(app, new_plant(), is_batch=is_batch)
        request = call._request
        response = call.response()
        assert response
        log = [(record.name, record.levelno, record.message, bool(record.exc_info)) for record in caplog.records]
        found.append((response.status, response.head, response.body, request.environ["plants.error"], log))
        caplog.clear()
    assert found[0] == found[1]
    assert len(log) == isinstance(error, ZeroDivisionError)


def test_a_response_leaves_no_reference_cycle(app: App) -> None:
    results(calls_of(app, *PLANTS))
    gc.collect()
    gc.disable()
    try:
        assert [status for status, _ in results(calls_of(app, *PLANTS))] == [400] * 3
        assert gc.collect() == 0
    finally:
        gc.enable()


# Wrappers of falcon.App.__call__, as error reporters and tracing agents make them


def lazy(call: App, *arguments: Any) -> Iterator[bytes]:
    yield from call(*arguments)


def copying(call: App, app: Any, environ: Any, start_response: Any) -> Iterator[bytes]:
    yield from call(app, dict(environ), start_response)


def reading_twice(call: App, *arguments: Any) -> list[bytes]:
    response = call(*arguments)
    assert [*response] == [*response]
    return [*response]


def dropping(call: App, *arguments: Any) -> list[bytes]:
    call(*arguments)
    return [SUCCESS[1]]


class Closing:
    """A response that can be closed only once."""

    def __init__(self, response: Iterable[bytes]) -> None:
        self.response = response
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        yield from self.response

    def close(self) -> None:
        self.closed += 1
        assert self.closed == 1


def closing_once(call: App, *arguments: Any) -> Closing:
    return Closing(call(*arguments))


@pytest.mark.parametrize("wrapper", [lazy, copying, reading_twice, dropping, closing_once])
def test_a_wrapper_of_falcon_changes_no_result(
    wrapper: App, app: App, store: PlantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = falcon.App.__call__
    monkeypatch.setattr(falcon.App, "__call__", lambda *arguments: wrapper(call, *arguments))
    assert results(calls_of(app, *PLANTS)) == [SUCCESS, IN_USE, SUCCESS]
    assert store.get(2)


def test_a_wrapper_of_falcon_that_raises_stores_nothing(
    app: App, store: PlantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = falcon.App.__call__

    def raising(*arguments: Any) -> Iterable[bytes]:
        call(*arguments)
        raise RuntimeError

    monkeypatch.setattr(falcon.App, "__call__", raising)
    assert results(calls_of(app, *PLANTS)) == [(500, b"")] * 3
    store.close()
    with closing(SQLiteStore(str(store._path))) as reopened:  # type: ignore[attr-defined]
        assert [reopened.get(plant_id) for plant_id in (1, 2)] == [None, None]


# Middleware around the application, and hosts


def reading_the_status(app: App) -> App:
    """Return a host that starts its response before it reads the application's, and ignores an error after that."""

    def host(environ: Any, start_response: Any) -> Iterable[bytes]:
        started: list[Any] = []
        response = app(environ, lambda *head: started.append(head[:2]))
        start_response(*started[0])
        return response

    return host


def reading_all(app: App) -> App:
    def host(environ: Any, start_response: Any) -> Iterable[bytes]:
        response: Any = app(environ, start_response)
        blocks = [*response]
        assert [*response] == blocks
        response.close()
        assert [*response] == blocks
        return blocks

    return host


def without_exc_info(app: App) -> App:
    def host(environ: Any, start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: Any) -> Any:
            return start_response(status, headers)

        return app(environ, start)

    return host


def bottle_mount(app: App) -> App:
    host = bottle.Bottle()
    host.mount("/store", app)
    return host  # type: ignore[no-any-return]


def pyramid_view(app: App) -> App:
    config = Configurator()
    config.add_route("store", "/store/*subpath")
    config.add_view(wsgiapp2(app), route_name="store")
    return config.make_wsgi_app()  # type: ignore[no-any-return]


def dispatcher(app: App) -> App:
    return DispatcherMiddleware(bottle.Bottle(), {"/store": app})


def dropping_all(app: App) -> App:
    def host(environ: Any, start_response: Any) -> Iterable[bytes]:
        app(environ, start_response)
        return [SUCCESS[1]]

    return host


HOSTS = [reading_the_status, reading_all, without_exc_info, bottle_mount, pyramid_view, dispatcher, dropping_all]


@pytest.mark.parametrize("host", [*HOSTS, validator, lint.middleware])
@pytest.mark.filterwarnings("ignore:pkg_resources")
def test_a_host_changes_no_result(host: Callable[[App], App], app: App, store: PlantStore, caplog: Any) -> None:
    path = "/store/plants" if host in (bottle_mount, pyramid_view, dispatcher) else "/plants"
    assert results(calls_of(host(app), *PLANTS, path=path)) == [SUCCESS, IN_USE, SUCCESS]
    assert store.get(2)
    assert "failed" not in caplog.text


def test_middleware_adds_headers_to_a_pending_error(app: App) -> None:
    def cors(environ: Any, start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: Any, *exc_info: Any) -> Any:
            return start_response(status, [*headers, ("Access-Control-Allow-Origin", "*")], *exc_info)

        return app(environ, start)

    _, in_use, _ = [call.response() for call in calls_of(cors, *PLANTS)]
    assert in_use
    assert in_use.status == "400 Bad Request"
    assert in_use.head.count(b"Access-Control-Allow-Origin: *") == 1


def test_a_host_that_fails_after_a_commit_is_a_500(app: App, caplog: pytest.LogCaptureFixture) -> None:
    def failing(environ: Any, start_response: Any) -> Iterator[bytes]:
        response = app(environ, start_response)

        def read() -> Iterator[bytes]:
            yield from response
            raise RuntimeError("the host failed")

        return read()

    assert results(calls_of(failing, new_plant())) == [(500, b"")]
    assert "the host failed" in caplog.text


# Stores whose add was replaced


class Audited(SQLiteStore):
    def add(self, plant: Plant) -> None:
        super().add(plant._replace(id=plant.id + 100))


class Proxy:
    """A hand-written proxy object, which claims to be of the type of its store."""

    def __init__(self, store: PlantStore) -> None:
        self.store = store
        self.added: list[int] = []

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def add(self, plant: Plant) -> None:
        self.added.append(plant.id)
        self.store.add(plant)


class Wrapper:
    """A descriptor that calls what it wraps and looks like it, as wrapt's do."""

    def __init__(self, wrapped: Any, seen: list[int]) -> None:
        self.wrapped = wrapped
        self.seen = seen
        self.__func__ = wrapped

    def __get__(self, instance: Any, owner: Any) -> Any:
        bound = self.wrapped.__get__(instance, owner)

        def call(*arguments: Any) -> Any:
            self.seen.append(arguments[-1].id)
            return bound(*arguments)

        return call


def test_only_the_own_add_of_a_store_is_bypassed(store: PlantStore) -> None:
    submit = submit_of(store)
    assert submit
    assert submit == store.submit  # type: ignore[attr-defined]
    assert submit_of(MemoryStore()) is None


def test_the_add_of_a_subclass_is_called(tmp_path: Path) -> None:
    with closing(Audited(f"{tmp_path}/audited.db")) as store:
        assert results(calls_of(plants.create_app(store, tokens=[TOKEN]), new_plant())) == [SUCCESS]
        assert store.get(101)


def test_the_add_of_a_proxy_object_is_called(store: PlantStore) -> None:
    proxy: Any = Proxy(store)
    app = plants.create_app(proxy, tokens=[TOKEN])
    assert results(calls_of(app, *PLANTS)) == [SUCCESS, IN_USE, SUCCESS]
    assert proxy.added == [1, 1, 2]


@pytest.mark.parametrize("kind", [SQLiteStore, GroupCommitStore])
def test_an_add_that_is_replaced_later_on_a_class_is_called(
    kind: type, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(kind, "add", Wrapper(GroupCommitStore.__dict__["add"], seen), raising=False)
    assert results(calls_of(app, *PLANTS)) == [SUCCESS, IN_USE, SUCCESS]
    assert seen == [1, 1, 2]


def test_an_add_that_is_assigned_later_is_called(app: App, store: PlantStore, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Plant] = []
    monkeypatch.setattr(store, "add", added.append)
    assert results(calls_of(app, new_plant())) == [SUCCESS]
    assert added == [Plant(1, "Fern")]
