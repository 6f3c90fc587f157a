"""A store that waits, fails or is gone, as clients and operators see it."""

import http.client
import json
import os
import resource
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.audits.outages import Outage, Place, file_held, server_suspended, table_locked
from tests.contract import AUTH, JSON_TYPE, Response, new_plant
from tests.support.hosted import Service, serving
from tests.support.postgres_server import PostgresServer
from tests.support.process import children, resident_bytes, wait_until


def create(service: Service, plant_id: int) -> Response:
    return service.send(new_plant(id=plant_id), headers=[AUTH, JSON_TYPE])


def ids_in(file: Path) -> set[int]:
    with closing(sqlite3.connect(file)) as connection:
        return {plant_id for (plant_id,) in connection.execute("SELECT id FROM plants")}


@pytest.mark.parametrize("stall", [file_held, table_locked, server_suspended])
@pytest.mark.usefixtures("no_subprocess_coverage")
def test_requests_and_probes_get_responses_while_the_store_waits(
    stall: Outage, tmp_path: Path, server: PostgresServer
) -> None:
    place = Place(tmp_path, server, server)
    url = f"sqlite:///{place.file}" if stall is file_held else server.url
    with serving(PLANTS_STORE=url) as service, ThreadPoolExecutor(64) as pool:
        assert create(service, 0).status == 200
        with stall(place):
            creates = [pool.submit(create, service, number) for number in range(1, 65)]
            probes_meanwhile = 0
            while wait(creates, timeout=0.02).not_done:
                assert service.send(method="GET", path="/livez", headers=[]).status == 200
                probes_meanwhile += bool(wait(creates, timeout=0).not_done)
            assert probes_meanwhile
            assert {created.result().error for created in creates} == {50300}
        wait_until(lambda: create(service, 100).status == 200)


@contextmanager
def disk_full(service: Service) -> Iterator[None]:
    """Prevent the workers of a service from writing to files, as a full disk does."""
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in children(service.process.pid)}
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
    yield
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_creates_get_503_on_a_full_disk_and_recover(tmp_path: Path) -> None:
    file = tmp_path / "plants.db"
    with serving(PLANTS_STORE=f"sqlite:///{file}") as service, ThreadPoolExecutor(40) as pool:
        assert {create(service, number).status for number in range(10)} == {200}
        with disk_full(service):
            rejected = list(pool.map(lambda number: create(service, number), range(10, 50)))
            assert {response.error for response in rejected} == {50300}
            assert all(response.headers["retry-after"] for response in rejected)
            assert service.send(method="GET", path="/livez", headers=[]).status == 200
            assert service.send(method="GET", path="/readyz", headers=[]).error == 50300
        wait_until(lambda: create(service, 50).status == 200)
        assert service.send(method="GET", path="/readyz", headers=[]).status == 200
        assert {create(service, number).error for number in range(10)} == {40003}
        again = {number for number in range(10, 50) if create(service, number).status == 200}
    assert ids_in(file) >= {*range(10), *again, 50}


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_an_outage_logs_one_line_at_its_start_and_at_its_end(tmp_path: Path) -> None:
    def lines_of_the_store() -> list[str]:
        return [line for line in service.lines if "plants.stores" in line]

    file, elsewhere = tmp_path / "plants.db", tmp_path / "elsewhere"
    with serving(PLANTS_STORE=f"sqlite:///{file}") as service:
        assert create(service, 0).status == 200
        file.rename(elsewhere)
        wait_until(lambda: create(service, 1).status == 503)
        assert {create(service, 1).status for _ in range(100)} == {503}
        service.wait_for("plants.stores")
        elsewhere.rename(file)
        ids = count(2)
        wait_until(lambda: create(service, next(ids)).status == 200)
        wait_until(lambda: create(service, next(ids)).status == 200 and len(lines_of_the_store()) > 1)
    lines = lines_of_the_store()
    assert len(lines) == 2
    assert str(file) in lines[0]


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_after_sigterm_the_database_file_has_every_plant(tmp_path: Path) -> None:
    file = tmp_path / "plants.db"
    with serving(workers=2, PLANTS_STORE=f"sqlite:///{file}") as service:
        with ThreadPoolExecutor(8) as pool:
            assert {response.status for response in pool.map(lambda number: create(service, number), range(200))} == {
                200
            }
        assert service.stop() == 0
    shutil.copy(file, tmp_path / "copy.db")
    assert ids_in(tmp_path / "copy.db") == set(range(200))


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_a_new_worker_does_not_recreate_a_removed_file(tmp_path: Path) -> None:
    file = tmp_path / "plants.db"
    with serving(workers=2, PLANTS_STORE=f"sqlite:///{file}") as service:
        assert create(service, 1).status == 200
        for path in tmp_path.glob("plants.db*"):
            path.unlink()
        old = children(service.process.pid)
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(children(service.process.pid)) == 2 and not {*old} & {*children(service.process.pid)})
        for _ in range(20):
            assert create(service, 1).error == 50300
        assert not file.exists()


