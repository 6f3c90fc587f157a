"""The metrics: exact, bounded, and at an address of their own."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import stat
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import plants
from plants import server
from plants.hosting.settings import Settings, SettingsError
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import SERVE, Service, call, run, send_to, serving
from tests.support.process import children, free_port, text_of, wait_for_workers, wait_until
from tests.support.worker_server import Client

COUNT = "http_server_request_duration_seconds_count"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/plants.db"


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
    return +found  # The unary plus drops the count of zero that each worker starts with.


def folder_of(master: int) -> Path:
    """Return the folder with the metrics files of a master's workers."""
    (folder,) = {file.parent for worker in children(master) for file in metrics_files(worker)}
    return folder


def metrics_files(process: int) -> list[Path]:
    """Return the metrics files that a process has open."""
    files = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # A descriptor may be closed meanwhile.
            files.append(link.readlink())
    return [file for file in files if file.suffix == ".db" and "plants-metrics-" in str(file)]


def create(service: Service, first: int, count: int) -> None:
    for plant_id in range(first, first + count):
        assert service.send(new_plant(id=plant_id), headers=[AUTH, JSON_TYPE]).status == 200


def test_metrics_are_the_exact_sum_of_live_and_dead_workers(port: int, store: str) -> None:
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
        with Client(socket.create_connection(("127.0.0.1", service.port))) as client:
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
        assert scrape(port)["plants_build_info"] == [
            ({"version": plants.__version__, "server": server.implementation()}, 1)
        ]


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_metrics_files_do_not_accumulate_as_workers_end(port: int, store: str) -> None:
    with serving(workers=2, PLANTS_STORE=store, PLANTS_METRICS_BIND=f"127.0.0.1:{port}") as service:
        create(service, 0, 1)
        wait_until(lambda: all(metrics_files(worker) for worker in children(service.process.pid)))
        folder = folder_of(service.process.pid)
        for number in range(1, 7):
            worker = children(service.process.pid)[0]
            os.kill(worker, signal.SIGKILL)
            service.wait_for(rf"Worker \(pid:{worker}\) was sent SIGKILL")
            wait_for_workers(service.process.pid, 2)
            create(service, number, 1)
        assert value(port, "plants_created_total") == 7
        assert {file.stem.rpartition("_")[2] for file in folder.iterdir()} == {"1", "2"}


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_store_failures_are_counted(port: int, tmp_path: Path, store: str) -> None:
    with serving(PLANTS_STORE=store, PLANTS_METRICS_BIND=f"127.0.0.1:{port}") as service:
        create(service, 0, 1)
        (tmp_path / "plants.db").rename(tmp_path / "elsewhere")
        assert service.send(new_plant(id=2), headers=[AUTH, JSON_TYPE]).error == 50300
        assert service.send(method="GET", path="/readyz", headers=[]).error == 50300
        assert value(port, "plants_store_failures_total") == 1
        assert value(port, "plants_created_total") == 1


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_metrics_respond_while_requests_wait_for_the_store(port: int, tmp_path: Path, store: str) -> None:
    with serving(PLANTS_STORE=store, PLANTS_METRICS_BIND=f"127.0.0.1:{port}") as service:
        create(service, 0, 1)
        with (
            closing(sqlite3.connect(tmp_path / "plants.db", isolation_level=None)) as locker,
            Client(socket.create_connection(("127.0.0.1", service.port))) as client,
        ):
            locker.execute("BEGIN IMMEDIATE")
            body = new_plant(id=2)
            head = (
                f"POST /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n"
            )
            client.send(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            wait_until(lambda: value(port, "plants_requests_waiting") == 1)
            locker.execute("ROLLBACK")
            assert client.response().status == 200
        wait_until(lambda: value(port, "plants_requests_waiting") == 0)


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_connections_of_a_killed_worker_are_not_counted(port: int, store: str) -> None:
    with serving(workers=2, PLANTS_STORE=store, PLANTS_METRICS_BIND=f"127.0.0.1:{port}") as service:
        clients = [Client(socket.create_connection(("127.0.0.1", service.port))) for _ in range(8)]
        wait_until(lambda: value(port, "plants_connections") >= 8)
        for worker in children(service.process.pid):
            os.kill(worker, signal.SIGKILL)
            service.wait_for(rf"Worker \(pid:{worker}\) was sent SIGKILL")
        for client in clients:
            client.close()
        wait_until(lambda: value(port, "plants_connections") <= 1)


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "[::1]"])
def test_the_metrics_address_serves_nothing_else(host: str, port: int) -> None:
    with serving(PLANTS_METRICS_BIND=f"{host}:{port}") as service:
        target = "::1" if host == "[::1]" else "127.0.0.1"

        def status(path: bytes, method: bytes = b"GET") -> int:
            with Client(socket.create_connection((target, port))) as client:
                return client.send(b"%b %b HTTP/1.1\r\nHost: a\r\n\r\n" % (method, path)).response().status

        assert status(b"/metrics") == status(b"/metrics?a=1") == 200
        assert [status(path) for path in (b"/", b"/plants", b"/livez", b"/readyz", b"/docs", b"/metrics/")] == [404] * 6
        assert status(b"/metrics", b"POST") == 405
        assert service.send(method="GET", path="/metrics", headers=[]).error == 40100
        assert service.send(method="GET", path="/metrics", headers=[AUTH]).error == 40400


