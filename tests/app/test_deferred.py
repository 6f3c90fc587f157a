"""Creates whose commit the server waits for, whatever wraps the application, Falcon or the store."""

import io
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import bottle  # type: ignore[import-untyped]
import falcon
import pytest
from pyramid.config import Configurator  # type: ignore[import-untyped]
from pyramid.wsgi import wsgiapp2  # type: ignore[import-untyped]
from werkzeug.test import run_wsgi_app

import plants
from plants import Plant, PlantIdInUse, PlantStore, StoreUnavailable
from plants.server.request import Request, SizedBody
from plants.server.response import Response
from plants.server.threads import Caller
from plants.stores import Done, GroupCommitStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import TOKEN, new_plant
from tests.support.calls import no_reference_cycle
from tests.support.loop_driver import PIPE, new_request
from tests.support.process import wait_until

App = Callable[..., Iterable[bytes]]
Patch = pytest.MonkeyPatch
LOG = logging.getLogger("tests.server")


def results(app: App, *bodies: bytes, path: str = "/plants") -> list[tuple[int, bytes]]:
    """Create plants as the server does; return the status and the body of each response, in the order of the plants.

    An application that failed is a 500.
    """
    return [(int(each.status[:3]), each.body) if each else (500, b"") for each in responses(app, *bodies, path=path)]


def responses(app: App, *bodies: bytes, path: str = "/plants") -> list[Response | None]:
    caller = Caller(LOG, PIPE[1])
    no_connection: Any = None
    requests = [new_request(app, **ENVIRON, PATH_INFO=path, CONTENT_LENGTH=str(len(body))) for body in bodies]
    for request, body in zip(requests, bodies, strict=True):
        request.body = SizedBody(len(body))
        request.body.feed(body)
        setup_testing_defaults(request.environ)
        request.environ["wsgi.errors"] = io.StringIO()
        caller.call((no_connection, request), body)
    caller.begin_work()
    found: dict[Request, Response | None] = {}

    def are_complete() -> bool:
        found.update((request, response) for (_, request), response in caller.completed())
        return len(found) == len(requests)

    wait_until(are_complete)
    return [found[request] for request in requests]


ENVIRON = {
    "REQUEST_METHOD": "POST",
    "SCRIPT_NAME": "",
    "QUERY_STRING": "",
    "CONTENT_TYPE": "application/json",
    "HTTP_AUTHORIZATION": f"Bearer {TOKEN}",
    "SERVER_PROTOCOL": "HTTP/1.1",
}
PLANTS = [new_plant(id=plant_id) for plant_id in (1, 1, 2)]
SUCCESS = (200, b'{"name": "Fern"}')
IN_USE = (400, b'{"error": 40003, "message": "The id 1 is in use."}')


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PlantStore]:
    with closing(SQLiteStore(f"{tmp_path}/plants.db")) as store:
        yield store


class FailingStore(GroupCommitStore):
    """A store whose commit fails, or whose submit."""

    timeout = 60

    def __init__(self, error: Any, *, submits: bool) -> None:
        self._error = error
        self._submits = submits

    def submit(self, plant: Plant, done: Done) -> None:  # noqa: ARG002  # Every commit fails.
        if not self._submits:
            raise self._error
        done(self._error)

    def raise_if_down(self) -> None: ...
    def submit_check(self, done: Done) -> None: ...
    def get(self, plant_id: int) -> None: ...
    def close(self) -> None: ...


ERRORS = {
    "in use": PlantIdInUse(1),
    "unavailable": StoreUnavailable("no connection"),
    "Falcon's": falcon.HTTPError(507, description="full"),
    "a fault": ZeroDivisionError("secret detail"),
    "Falcon's status": falcon.HTTPStatus(204),
}


