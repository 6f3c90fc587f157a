"""What another operation needs: a resource and a route. This one is not part of the interface."""

import sys
from contextlib import ExitStack
from pathlib import Path

from plants.server.config import SLOTS
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.hosting.test_metrics import request_counts, value
from tests.support.hosted import serving
from tests.support.process import free_port, wait_until

CONFIGURATION = """
import falcon

from plants.app import OPERATIONS
from plants.fast_path import dumper
from plants.schemas import PlantSchema


class PlantItem:
    '''``/pots/{plant_id}``: one plant.'''

    def __init__(self, store, _max_body_bytes):
        self._store = store
        self._dump = dumper(PlantSchema())

    def on_get(self, _req, resp, plant_id):
        plant = self._store.get(plant_id)
        if plant is None:
            raise falcon.HTTPNotFound
        resp.data = self._dump(plant)

    def on_delete(self, _req, resp, plant_id):
        resp.status = plant_id


OPERATIONS["/pots/{plant_id:int}"] = PlantItem

from plants.hosting.gunicorn_conf import *
"""
ROUTE = "/pots/{plant_id:int}"


def test_another_operation_has_token_check_errors_log_and_metrics(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CONFIGURATION)
    port = free_port()
    with serving(
        f"--config={tmp_path}/own.py",
        command=[sys.executable, "-m", "gunicorn"],
        PLANTS_STORE=f"sqlite:///{tmp_path}/plants.db",
        PLANTS_METRICS_BIND=f"127.0.0.1:{port}",
        PLANTS_MAX_BODY_BYTES="20000",
    ) as service:
        service.send(new_plant(id=7), headers=[AUTH, JSON_TYPE])
        assert service.send(method="GET", path="/pots/7", headers=[AUTH]).plant == {"name": "Fern"}
        for path in ("/pots/8", "/pots/fern", "//pots/7"):
            assert service.send(method="GET", path=path, headers=[AUTH]).error == 40400
        assert service.send(method="GET", path="/pots/7", headers=[("X-Request-ID", "stranger")]).error == 40100
        for status in (204, 402, 299, 599):
            deleted = service.send(method="DELETE", path=f"/pots/{status}", headers=[AUTH])
            assert (deleted.status, deleted.body) == (status, b"")
        response = service.send(method="PURGE", path="/pots/7", headers=[AUTH])
        assert (response.error, response.headers["allow"]) == (40500, "DELETE, GET, OPTIONS")
        line = service.line_of("stranger")
        assert (line["path"], line["route"]) == ("/pots/7", ROUTE)
        with ExitStack() as clients:
            head = f"POST /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 20000\r\n\r\n"
            for _ in range(SLOTS + 1):
                clients.enter_context(service.client()).send(head.encode() + b" " * 17000)
            wait_until(lambda: request_counts(port)["POST", "/plants", "503", "50300"] == 1)
        assert value(port, "plants_store_failures_total") == 0  # The store did not fail, the worker was full.
        counts = request_counts(port)
        (tmp_path / "plants.db").rename(tmp_path / "elsewhere")
        assert service.send(new_plant(id=60), headers=[AUTH, JSON_TYPE]).error == 50300
        wait_until(lambda: service.send(method="GET", path="/readyz", headers=[]).status == 503)
        assert value(port, "plants_store_failures_total") == 1
    outcomes = [("200", ""), ("404", "40400"), ("401", "40100")]
    assert {key: count for key, count in counts.items() if key[1] == ROUTE} == {
        ("GET", ROUTE, *outcome): 1 for outcome in outcomes
    } | {
        ("DELETE", ROUTE, "204", ""): 1,
        ("DELETE", ROUTE, "402", "40200"): 1,
        ("DELETE", ROUTE, "other", ""): 2,  # 299 and 599
        ("other", ROUTE, "405", "40500"): 1,
    }