def test_the_error_for_a_missing_metrics_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SettingsError, match=r"^PLANTS_METRICS_BIND is not usable: .* pip install 'plants\[metrics\]'$"):
        Settings.from_environ({"PLANTS_METRICS_BIND": "127.0.0.1:9100"})


def startup_error(metrics: str, *options: str) -> str:
    """Return the one line that a failed start prints."""
    result = run(*SERVE, "--log-level=error", *options, PLANTS_TOKENS=TOKEN, PLANTS_METRICS_BIND=metrics)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    return line


def test_an_unusable_metrics_address_is_reported_in_one_line(port: int) -> None:
    address = f"127.0.0.1:{port}"
    check = ["serve", "--check-config", "--bind=127.0.0.1:0"]
    with serving(PLANTS_METRICS_BIND=address) as service:
        assert call(*check, PLANTS_TOKENS=TOKEN, PLANTS_METRICS_BIND=address).stderr == ""
        line = f"plants: cannot listen on {address} (Address already in use); set another one with "
        for options in (["--bind=127.0.0.1:0"], ["--bind=127.0.0.1:0", "--reuse-port"]):
            assert startup_error(address, *options) == f"{line}PLANTS_METRICS_BIND."
        main = f"127.0.0.1:{service.port}"
        assert startup_error(main, "--bind=127.0.0.1:0").endswith("with PLANTS_METRICS_BIND.")
    line = "plants: PLANTS_METRICS_BIND is an address of the service itself; set another one."
    assert startup_error(address, f"--bind={address}") == line
    assert "unknown.invalid" in startup_error("unknown.invalid:9100", "--bind=127.0.0.1:0")
    result = call(*check, PLANTS_TOKENS=TOKEN, PLANTS_METRICS_BIND="192.0.2.1:9100")
    reason = "cannot listen on 192.0.2.1:9100 (Cannot assign requested address)"
    assert result.stderr == f"plants: {reason}; set another one with PLANTS_METRICS_BIND.\n"


def test_a_worker_that_cannot_create_metrics_files_serves_anyway(port: int) -> None:
    with serving(PLANTS_METRICS_BIND=f"127.0.0.1:{port}") as service:
        folder = folder_of(service.process.pid)
        shutil.rmtree(folder)
        assert value(port, "plants_created_total") == 0
        folder.touch()
        os.kill(children(service.process.pid)[0], signal.SIGKILL)
        assert json.loads(service.wait_for(".*the metrics do not include this worker.*")[0])["level"] == "error"
        create(service, 0, 1)
        assert value(port, "plants_created_total") == 0
        folder.unlink()


def test_the_metrics_folder_is_private_and_removed_on_stop(port: int) -> None:
    with serving(PLANTS_METRICS_BIND=f"127.0.0.1:{port}") as service:
        folder = folder_of(service.process.pid)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        file = folder / "file"
        file.touch()
        [worker] = children(service.process.pid)
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: worker not in children(service.process.pid))
        assert file.exists()  # The worker did not delete the folder when it exited.
        assert service.stop() == 0
        assert not folder.exists()


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_a_new_master_counts_from_zero_at_the_same_address(port: int, tmp_path: Path, store: str) -> None:
    pid_file = tmp_path / "pid"
    with serving(f"--pid={pid_file}", PLANTS_STORE=store, PLANTS_METRICS_BIND=f"127.0.0.1:{port}") as service:
        create(service, 0, 5)
        old = folder_of(service.process.pid)
        service.process.send_signal(signal.SIGUSR2)
        new_file = Path(f"{pid_file}.2")
        wait_until(lambda: text_of(new_file).strip())
        new = int(new_file.read_text())
        service.wait_for("Booting worker", times=2)
        wait_until(lambda: any(metrics_files(worker) for worker in children(new)))
        assert folder_of(new) != old
        assert service.stop() == 0
        assert not old.exists()
        create(service, 5, 2)
        assert value(port, "plants_created_total") == 2
        os.kill(new, signal.SIGTERM)