@pytest.mark.parametrize("submits", [True, False], ids=["commit", "submit"])
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_pending_error_is_like_any_other(error: Exception, submits: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = plants.create_app(FailingStore(error, submits=submits), tokens=[TOKEN])
    found = []
    for each in (app, partial(waiting, app)):
        [response] = responses(each, new_plant())
        assert response
        log = [(record.name, record.levelno, record.message, bool(record.exc_info)) for record in caplog.records]
        found.append((response.status, response.head, response.body, log))
        caplog.clear()
    assert found[0] == found[1]
    assert len(log) == isinstance(error, ZeroDivisionError | falcon.HTTPStatus)


@pytest.mark.parametrize("submits", [True, False], ids=["commit", "submit"])
def test_a_commit_that_is_interrupted_ends_no_thread(submits: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = plants.create_app(FailingStore(SystemExit(3), submits=submits), tokens=[TOKEN])
    assert [status for status, _ in results(app, *PLANTS)] == [500] * 3
    assert caplog.text.count("SystemExit: 3") == 3


def test_a_response_leaves_no_reference_cycle(app: App) -> None:
    results(app, *PLANTS)
    with no_reference_cycle():
        assert [status for status, _ in results(app, *PLANTS)] == [400] * 3


def waiting(app: App, environ: Any, start_response: Any) -> Iterable[bytes]:
    """Let the application wait for the commit, so that this middleware sees a failure."""
    environ.pop("server.pending", None)
    return app(environ, start_response)


def test_an_outage_is_seen_by_middleware_while_the_store_is_down(app: App, tmp_path: Path) -> None:
    seen = []

    def recording(environ: Any, start_response: Any) -> Iterable[bytes]:
        def start(status: str, *rest: Any) -> Any:
            seen.append(status[:3])
            return start_response(status, *rest)

        return app(environ, start)

    assert results(recording, PLANTS[0]) == [SUCCESS]
    (tmp_path / "plants.db").unlink()

    def is_seen() -> bool:
        assert [status for status, _ in results(recording, PLANTS[2])] == [503]
        return seen[-1] == "503"

    wait_until(is_seen)


# Wrappers: error reporters and tracing agents wrap falcon.App.__call__, and middleware wraps the application


def lazy(app: App, *arguments: Any) -> Iterator[bytes]:
    yield from app(*arguments)


def copying_the_environ(app: App, environ: Any, start_response: Any) -> Iterator[bytes]:
    yield from app(dict(environ), start_response)


def reading_all(app: App, *arguments: Any) -> list[bytes]:
    response: Any = app(*arguments)
    blocks = [*response]
    assert [*response] == blocks
    getattr(response, "close", list)()
    assert [*response] == blocks
    return blocks


def dropping(app: App, *arguments: Any) -> list[bytes]:
    app(*arguments)
    return [SUCCESS[1]]


def starting_early(app: App, environ: Any, start_response: Any) -> Iterable[bytes]:
    """Start the response before reading the application's, and ignore an error after that."""
    started: list[Any] = []
    response = app(environ, lambda *head: started.append(head[:2]))
    start_response(*started[0])
    return response


def through_werkzeug(app: App, environ: Any, start_response: Any) -> Iterable[bytes]:
    """Read the first block at once, and raise an error that replaces the response, as WebOb does, too."""
    blocks, status, headers = run_wsgi_app(app, environ)
    start_response(status, headers.to_wsgi_list())
    return blocks


def validated(app: App, *arguments: Any) -> Iterable[bytes]:
    return validator(app)(*arguments)


WRAPPERS = [lazy, copying_the_environ, reading_all, dropping, starting_early, through_werkzeug, validated]


@pytest.mark.parametrize("place", ["Falcon", "the application"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_changes_no_result(
    wrapper: App, place: str, app: App, store: PlantStore, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    call = falcon.App.__call__
    if place == "Falcon":
        monkeypatch.setattr(falcon.App, "__call__", lambda own, *arguments: wrapper(partial(call, own), *arguments))
    else:
        app = partial(wrapper, app)
    assert results(app, *PLANTS) == [SUCCESS, IN_USE, SUCCESS]
    assert store.get(2)
    assert "failed" not in caplog.text


def test_a_host_that_fails_stores_nothing(app: App, store: PlantStore, caplog: pytest.LogCaptureFixture) -> None:
    def failing(*arguments: Any) -> Iterator[bytes]:
        yield from app(*arguments)
        raise RuntimeError("the host failed")

    assert results(failing, PLANTS[0]) == [(500, b"")]
    assert "the host failed" in caplog.text
    assert store.get(1) is None


def test_a_plant_that_a_host_rejects_is_not_stored(app: App, store: PlantStore) -> None:
    def rejecting(environ: Any, start_response: Any) -> Iterable[bytes]:
        app(environ, lambda *_: list)
        start_response("403 Forbidden", [])
        return [b"not today"]

    assert results(rejecting, PLANTS[0]) == [(403, b"not today")]
    assert store.get(1) is None


def bottle_mount(app: App) -> App:
    host = bottle.Bottle()
    host.mount("/store", app)
    return host  # type: ignore[no-any-return]


def pyramid_view(app: App) -> App:
    config = Configurator()
    config.add_route("store", "/store/*subpath")
    config.add_view(wsgiapp2(app), route_name="store")
    return config.make_wsgi_app()  # type: ignore[no-any-return]


@pytest.mark.parametrize("mount", [bottle_mount, pyramid_view])
def test_a_host_changes_no_result(mount: Callable[[App], App], app: App, store: PlantStore, caplog: Any) -> None:
    assert results(mount(app), *PLANTS, path="/store/plants") == [SUCCESS, IN_USE, SUCCESS]
    assert store.get(2)
    assert "failed" not in caplog.text


def test_middleware_that_waits_adds_headers_to_a_failure(app: App) -> None:
    def cors(environ: Any, start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: Any, *exc_info: Any) -> Any:
            return start_response(status, [*headers, ("Access-Control-Allow-Origin", "*")], *exc_info)

        return waiting(app, environ, start)

    _, in_use, _ = responses(cors, *PLANTS)
    assert in_use
    assert in_use.status == "400 Bad Request"
    assert in_use.head.count(b"Access-Control-Allow-Origin: *") == 1


def importing(app: App, environ: Any, start_response: Any) -> Iterable[bytes]:
    """Create several plants, as a host's own operation does, and respond with their statuses."""
    statuses = []
    for body in PLANTS:
        part = dict(environ) | {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        statuses.append(b"")

        def start(status: str, _headers: Any, _exc_info: Any = None) -> None:
            statuses[-1] = status[:3].encode()

        b"".join(app(part, start))
    start_response("200 OK", [])
    return [b" ".join(statuses)]


def test_a_host_that_waits_makes_a_response_of_several(app: App) -> None:
    assert results(partial(waiting, partial(importing, app)), b"") == [(200, b"200 400 200")]


def test_a_host_with_several_creates_gets_the_first_failure(app: App, store: PlantStore) -> None:
    assert results(partial(importing, app), b"") == [IN_USE]
    assert store.get(1)
    assert store.get(2) is None


# Stores whose add was replaced


class Proxy:
    """A hand-written proxy object, which claims to be of the type of its store."""

    def __init__(self, store: Any, add: Callable[..., None]) -> None:
        self.store = store
        self.replacement = partial(add, store)

    def add(self, plant: Plant) -> None:
        self.replacement(plant)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "by a proxy object": lambda store, add, _: Proxy(store, add),
    "on the class": lambda _store, add, patch: patch.setattr(SQLiteStore, "add", add, raising=False),
    "on the base class": lambda _store, add, patch: patch.setattr(GroupCommitStore, "add", add),
    "on the object": lambda store, add, patch: patch.setattr(store, "add", partial(add, store)),
}


@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_an_add_that_was_replaced_is_called(
    replace: Callable[..., Any], app: App, store: PlantStore, monkeypatch: Patch
) -> None:
    original = GroupCommitStore.add
    seen = []

    def add(own: GroupCommitStore, plant: Plant) -> None:
        seen.append(plant.id)
        original(own, plant)

    if other := replace(store, add, monkeypatch):
        app = plants.create_app(other, tokens=[TOKEN])
    assert results(app, *PLANTS) == [SUCCESS, IN_USE, SUCCESS]
    assert seen == [1, 1, 2]
