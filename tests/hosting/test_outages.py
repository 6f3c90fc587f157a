"""A store that waits, fails or is gone, as clients and operators see it."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from tests.audits.outages import Outage, Place, file_held, server_suspended
from tests.contract import AUTH, JSON_TYPE, Response, new_plant
from tests.support.hosted import Service, call, error_line, serving
from tests.support.loop_driver import is_readable
from tests.support.postgres_server import PostgresServer
from tests.support.process import wait_until


def create(service: Service, plant_id: int) -> Response:
    return service.send(new_plant(id=plant_id), headers=[AUTH, JSON_TYPE])


def is_live_in(stall: AbstractContextManager[None], service: Service, pool: ThreadPoolExecutor) -> bool:
    """Send creates, and return whether the service responds to a probe before it rejects the last of them."""
    probes_meanwhile = 0
    with stall:
        creates = [pool.submit(create, service, number) for number in range(1, 65)]
        while wait(creates, timeout=0.2).not_done:
            assert service.send(method="GET", path="/livez", headers=[]).status == 200
            probes_meanwhile += bool(wait(creates, timeout=0).not_done)
    assert {created.result().error for created in creates} == {50300}
    wait_until(lambda: create(service, 100).status in {200, 400})  # A late 503 does not say that it is not stored.
    return probes_meanwhile > 0


@pytest.mark.parametrize("stall", [file_held, server_suspended])
def test_requests_and_probes_get_responses_while_the_store_waits(
    stall: Outage, tmp_path: Path, server: PostgresServer
) -> None:
    place = Place(tmp_path, server, server)
    url = f"sqlite:///{place.file}" if stall is file_held else server.url
    with serving(PLANTS_STORE=url) as service, ThreadPoolExecutor(64) as pool:
        assert create(service, 0).status == 200
        wait_until(lambda: is_live_in(stall(place), service, pool))
    assert not list(tmp_path.glob("*-wal"))  # The worker has closed the store, so a copy of the file is complete.


def test_a_lock_at_the_start_is_waited_for_after_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "plants.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with serving(PLANTS_STORE=f"sqlite:///{file}") as service:
            line = json.loads(service.wait_for(".*the store cannot be used yet.*")[0])
            assert line["level"] == "warning"
            assert str(file) in line["msg"]
            probe = service.client().send(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert service.send(method="GET", path="/livez", headers=[]).status == 200
            assert not is_readable(probe.sock)  # It waits for the lock, and the event loop does not.
            response = probe.response()
            assert response.error == 50300
            assert service.line_of(response.headers["x-request-id"])["level"] == "error"
            url = f"http://127.0.0.1:{service.port}"
            assert error_line(call("check", url)) == f"{url}/readyz: HTTP Error 503: Service Unavailable."
            other.rollback()
            wait_until(lambda: create(service, 1).status == 200)
