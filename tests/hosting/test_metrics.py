"""The metrics: exact, bounded, and at an address of their own."""

import os
import signal
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import plants
from plants import server
from plants.app import PLANTS_PATH
from plants.hosting.metrics import Metrics
from plants.hosting.settings import Settings, SettingsError
from plants.server.response import make_response
from tests.contract import AUTH, JSON_TYPE, new_plant
from tests.stores.test_sqlite import locked
from tests.support.hosted import Service, send_to, serving
from tests.support.loop_driver import new_exchange
from tests.support.process import children, free_port, wait_for_workers, wait_until


def scrape(port: int, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the value of each sample of this name, by the values of its labels."""
    response = send_to(port, method="GET", path="/metrics", headers=[])
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(response.body.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}


def value(port: int, name: str) -> float:
    return scrape(port, name)[()]


def request_counts(port: int) -> Counter[tuple[str, ...]]:
    name = "http_server_request_duration_seconds_count"
    return Counter(scrape(port, name, "method", "route", "status", "error"))


def create(service: Service, first: int, count: int) -> None:
    for plant_id in range(first, first + count):
        assert service.send(new_plant(id=plant_id), headers=[AUTH, JSON_TYPE]).status == 200


def test_metrics_are_the_exact_sum_of_live_and_dead_workers(service: Service, metrics_port: int) -> None:
    before, created_before = request_counts(metrics_port), value(metrics_port, "plants_created_total")
    create(service, 1000, 20)
    for _ in range(3):
        assert service.send(new_plant(id=1000), headers=[AUTH, JSON_TYPE]).error == 40003
    workers = children(service.process.pid)
    os.kill(workers[0], signal.SIGKILL)
    service.wait_for(rf"Worker \(pid:{workers[0]}\) was sent SIGKILL")
    create(service, 1020, 20)
    wait_for_workers(service.process.pid, 2, after=workers[:1])
    replaced = children(service.process.pid)
    line_count = len(service.lines)
    service.signal(signal.SIGHUP)
    service.wait_for(rf"Worker exiting \(pid: {workers[1]}\)", after=line_count)
    create(service, 1040, 20)
    # Requests to the metrics' address are not counted.
    send_to(metrics_port, method="GET", path="/elsewhere", headers=[])
    service.send(headers=[])
    service.send(method="GET", path="/elsewhere", headers=[AUTH])
    service.send(method="HEAD", path="/livez", headers=[])
    service.send(method="OPTIONS", headers=[AUTH])
    with service.client() as client:
        client.send(b"not HTTP\r\n\r\n").response()
    assert request_counts(metrics_port) - before == {
        ("POST", "/plants", "200", ""): 60,
        ("POST", "/plants", "400", "40003"): 3,
        ("POST", "/plants", "401", "40100"): 1,
        ("GET", "other", "404", "40400"): 1,
        ("HEAD", "other", "200", ""): 1,
        ("other", "/plants", "200", ""): 1,
        ("other", "other", "400", "40000"): 1,
    }
    assert value(metrics_port, "plants_created_total") - created_before == 60
    build = (plants.__version__, server.implementation())
    assert scrape(metrics_port, "plants_build_info", "version", "server") == {build: 1}
    wait_for_workers(service.process.pid, 2, after=replaced)


def test_the_gauges_have_what_is_open_and_waits_now(service: Service, metrics_port: int, database: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        with locked(database):
            waiting = thread.submit(create, service, 901, 1)
            wait_until(lambda: value(metrics_port, "plants_requests_waiting") == 1)
        waiting.result()
    wait_until(lambda: value(metrics_port, "plants_requests_waiting") == 0)
    for _ in range(8):
        service.client()
    wait_until(lambda: value(metrics_port, "plants_connections") >= 8)
    workers = children(service.process.pid)
    service.signal(signal.SIGTTOU)  # This ends one worker without a replacement.
    wait_for_workers(service.process.pid, 1, after=workers[:1])
    os.kill(workers[-1], signal.SIGKILL)
    wait_for_workers(service.process.pid, 1, after=workers)
    service.clients.close()
    wait_until(lambda: value(metrics_port, "plants_connections") <= 1)
    service.signal(signal.SIGTTIN)
    wait_for_workers(service.process.pid, 2)


def test_the_metrics_address_serves_nothing_else(service: Service, metrics_port: int) -> None:
    def status(path: str, method: str = "GET") -> int:
        return send_to(metrics_port, method=method, path=path, headers=[]).status

    assert status("/metrics") == status("/metrics?a=1") == status("/metrics", "HEAD") == 200
    assert [status(path) for path in ("/", "/plants", "/livez", "/readyz", "/docs", "/metrics/")] == [404] * 6
    assert status("/metrics", "POST") == 405
    assert service.send(method="GET", path="/metrics", headers=[]).error == 40100
    assert service.send(method="GET", path="/metrics", headers=[AUTH]).error == 40400


def test_the_error_for_a_missing_metrics_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SettingsError, match=r"^PLANTS_METRICS_BIND is invalid: .* pip install 'plants\[metrics\]'$"):
        Settings.from_environ({"PLANTS_METRICS_BIND": "127.0.0.1:9100"})


def test_two_living_workers_never_share_a_row() -> None:
    address = Settings.from_environ({"PLANTS_METRICS_BIND": f"[::1]:{free_port()}"}).metrics_bind
    assert address
    metrics = Metrics(address)
    assert [metrics.add_worker() for _ in range(3)] == [0, 1, 2]
    metrics.remove_worker(1)
    assert [metrics.add_worker() for _ in range(2)] == [1, 3]
    metrics.listener.close()


def test_durations_and_store_failures_are_counted_as_documented() -> None:
    metrics = Metrics(("127.0.0.1", 0))
    metrics.add_worker()
    bounds = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]
    exchange = new_exchange()
    exchange.method, exchange.route = "POST", PLANTS_PATH
    for seconds in (*bounds, 99.0):
        metrics.count_response(exchange, make_response(exchange, 200, [], b""), 0, seconds)
    [*buckets, infinity, count, total] = next(metrics.collect()).samples
    found = {float(bucket.labels["le"]): bucket.value for bucket in buckets}
    assert found == {bound: number for number, bound in enumerate(bounds, start=1)}
    assert (infinity.value, count.value, total.value) == (15, 15, pytest.approx(sum(bounds) + 99.0))
    metrics.count_response(exchange, make_response(exchange, 503, [], b"", (50300, "full")), 50300, 0.0)  # the server's
    # The store refused the plant; middleware responded; the store failed.
    for code, error in ((50301, (50301, "refused")), (50300, None), (50300, (50300, "unavailable"))):
        exchange.response = make_response(exchange, 503, [], b"", error)
        metrics.count_response(exchange, exchange.response, code, 0.0)
    [failures] = [sample.value for family in metrics.collect() for sample in family.samples if "fail" in sample.name]
    assert failures == 1
    metrics.listener.close()


# This operation is not part of the interface. It needs no more than a resource and a route.
CONFIGURATION = """
import falcon

from plants.app import OPERATIONS


class PlantItem:
    def __init__(self, store, _max_body_bytes):
        self._store = store

    def on_get(self, _req, resp, plant_id):
        plant = self._store.get(plant_id)
        if plant is None:
            raise falcon.HTTPNotFound
        resp.media = {"name": plant.name}

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
    ) as service:
        service.send(new_plant(id=7), headers=[AUTH, JSON_TYPE])
        assert service.send(method="GET", path="/pots/7", headers=[AUTH]).plant == {"name": "Fern"}
        for path in ("/pots/8", "/pots/fern", "//pots/7"):
            assert service.send(method="GET", path=path, headers=[AUTH]).error == 40400
        assert service.send(method="GET", path="/pots/7", headers=[("X-Request-ID", "stranger")]).error == 40100
        for status in (204, 402, 299, 599):
            deleted = service.send(method="DELETE", path=f"/pots/{status}", headers=[AUTH])
            assert (deleted.status, deleted.body) == (status, b"")
            message = service.line_of(deleted.headers["x-request-id"]).get("error_message")
            assert message == {402: "Payment Required", 599: "The request failed."}.get(status)
        response = service.send(method="PURGE", path="/pots/7", headers=[AUTH])
        assert (response.error, response.headers["allow"]) == (40500, "DELETE, GET, OPTIONS")
        line = service.line_of("stranger")
        assert (line["path"], line["route"]) == ("/pots/7", ROUTE)
        counts = request_counts(port)
        (tmp_path / "plants.db").rename(tmp_path / "elsewhere")
        assert service.send(new_plant(id=60), headers=[AUTH, JSON_TYPE]).error == 50300
        wait_until(lambda: service.send(method="GET", path="/readyz", headers=[]).status == 503)
        assert value(port, "plants_store_failures_total") == 1
        assert request_counts(port)["GET", "other", "503", "50300"] > 0
    outcomes = [("200", ""), ("404", "40400"), ("401", "40100")]
    assert {key: count for key, count in counts.items() if key[1] == ROUTE} == {
        ("GET", ROUTE, *outcome): 1 for outcome in outcomes
    } | {
        ("DELETE", ROUTE, "204", ""): 1,
        ("DELETE", ROUTE, "402", "40200"): 1,
        ("DELETE", ROUTE, "other", ""): 2,  # 299 and 599
        ("other", ROUTE, "405", "40500"): 1,
    }
