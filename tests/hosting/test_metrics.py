"""The metrics: exact, bounded, and at an address of their own."""

import os
import signal
import sqlite3
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import plants
from plants import server
from plants.hosting.metrics import Metrics
from plants.hosting.settings import Settings, SettingsError
from plants.server.bounds import PLACES
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import Service, send_to, serving
from tests.support.process import END, children, free_port, wait_for_workers, wait_until

OWN = """
wsgi_app = "own:app"
accesslog = None

from plants.wsgi import app as service

def app(environ, start_response):
    status = environ["PATH_INFO"][1:]
    if not status.isdigit():
        return service(environ, start_response)
    start_response(f"{status} Odd", [])
    return []
"""
COUNT = "http_server_request_duration_seconds_count"


@pytest.fixture
def port() -> int:
    return free_port()


def scrape(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the labels and the value of each sample, by name."""
    response = send_to(port, method="GET", path="/metrics", headers=[])
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(response.body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(port: int, name: str) -> float:
    (sample,) = scrape(port)[name]
    return sample[1]


def request_counts(port: int) -> Counter[tuple[str, str, str, str]]:
    """Return the number of requests by method, route, status and error."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for labels, count in scrape(port).get(COUNT, []):
        found[labels["method"], labels["route"], labels["status"], labels["error"]] += int(count)
    return found


def create(service: Service, first: int, count: int) -> None:
    for plant_id in range(first, first + count):
        assert service.send(new_plant(id=plant_id), headers=[AUTH, JSON_TYPE]).status == 200


def test_metrics_are_the_exact_sum_of_live_and_dead_workers(port: int, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/plants.db"
    with serving(workers=2, PLANTS_STORE=store, PLANTS_METRICS_BIND=f"127.0.0.1:{port}") as service:
        before = request_counts(port)
        create(service, 0, 20)
        for _ in range(3):
            assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).error == 40003
        workers = children(service.process.pid)
        os.kill(workers[0], signal.SIGKILL)
        service.wait_for(rf"Worker \(pid:{workers[0]}\) was sent SIGKILL")
        create(service, 20, 20)
        line_count = len(service.lines)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for(rf"Worker exiting \(pid: {workers[1]}\)", after=line_count)
        create(service, 40, 20)
        send_to(port, method="GET", path="/elsewhere", headers=[])  # Requests to the metrics' address are not counted.
        service.send(headers=[])
        service.send(method="GET", path="/elsewhere", headers=[AUTH])
        service.send(method="HEAD", path="/livez", headers=[])
        service.send(method="BREW", headers=[AUTH])
        with service.client() as client:
            client.send(b"not HTTP\r\n\r\n").response()
        after = request_counts(port) - before
        assert after == {
            ("POST", "/plants", "200", ""): 60,
            ("POST", "/plants", "400", "40003"): 3,
            ("POST", "/plants", "401", "40100"): 1,
            ("GET", "other", "404", "40400"): 1,
            ("HEAD", "other", "200", ""): 1,
            ("other", "/plants", "405", "40500"): 1,
            ("other", "other", "400", "40000"): 1,
        }
        assert value(port, "plants_created_total") == 60
        assert value(port, "plants_store_failures_total") == 0
        (tmp_path / "plants.db").rename(tmp_path / "elsewhere")
        assert service.send(new_plant(id=60), headers=[AUTH, JSON_TYPE]).error == 50300
        wait_until(lambda: service.send(method="GET", path="/readyz", headers=[]).status == 503)
        assert value(port, "plants_store_failures_total") == 1
        assert scrape(port)["plants_build_info"] == [
            ({"version": plants.__version__, "server": server.implementation()}, 1)
        ]


def test_the_gauges_have_what_is_open_and_waits_now(service: Service, metrics_port: int, database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as locker, ThreadPoolExecutor(1) as thread:
        locker.execute("BEGIN IMMEDIATE")
        waiting = thread.submit(create, service, 901, 1)
        wait_until(lambda: value(metrics_port, "plants_requests_waiting") == 1)
        locker.execute("ROLLBACK")
        waiting.result()
    wait_until(lambda: value(metrics_port, "plants_requests_waiting") == 0)
    clients = [service.client() for _ in range(8)]
    wait_until(lambda: value(metrics_port, "plants_connections") >= 8)
    workers = children(service.process.pid)
    service.signal(signal.SIGTTOU)  # This ends one worker without a replacement.
    os.kill(workers[-1], signal.SIGKILL)
    service.wait_for(rf"Worker \(pid:{workers[-1]}\) was sent SIGKILL")
    wait_for_workers(service.process.pid, 1)
    for client in clients:
        client.close()
    wait_until(lambda: value(metrics_port, "plants_connections") <= 1)
    service.signal(signal.SIGTTIN)
    wait_for_workers(service.process.pid, 2)


def test_the_metrics_address_serves_nothing_else(service: Service, metrics_port: int) -> None:
    def status(path: str, method: str = "GET") -> int:
        return send_to(metrics_port, method=method, path=path, headers=[]).status

    assert status("/metrics") == status("/metrics?a=1") == 200
    assert [status(path) for path in ("/", "/plants", "/livez", "/readyz", "/docs", "/metrics/")] == [404] * 6
    assert status("/metrics", "POST") == 405
    assert service.send(method="GET", path="/metrics", headers=[]).error == 40100
    assert service.send(method="GET", path="/metrics", headers=[AUTH]).error == 40400


def test_the_error_for_a_missing_metrics_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SettingsError, match=r"^PLANTS_METRICS_BIND is not usable: .* pip install 'plants\[metrics\]'$"):
        Settings.from_environ({"PLANTS_METRICS_BIND": "127.0.0.1:9100"})


def test_two_living_workers_never_share_a_row() -> None:
    address = Settings.from_environ({"PLANTS_METRICS_BIND": f"[::1]:{free_port()}"}).metrics_bind
    assert address
    metrics = Metrics(address)
    assert [metrics.add_worker() for _ in range(3)] == [0, 1, 2]
    metrics.remove_worker(1)
    assert [metrics.add_worker() for _ in range(2)] == [1, 3]
    metrics.listener.close()


def test_an_unusual_status_and_a_503_of_a_full_worker_are_counted(port: int, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    head = f"POST /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 20000\r\n\r\n"
    settings = {"PLANTS_METRICS_BIND": f"127.0.0.1:{port}", "PLANTS_MAX_BODY_BYTES": "20000"}
    with serving("-c=own.py", cwd=tmp_path, **settings) as service, ExitStack() as clients:  # type: ignore[arg-type]
        for status in (299, 599, 402):
            assert service.send(method="GET", path=f"/{status}", headers=[AUTH]).status == status
        for _ in range(PLACES + 1):
            client = clients.enter_context(service.client())
            client.send(head.encode() + b" " * 17000)
        wait_until(lambda: request_counts(port)["POST", "/plants", "503", "50300"] == 1)
        assert value(port, "plants_store_failures_total") == 0  # The store did not fail.
        counts = {labels[2]: count for labels, count in request_counts(port).items() if labels[1] == "other"}
        assert (counts["other"], counts["402"]) == (2, 1)
    assert service.access == [END]