def test_a_new_master_does_not_recreate_a_removed_file(tmp_path: Path) -> None:
    file, pid_file = tmp_path / "plants.db", tmp_path / "pid"
    with serving(f"--pid={pid_file}", PLANTS_STORE=f"sqlite:///{file}") as service:
        assert create(service, 1).status == 200
        for path in tmp_path.glob("plants.db*"):
            path.unlink()
        service.process.send_signal(signal.SIGUSR2)
        new_pid_file = tmp_path / "pid.2"
        wait_until(new_pid_file.exists)
        new_master = int(new_pid_file.read_text())
        try:
            service.wait_for("the store cannot be used yet")
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(60) == 0
            assert create(service, 1).error == 50300
            assert not file.exists()
        finally:
            os.kill(new_master, signal.SIGTERM)
            wait_until(lambda: not resident_bytes(new_master))


@pytest.mark.parametrize("name", ["missing/plants.db", "text.db"])
def test_a_file_that_cannot_be_used_logs_a_warning_at_the_start(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.db").write_text("no database " * 100)
    with serving(PLANTS_STORE=f"sqlite:///{tmp_path / name}") as service:
        line = json.loads(service.wait_for(".*the store cannot be used yet.*")[0])
        assert line["level"] == "warning"
        assert str(tmp_path / name) in line["msg"]
        assert service.send(method="GET", path="/readyz", headers=[]).error == 50300
        assert service.send(method="GET", path="/livez", headers=[]).status == 200


def add(client: http.client.HTTPConnection, plant_id: int) -> tuple[int, str]:
    """Create a plant on a keep-alive connection; return the status, and the id of the worker that responded."""
    client.request("POST", "/plants", new_plant(id=plant_id), dict([AUTH, JSON_TYPE]))
    response = client.getresponse()
    response.read()
    return response.status, response.headers["X-Request-ID"].partition("-")[0]


@contextmanager
def two_workers(file: Path) -> Iterator[list[http.client.HTTPConnection]]:
    """Serve with two workers, each of which has the file open; yield one connection per worker."""
    with serving("--keep-alive=60", workers=2, PLANTS_STORE=f"sqlite:///{file}") as service, ExitStack() as stack:
        client_by_worker: dict[str, http.client.HTTPConnection] = {}
        ids = count(1)
        while len(client_by_worker) < 2:
            client = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", service.port)))
            status, worker = add(client, next(ids))
            assert status == 200
            client_by_worker.setdefault(worker, client)
        yield list(client_by_worker.values())


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_stop_keeps_all_plants_after_the_log_was_removed(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / "plants.db"
    with two_workers(file) as clients:
        Path(f"{file}{suffix}").unlink()
        for _ in range(3):
            assert [add(client, 1)[0] for client in clients] == [503, 503]
    assert ids_in(file) >= {1, 2}


MOUNTED = """
from bottle import Bottle
from plants.wsgi import app as plants_app

bottle = Bottle()
bottle.mount("/store/", plants_app)

def app(environ, start_response):
    is_mounted = environ["PATH_INFO"].startswith("/store/")
    return (bottle if is_mounted else plants_app)(environ, start_response)
"""


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_responses_pass_through_a_mounting_application(tmp_path: Path) -> None:
    (tmp_path / "mounted.py").write_text(MOUNTED)
    (tmp_path / "conf.py").write_text("wsgi_app = 'mounted:app'\n")
    store = f"sqlite:///{tmp_path}/plants.db"
    with serving("--config=conf.py", cwd=tmp_path, PLANTS_STORE=store) as service:
        responses = [service.send(new_plant(), path="/store/plants", headers=[AUTH, JSON_TYPE]) for _ in range(2)]
    assert [response.headers["content-type"] for response in responses] == ["application/json"] * 2
    assert responses[0].plant == {"name": "Fern"}
    assert responses[1].error == 40003


OBSERVED = """
from plants.wsgi import app as plants_app

def app(environ, start_response):
    def start(status, headers, exc_info=None):
        environ["wsgi.errors"].write(f"started {status} {environ['PATH_INFO']}")
        return start_response(status, headers, exc_info)

    environ["wsgi.errors"].write(f"called {environ['PATH_INFO']}")
    return plants_app(environ, start)
"""


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_middleware_sees_each_request_and_its_true_status_once(tmp_path: Path) -> None:
    (tmp_path / "observed.py").write_text(OBSERVED)
    (tmp_path / "conf.py").write_text("wsgi_app = 'observed:app'\n")
    store = f"sqlite:///{tmp_path}/plants.db"
    with serving("--config=conf.py", cwd=tmp_path, PLANTS_STORE=store) as service:
        with ThreadPoolExecutor(16) as threads:
            responses = list(threads.map(partial(create, service), [*range(50)] * 2))
        assert sorted(response.status for response in responses) == [200] * 50 + [400] * 50
        expected = {"called /plants": 100, "started 200 OK /plants": 50, "started 400 Bad Request /plants": 50}
        wait_until(lambda: {text: sum(text in line for line in service.lines) for text in expected} == expected)
