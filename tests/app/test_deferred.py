"""Creates whose commit the server waits for, whatever wraps the application, Falcon or the store."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import plants
from plants import Plant, PlantStore
from plants.stores.group_commit import GroupCommitStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import TOKEN, new_plant
from tests.support.calls import Stream, call, no_reference_cycle
from tests.support.loop_driver import Driver
from tests.support.process import wait_until

App = Callable[..., Iterable[bytes]]


def results(app: App, *bodies: bytes) -> list[tuple[int, bytes]]:
    """Create plants, one after the other, through the event loop; return the status and the body of each response."""
    with served(app) as create:
        return [(int(head[9:12]), content) for head, content in map(create, bodies)]


@contextmanager
def served(app: App) -> Iterator[Callable[[bytes], tuple[bytes, bytes]]]:
    """Return a function that creates a plant; it returns the head of the response without its date, and the body."""
    driver = Driver(app=app)

    def create(body: bytes) -> tuple[bytes, bytes]:
        client, _ = driver.connect(HEAD % len(body) + body)
        driver.run_until_readable(client)
        head, _, content = client.recv(10_000).partition(b"\r\n\r\n")
        return re.sub(rb"\r\nDate: .*", b"", head), content

    yield create
    driver.end()


HEAD = (
    b"POST /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\nContent-Type: application/json\r\n"
    b"Content-Length: %%d\r\n\r\n" % TOKEN.encode()
)
PLANTS = [new_plant(id=plant_id) for plant_id in (1, 1, 2)]
SUCCESS = (200, b'{"name": "Fern"}\n')
IN_USE = (400, b'{"error": 40003, "message": "The id 1 is in use."}\n')


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PlantStore]:
    with closing(SQLiteStore(f"{tmp_path}/plants.db")) as store:
        yield store


def test_a_failed_request_leaves_no_reference_cycle(app: App) -> None:
    errors = {new_plant(): b"40003", b'{"id": "1"}': b"40002", new_plant(name="\0"): b"40002", b"x": b"40001"}
    with served(app) as create:
        for _ in range(2):
            create(new_plant())
        with no_reference_cycle():
            assert all(error in create(body)[1] for body, error in errors.items())


def waiting(app: App, environ: Any, start_response: Any) -> Iterable[bytes]:
    """Let the application wait for the commit, so that this middleware sees a failure."""
    environ.pop("server.pending", None)
    return app(environ, start_response)


def test_an_outage_is_seen_by_middleware_while_the_store_is_down(app: App, tmp_path: Path) -> None:
    assert results(app, PLANTS[0]) == [SUCCESS]
    (tmp_path / "plants.db").unlink()

    def is_seen() -> bool:
        assert [status for status, _ in results(app, PLANTS[2])] == [503]
        return call(app, Stream(PLANTS[2]), wsgi_input_terminated=True, **{"server.pending": []}).status == 503

    wait_until(is_seen)


def copying_the_environ(app: App, environ: Any, start_response: Any) -> Iterator[bytes]:
    yield from app(dict(environ), start_response)


def dropping(app: App, *arguments: Any) -> list[bytes]:
    app(*arguments)
    return [SUCCESS[1]]


@pytest.mark.parametrize("wrapper", [copying_the_environ, dropping])
def test_a_wrapper_changes_no_result(
    wrapper: App, app: App, store: PlantStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert results(partial(wrapper, app), *PLANTS) == [SUCCESS, IN_USE, SUCCESS]
    assert store.get(2)
    assert "failed" not in caplog.text


def failing(app: App, *arguments: Any) -> Iterator[bytes]:
    yield from app(*arguments)
    raise RuntimeError("the host failed")


def rejecting(app: App, environ: Any, start_response: Any) -> list[bytes]:
    app(environ, lambda *_: list)
    start_response("403 Forbidden", [])
    return [b"not today"]


@pytest.mark.parametrize(("wrapper", "status"), [(failing, 500), (rejecting, 403)])
def test_nothing_is_stored_if_a_wrapper_fails_or_rejects(
    wrapper: App, status: int, app: App, store: PlantStore
) -> None:
    [(found, _)] = results(partial(wrapper, app), PLANTS[0])
    assert found == status
    assert store.get(1) is None


class Proxy:
    """A proxy object, which claims to be of the type of its store."""

    __class__ = property(lambda self: type(self.store))

    def __init__(self, store: Any, add: Callable[..., None]) -> None:
        self.store = store
        self.add = partial(add, store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "by a subclass": lambda store, add, patch: patch.setattr(
        store, "__class__", type("Subclass", (SQLiteStore,), {"add": add})
    ),
    "by a proxy object": lambda store, add, _: Proxy(store, add),
    "on the class": lambda _store, add, patch: patch.setattr(SQLiteStore, "add", add, raising=False),
    "on the base class": lambda _store, add, patch: patch.setattr(GroupCommitStore, "add", add),
    "on the object": lambda store, add, patch: patch.setattr(store, "add", partial(add, store)),
}


@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_an_add_that_was_replaced_is_called(
    replace: Callable[..., Any], app: App, store: PlantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = GroupCommitStore.add
    seen = []
    threads = set()

    def add(own: GroupCommitStore, plant: Plant) -> None:
        seen.append(plant.id)
        threads.add(threading.current_thread())
        original(own, plant)

    if other := replace(store, add, monkeypatch):
        app = plants.create_app(other, tokens=[TOKEN])
    assert results(app, *PLANTS) == [SUCCESS, IN_USE, SUCCESS]
    assert seen == [1, 1, 2]
    # It may block the event loop, unless a server is told that this store does.
    assert (threading.current_thread() in threads) == bool(other)
