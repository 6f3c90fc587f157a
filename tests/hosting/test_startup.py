"""The start of a hosted service, and where it logs."""

import json
import os
import re
import signal
import socket
import ssl
import sys
from pathlib import Path

import pytest

import plants
from plants import server
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.stores.test_plugins import install
from tests.support.hosted import CHECKOUT, SERVE, Service, call, environment, error_line, run, serving
from tests.support.process import END, Process, children, free_port, text_of, wait_for_workers, wait_until
from tests.support.tls_client import make_certificate
from tests.support.worker_server import Client

# This simulates `SystemCallFilter=~@privileged` of deploy/plants.service.
SANDBOX = """
import os
def forbidden(*_): raise PermissionError(1, "Operation not permitted")
os.chown = os.setgid = os.setuid = forbidden
from plants.hosting.cli import main
main()
"""


def test_a_start_without_privileges_and_stdout_says_in_one_line_what_started(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plants.db"
    command = ["bash", "-c", 'exec "$@" >&-', "bash", sys.executable, "-c", SANDBOX, "serve"]
    with serving("--chdir=/", command=command, PLANTS_STORE=url) as service:  # The path is absolute.
        address = f"http://127.0.0.1:{service.port}"
        service.wait_for(
            rf"plants {plants.__version__} \({server.implementation()}\) listens on {address}; "
            rf"the store is {url}; try it at {address}/docs"
        )
        line = json.loads(service.wait_for(".*plants.db: created the table plants: this is a new, empty store.*")[0])
        assert line["level"] == "info"
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200
        assert not any("will be lost" in line for line in service.lines)


def test_port_listens_on_ipv4_and_ipv6_and_a_lost_worker_is_logged() -> None:
    port = free_port()
    with Service(SERVE, CHECKOUT, {"PLANTS_TOKENS": TOKEN, "PORT": str(port)}) as service:
        service.wait_until_it_responds_on(port)
        [worker] = children(service.process.pid)
        os.kill(worker, signal.SIGHUP)  # A worker ignores what the whole process group may get.
        for name, address in (("ipv4", "127.0.0.1"), ("ipv6", "::1")):
            with Client(socket.create_connection((address, port))) as client:
                request = f"GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-ID: {name}\r\n\r\n"
                assert client.send(request.encode()).response().status == 200
            assert service.line_of(name)["remote_ip"] == address
        result = call("serve", "--log-level=error", PLANTS_TOKENS=TOKEN, PORT=str(port))
        assert re.match(rf"cannot listen on :::{port}, .*--bind.*: \[Errno \d+\] Address already", error_line(result))
        assert children(service.process.pid) == [worker]
        service.signal(signal.SIGTTIN)
        service.wait_for(r"PLANTS_STORE=memory: cannot be shared by 2 worker processes")
        os.kill(worker, signal.SIGKILL)
        warning = service.wait_for(f".*all plants in memory were lost with worker {worker}; their ids are free again.*")
        assert json.loads(warning[0])["level"] == "warning"
        wait_for_workers(service.process.pid, 1, after=[worker])
        service.signal(signal.SIGINT)
        assert service.wait_for_exit() == 0
    for text, times in (("will be lost when this process ends", 1), ("were lost", 1), ("Booting", 2), ("Traceback", 0)):
        assert sum(text in line for line in service.lines) == times


LOG_CONFIG = """{
    "version": 1,
    "root": {"handlers": []},
    "disable_existing_loggers": false,
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "FOLDER/log"}},
    "loggers": {"plants": {"handlers": ["file"]}}
}"""


def test_a_log_configuration_gets_the_lines_of_the_service(tmp_path: Path) -> None:
    tokens, log = tmp_path / "tokens", tmp_path / "log"
    tokens.write_text("first\n")
    (tmp_path / "conf").write_text(LOG_CONFIG.replace("FOLDER", str(tmp_path)))
    with serving(f"--log-config-json={tmp_path}/conf", PLANTS_TOKENS_FILE=str(tokens)) as service:
        tokens.write_text("not a token\n")
        wrong = [("Authorization", "Bearer wrong")]
        wait_until(lambda: service.send(headers=wrong).error == 40101 and "the token file cannot" in text_of(log))
    assert re.search("^the token file", log.read_text(), re.MULTILINE)
    assert not any("the token file" in line for line in service.lines)


def test_importing_plants_wsgi_without_tokens_logs_a_new_token() -> None:
    result = run(sys.executable, "-c", "import os, plants.wsgi; print(os.environ['PLANTS_TOKENS'])")
    warning = "no token is set; a new one is valid until the service stops: "
    assert (result.stderr, len(result.stdout)) == (warning + result.stdout, 44)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"PLANTS_STORE": "sqlite:///x", "WEB_CONCURRENCY": "0"}, "PLANTS_STORE=sqlite:///x cannot be shared by 0 w"),
        ("--check-config --worker-connections=0", "worker_connections=0 and ulimit -n "),
        ("--check-config --certfile /", "cannot use certfile=/ and keyfile=None: [Errno 21] Is a directory"),
        ("--check-config --certfile x --config hook.py", "cannot use certfile=x and keyfile=None: 'NoneType' object "),
        ("--check-config --env A=x --env PLANTS_STORE=x", "PLANTS_STORE in raw_env or --env comes too late; set it"),
        ("--check-config --log-syslog", "syslog is not supported, because it could block the service; "),
        ("--log-config-json=conf", "syslog is not supported, because it could block the service; "),
        ("--check-config --keyfile /x", "cannot use certfile=None and keyfile=/x: certfile should be a valid filesyst"),
        ("--preload -w 3", "PLANTS_STORE=memory: cannot be shared by 3 worker processes; use one (WEB_CONCURRENCY or "),
        ({"PLANTS_STORE": "sqlite:///x", "GUNICORN_CMD_ARGS": "--check-config --chdir /"}, "PLANTS_STORE has a relati"),
        ({"PLANTS_TOKENS_FILE": "x", "GUNICORN_CMD_ARGS": "--check-config --chdir /"}, "PLANTS_TOKENS_FILE has a rel"),
        (
            {"PLANTS_METRICS_BIND": "127.0.0.1:9100", "GUNICORN_CMD_ARGS": "--check-config -k gthread"},
            "PLANTS_METRICS_BIND needs the packaged worker class, so do not set another one (-k, worker_class).",
        ),
        ({"PLANTS_STORE": "sqlite:////missing/x"}, "PLANTS_STORE is not usable: /missing/x: [Errno 2] No such file"),
        ("--bind=127.0.0.1:65536", "cannot listen on 127.0.0.1:65536, so set another address (--bind or PORT): "),
        ({"PLANTS_METRICS_BIND": "192.0.2.1:80"}, "PLANTS_METRICS_BIND is not usable: "),
        ({"PLANTS_METRICS_BIND": "127.0.0.1:65536"}, "PLANTS_METRICS_BIND is not usable: "),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_service_that_cannot_serve_fails_in_one_line(tmp_path: Path, given: str | dict[str, str], line: str) -> None:
    (tmp_path / "x").write_text(TOKEN)
    (tmp_path / "conf").write_text(re.sub('FileHandler".*"', 'handlers.SysLogHandler"', LOG_CONFIG))
    (tmp_path / "hook.py").write_text("def ssl_context(config, default): pass")
    options, env = (given.split(), {}) if isinstance(given, str) else ([], given)
    command = ["serve", "--bind=127.0.0.1:0", "--log-level=error", *options]
    assert error_line(call(*command, cwd=tmp_path, **{"PLANTS_TOKENS": TOKEN} | env)).startswith(line)


