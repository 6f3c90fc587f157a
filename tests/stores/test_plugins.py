"""Stores of other packages, found by an entry point, and the example of one on Redis."""

import os
import socket
import tomllib
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from plants import Plant, PlantStore, StoreUnavailable, open_store
from plants.store_suite import StoreSuite
from tests.contract import AUTH, JSON_TYPE, new_plant
from tests.stores.test_every_store import is_available, reason
from tests.support.hosted import CHECKOUT, needs, serving
from tests.support.loop_driver import is_readable
from tests.support.process import Process, free_port, wait_until

EXAMPLE = CHECKOUT / "examples" / "redis_store"
REJECTED = {
    "broken": r"^the store broken: \(no_module:Store\) cannot be imported: No module named 'no_module'$",
    "crash": r"^the store crash: \(builtins:open\) failed with FileNotFoundError$",
    "mysql": "^a store's URL starts with one of memory:, .*postgresql:, .*crash:.* in the group plants.stores$",
}


def install(folder: Path, module: str, source: str, schemes: dict[str, str]) -> None:
    """Write a module and its entry points into a folder as pip would."""
    (folder / f"{module}.py").write_text(source)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    lines = "\n".join(f"{scheme} = {value}" for scheme, value in schemes.items())
    (metadata / "entry_points.txt").write_text(f"[plants.stores]\n{lines}\n")


@pytest.mark.parametrize(("scheme", "message"), REJECTED.items(), ids=REJECTED)
def test_a_broken_or_unknown_plugin_is_rejected_by_its_name(
    scheme: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "plugins", "", {"broken": "no_module:Store", "crash": "builtins:open"})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        open_store(f"{scheme}://secret@host")
    assert "secret" not in str(caught.value)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    directory = str(tmp_path_factory.mktemp("redis"))
    options = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", directory, *options]
    with Process(command, cwd=CHECKOUT, env=dict(os.environ)):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def redis_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the example."""
    package = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    [(group, schemes)] = package["project"]["entry-points"].items()
    assert (group, package["tool"]["setuptools"]["py-modules"]) == ("plants.stores", ["plants_redis"])
    install(tmp_path, "plants_redis", (EXAMPLE / "plants_redis.py").read_text(), schemes)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@needs("redis-server")
@pytest.mark.skipif(not find_spec("redis"), reason="not installed: redis")
@pytest.mark.usefixtures("redis_folder")
class TestRedisStore(StoreSuite):
    @pytest.fixture
    def store(self, redis_url: str) -> Iterator[PlantStore]:
        from redis import Redis

        with closing(open_store(redis_url)) as store, Redis.from_url(redis_url) as redis:
            wait_until(lambda: is_available(store))
            redis.flushall()
            yield store

    def test_a_store_that_does_not_respond_is_asked_once(self) -> None:
        """After a lost response, a retry would find the id in use by the client's own plant."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
            with closing(open_store(url)) as store, pytest.raises(StoreUnavailable):
                store.add(Plant(1, "oak"))
            silent.accept()[0].close()
            assert not is_readable(silent)

    def test_a_redis_that_accepts_no_writes_fails_the_check(self, store: PlantStore, redis_url: str) -> None:
        from redis import Redis

        with Redis.from_url(redis_url) as redis:
            redis.config_set("min-replicas-to-write", 1)
            assert reason(store).startswith("Redis: ")
            redis.config_set("min-replicas-to-write", 0)

    def test_a_service_with_two_workers_uses_it(self, store: PlantStore, redis_url: str, redis_folder: Path) -> None:
        with serving(workers=2, PLANTS_STORE=redis_url, PYTHONPATH=f"{redis_folder}:{CHECKOUT}") as service:
            responses = [service.send(new_plant(id=1), headers=[AUTH, JSON_TYPE]) for _ in range(2)]
            assert [response.status for response in responses] == [200, 400]
            assert service.send(method="GET", path="/readyz", headers=[]).status == 200
        assert store.get(1)