def test_hup_reloads_the_configuration_unless_it_cannot_be_used(tmp_path: Path) -> None:
    file, pem, metrics_port = tmp_path / "mine.py", make_certificate(tmp_path), free_port()
    good = f"from plants.hosting.gunicorn_conf import *\nbind = '127.0.0.1:0'\naccesslog = None\ncertfile = '{pem}'\n"
    file.write_text(good)
    first = pem.read_text()
    env = {
        "PLANTS_TOKENS": TOKEN,
        "GUNICORN_CMD_ARGS": f"-c {file}",
        "PLANTS_METRICS_BIND": f"127.0.0.1:{metrics_port}",
        # Python takes a file of the same size, written in the same second, for the one that it has compiled.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with Process(SERVE, cwd=CHECKOUT, env=environment(**env)) as service:
        address = "127.0.0.1", int(service.wait_for(r"Listening at: https://127.0.0.1:(\d+)")[1])
        wait_for_workers(service.process.pid, 1)
        assert "certificate verify failed" in error_line(call("check", f"https://127.0.0.1:{metrics_port}"))
        for changed, content, problem in [
            (file, "workers =", "Gunicorn has printed the reason"),
            (file, good + "workers = 2\n", ".*cannot be shared by 2 worker processes"),
            (file, good.replace("None", "'/missing/log'"), ".*No such file or directory: '/missing/log'"),
            (file, good + "errorlog = '/missing/errors'\n", ".*No such file or directory: '/missing/errors'"),
            (pem, "", f"cannot use certfile={pem} and keyfile=None: "),
        ]:
            before, usable = len(service.lines), changed.read_text()
            changed.write_text(content)
            service.signal(signal.SIGHUP)
            service.wait_for(f"the new configuration cannot be used, so the old one stays: {problem}", after=before)
            service.wait_for("Worker exiting", after=before)
            assert ssl.get_server_certificate(address) in first
            changed.write_text(usable)
        renewed = make_certificate(tmp_path).read_text()
        file.write_text(good + "def post_worker_init(worker): worker.log.warning('the new configuration is here')\n")
        service.signal(signal.SIGHUP)
        service.wait_for("the new configuration is here")
        service.wait_for("Worker exiting", times=6)  # It would close the connection of a client that is slow.
        assert ssl.get_server_certificate(address) in renewed
        service.process.terminate()
        assert service.wait_for_exit() == 0
    assert service.output == [END]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_before_gunicorn_handles_it_ends_the_command(number: signal.Signals) -> None:
    code = f"""
import importlib.abc, os, sys
class Signal(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("gunicorn"):
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Signal())
sys.argv[1:] = ["serve"]
from plants.__main__ import main
main()
"""
    result = run(sys.executable, "-c", code, PLANTS_TOKENS=TOKEN)
    assert (result.returncode, result.stdout, result.stderr) == (128 + number, "", "")


# Both methods fail in the event loop, whose thread is the main thread.
OWN_STORE = """
import os
import threading
from plants import StoreUnavailable
from plants.testing import FaultyStore

class Garden(FaultyStore):
    worker_threads, multiprocess = 1, False

    def __init__(self, url):
        if url != "garden://me:secret@home":
            raise ValueError("this is not my garden\\nand nobody reads on")
        super().__init__()

    def add(self, plant):
        self.check()
        super().add(plant)

    def check(self):
        threads = [thread.name for thread in threading.enumerate()].count("plants.server")
        if threading.current_thread() is threading.main_thread() or threads > self.worker_threads + 3:
            raise StoreUnavailable("called in the loop, or by more threads")

    def prepare(self):
        if "BROKEN" in os.environ:
            raise KeyError("garden://me:secret@home")
"""


def test_a_store_of_another_package_is_hosted_like_our_own(tmp_path: Path) -> None:
    install(tmp_path, "garden", OWN_STORE, {"garden": "garden:Garden"})
    env = {"PYTHONPATH": str(tmp_path), "PLANTS_STORE": "garden://me:secret@home", "PLANTS_TOKENS": TOKEN}
    path = f"unix:{tmp_path}/socket"
    with serving(f"--bind={path}", **env) as service:  # type: ignore[arg-type]  # env has settings only.
        address = f"http://127.0.0.1:{service.port}"
        service.wait_for(rf"{address} {path}; the store is garden://me:\*\*\*@home; try it at {address}/docs")
        assert service.send(method="GET", path="/readyz", headers=[]).status == 200
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).error == 40003
    for changed, line in [
        ({"PLANTS_STORE": "garden:"}, "PLANTS_STORE is invalid: this is not my garden."),
        ({"BROKEN": "1"}, "the store garden://me:***@home failed in prepare with KeyError."),
    ]:
        assert error_line(call("serve", "--log-level=warning", "--bind=127.0.0.1:0", **env | changed)) == line


def test_importing_plants_has_no_side_effect() -> None:
    code = (
        "import sys, threading, logging, os; before = dict(os.environ); import plants;"
        "assert os.environ == before and threading.active_count() == 1 and not logging.getLogger('plants').handlers;"
        "print([name for name in sys.modules if name.startswith(('gunicorn', 'plants.hosting', 'plants.wsgi'))])"
    )
    assert run(sys.executable, "-c", code, PLANTS_UNKNOWN="x").stdout == "[]\n"
