"""The start of a hosted service, and where it logs."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

import plants
from plants import server
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import CHECKOUT, SERVE, Service, call, environment, error_line, run, send_to, serving
from tests.support.process import (
    END,
    Process,
    children,
    free_port,
    text_of,
    wait_for_workers,
    wait_until,
)
from tests.support.servers import is_ready
from tests.support.tls_client import make_certificate

GUNICORN = [sys.executable, "-m", "gunicorn"]


def test_a_start_says_in_one_line_what_started(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/plants.db", f"unix:{tmp_path}/socket"
    for lifetime in (", which is new", ""):
        with serving(f"--bind={path}", PLANTS_STORE=url) as service:
            address = f"http://127.0.0.1:{service.port}"
            service.wait_for(
                rf"plants {plants.__version__} \({server.implementation()}\) listens on {address} {path}; "
                rf"plants are stored in {url}{lifetime}; try it at {address}/docs"
            )


def test_a_killed_worker_logs_that_its_plants_in_memory_are_lost() -> None:
    with serving() as service:
        [worker] = children(service.process.pid)
        service.wait_for("Booting")  # A worker that is killed does not write the lines that it has queued.
        service.signal(signal.SIGTTIN)
        service.wait_for(r"PLANTS_STORE=memory: cannot be shared by 2 worker processes")
        os.kill(worker, signal.SIGKILL)
        warning = service.wait_for(f".*all plants in memory were lost with worker {worker}; their ids are free again.*")
        assert json.loads(warning[0])["level"] == "warning"
        wait_until(lambda: children(service.process.pid) not in ([], [worker]))
        wait_for_workers(service.process.pid, 1)
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


@pytest.mark.parametrize(
    ("option", "pattern"),
    [
        ("--error-logfile=FOLDER/log", '"level":"error".*"the token file cannot'),
        ("--log-config-json=FOLDER/conf", "^the"),
    ],
)
def test_the_service_logs_where_gunicorns_settings_say(option: str, pattern: str, tmp_path: Path) -> None:
    tokens, log = tmp_path / "tokens", tmp_path / "log"
    tokens.write_text("first\n")
    (tmp_path / "conf").write_text(LOG_CONFIG.replace("FOLDER", str(tmp_path)))
    port = free_port()
    command = [*SERVE, f"--bind=127.0.0.1:{port}", option.replace("FOLDER", str(tmp_path))]
    with Service(command, CHECKOUT, {"PLANTS_TOKENS_FILE": str(tokens)}) as service:
        wait_until(lambda: is_ready(port))
        tokens.write_text("not a token\n")
        wait_until(
            lambda: send_to(port, headers=[AUTH]).status == 401 and "the token file cannot be used" in text_of(log)
        )
    assert re.search(pattern, log.read_text(), re.MULTILINE)
    assert not any("the token file" in line for line in service.lines)
    assert "conf" in option or service.lines == [END]


# This simulates `SystemCallFilter=~@privileged` of deploy/plants.service.
SANDBOX = """
import os
def forbidden(*_): raise PermissionError(1, "Operation not permitted")
os.chown = os.setgid = os.setuid = forbidden
from plants.hosting.cli import main
main()
"""


def test_the_service_starts_if_chown_and_setuid_are_forbidden(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SANDBOX, "serve"]
    store, metrics = f"sqlite:///{tmp_path}/plants.db", f"127.0.0.1:{free_port()}"
    with serving(command=command, PLANTS_STORE=store, PLANTS_METRICS_BIND=metrics) as service:
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200


@pytest.mark.parametrize(
    ("command", "env", "line"),
    [
        ([*SERVE, "--preload"], {"PLANTS_STOER": "x"}, "PLANTS_STOER is not a setting; the settings are PLANTS_"),
        ([*SERVE, "-w3", "--preload"], {}, "PLANTS_STORE=memory: cannot be shared by 3 worker processes; use one "),
        ([*GUNICORN, "--preload"], {"PLANTS_STORE": "x:"}, "PLANTS_STORE is not usable: a store's URL starts with "),
        (
            [*SERVE, "-b127.0.0.1:0"],
            {"PLANTS_METRICS_BIND": "192.0.2.1:80"},
            "PLANTS_METRICS_BIND is not usable: Cannot assign requested address",
        ),
    ],
    ids=["plants serve", "workers", "gunicorn", "metrics"],
)
def test_a_start_that_fails_prints_one_line(command: list[str], env: dict[str, str], line: str) -> None:
    result = run(*command, **{"PLANTS_TOKENS": "a", "GUNICORN_CMD_ARGS": "--log-level=error"} | env)
    assert error_line(result).startswith(line)


def test_a_bad_setting_stops_plain_gunicorn_without_traceback() -> None:
    result = run(*GUNICORN, "-c", os.devnull, "-b", "127.0.0.1:0", "plants.wsgi:app", PLANTS_STORE="x:")
    assert result.returncode != 0
    assert "PLANTS_STORE is not usable: " in result.stderr
    assert "Traceback" not in result.stderr


def test_importing_plants_wsgi_without_tokens_logs_a_new_token() -> None:
    result = run(sys.executable, "-c", "import os, plants.wsgi; print(os.environ['PLANTS_TOKENS'])")
    assert result.stderr == (f"no token is set; a new one is valid until the service stops: {result.stdout.strip()}\n")


# A configuration that cannot serve


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("-w 2", "PLANTS_STORE=memory: cannot be shared by 2 worker processes; use one (WEB_CONCURRENCY or "),
        ("-w 0", "PLANTS_STORE=memory: cannot be shared by 0 worker processes; use one (WEB_CONCURRENCY or "),
        ("--certfile /", "cannot use certfile=/ and keyfile=None: [Errno 21] Is a directory"),
        ("--keyfile /x", "cannot use certfile=None and keyfile=/x: certfile should be a valid filesystem path."),
        ("--certfile /x --keyfile /y", "cannot use certfile=/x and keyfile=/y: [Errno 2] No such file or directory"),
        ({"PLANTS_TOKENS_CHECK": "nothing"}, "PLANTS_TOKENS_CHECK is not usable: set package.module:object."),
        *(
            ({name: value}, f"{name} is not usable: set a number from ")
            for name in ("PORT", "WEB_CONCURRENCY")
            for value in ("", "two", "99999")
        ),
        (
            {"PLANTS_METRICS_BIND": "127.0.0.1:9100", "GUNICORN_CMD_ARGS": "-k gthread"},
            "PLANTS_METRICS_BIND needs the packaged worker class, so do not set another one (-k, worker_class).",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_configuration_that_cannot_serve_fails_in_one_line(given: str | dict[str, str], line: str) -> None:
    options, env = (given.split(), {}) if isinstance(given, str) else ([], given)
    result = call("serve", "--check-config", *options, **{"PLANTS_TOKENS": TOKEN} | env)
    assert error_line(result).startswith(line)


def test_a_hook_that_makes_no_tls_context_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def ssl_context(_, make): make()")
    options = f"--config={tmp_path}/mine.py", f"--certfile={make_certificate(tmp_path)}"
    result = call("serve", "--check-config", *options, PLANTS_TOKENS=TOKEN)
    assert error_line(result).endswith("the hook ssl_context returned None.")


# Signals


# The two commands differ only in how they report that a file cannot be loaded.
@pytest.mark.parametrize("command", [SERVE, GUNICORN], ids=["plants serve", "gunicorn"])
def test_hup_reloads_the_configuration_unless_it_does_not_load(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    good = "from plants.hosting.gunicorn_conf import *\nbind = '127.0.0.1:0'\n"
    file.write_text(good)
    env = {
        "PLANTS_TOKENS": TOKEN,
        "GUNICORN_CMD_ARGS": f"-c {file}",
        # Python takes a file of the same size, written in the same second, for the one that it has compiled.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with Process(command, cwd=CHECKOUT, env=environment(**env)) as service:
        port = int(service.wait_for(r"Listening at: http://127\.0\.0\.1:(\d+)")[1])
        wait_for_workers(service.process.pid, 1)
        for content, problem in [
            ("workers =", "Gunicorn has printed the reason"),
            (good + "workers = 2\n", ".*cannot be shared by 2 worker processes"),
            (good + "certfile = '/missing'\n", "cannot use certfile=/missing and keyfile=None: .* No such file or "),
        ]:
            before = len(service.lines)
            file.write_text(content)
            service.signal(signal.SIGHUP)
            service.wait_for(f"the new configuration cannot be used, so the old one stays: {problem}", after=before)
            service.wait_for("Worker exiting", after=before)
            assert send_to(port, method="GET", path="/livez", headers=[]).status == 200
        file.write_text(good + "def post_worker_init(worker): worker.log.warning('the new configuration is here')\n")
        service.signal(signal.SIGHUP)
        service.wait_for("the new configuration is here")
        service.process.terminate()
        assert service.wait_for_exit() == 0


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_workers_start_after_the_certificate_becomes_unusable(tmp_path: Path) -> None:
    pem = make_certificate(tmp_path)
    with Service([*GUNICORN, "--bind=127.0.0.1:0", f"--certfile={pem}"], CHECKOUT, {"PLANTS_TOKENS": TOKEN}) as service:
        url = "https://" + service.wait_for(r"Listening at: https://(\S+)")[1]
        wait_for_workers(service.process.pid, 1)
        pem.write_text(pem.read_text()[:500])
        service.signal(signal.SIGHUP)
        service.wait_for(f"the new configuration .* the old one stays: cannot use certfile={pem} and keyfile=None: ")
        worker = service.wait_for(r"Booting worker with pid: (\d+)", times=2)[1]
        os.kill(int(worker), signal.SIGKILL)
        service.wait_for("Booting worker", times=3)
        assert "certificate" in call("check", url).stderr  # The handshake failed only because nothing trusts it.
        assert service.stop() == 0


def test_a_worker_ignores_hup() -> None:
    with serving() as service:
        os.kill(children(service.process.pid)[0], signal.SIGHUP)
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200
        assert service.stop() == 0
    assert sum("Booting worker" in line for line in service.lines) == 1


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


# What is hosted


# Both methods fail in the event loop, whose thread is the main thread.
OWN_STORE = """
import threading
from plants import MemoryStore, PlantStore, StoreUnavailable

class Garden(PlantStore):
    worker_threads, max_batch, multiprocess = 1, 1, False

    def __init__(self, url):
        if url != "garden://me:secret@home":
            raise ValueError("this is not my garden")
        self.plants = MemoryStore()

    def add(self, plant):
        self.check()
        self.plants.add(plant)

    def get(self, plant_id):
        return self.plants.get(plant_id)

    def check(self):
        if threading.current_thread() is threading.main_thread():
            raise StoreUnavailable("called in the loop")

    def close(self):
        pass
"""


def install_store(folder: Path, source: str) -> dict[str, str]:
    """Write the package of a store, and return the environment of a service that uses it."""
    (folder / "garden.py").write_text(source)
    (folder / "garden-1.dist-info").mkdir()
    (folder / "garden-1.dist-info" / "entry_points.txt").write_text("[plants.stores]\ngarden = garden:Garden\n")
    return {"PYTHONPATH": str(folder), "PLANTS_STORE": "garden://me:secret@home", "PLANTS_TOKENS": TOKEN}


@pytest.mark.parametrize("command", [SERVE, GUNICORN], ids=["plants serve", "gunicorn"])
def test_a_store_of_another_package_is_hosted_like_our_own(command: list[str], tmp_path: Path) -> None:
    env = install_store(tmp_path, OWN_STORE)
    with serving(command=command, **env) as service:  # type: ignore[arg-type]
        service.wait_for(r"plants .* listens on .*; plants are stored in garden://me:\*\*\*@home; try it at ")
        assert service.send(method="GET", path="/readyz", headers=[]).status == 200
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).error == 40003
    assert run(*SERVE, "--check-config", **env).stderr == ""
    for options, problem in ((["-w2"], "cannot be shared by 2 "), ([], "not usable: this is not my garden.")):
        url = env["PLANTS_STORE"] if options else "garden:"
        result = run(*SERVE, *options, "--check-config", **env | {"PLANTS_STORE": url})
        assert result.stderr.count("\n") == 1
        assert problem in result.stderr


def test_a_store_of_another_package_that_cannot_prepare_is_named(tmp_path: Path) -> None:
    env = install_store(
        tmp_path, OWN_STORE + "    def prepare(self, create): raise KeyError('garden://me:secret@home')"
    )
    result = run(*SERVE, "--log-level=warning", "-b127.0.0.1:0", **env)
    assert error_line(result) == "the store garden://me:***@home failed in prepare with KeyError."


OWN_CHECK = """
class Check:
    def accepts(self, token):
        return token == 'tulip'

class Failing:
    def accepts(self, token):
        raise OSError

check, failing = Check(), Failing()
"""


def test_a_custom_token_check_decides_beside_the_other_tokens(tmp_path: Path) -> None:
    (tmp_path / "garden.py").write_text(OWN_CHECK)
    with serving(cwd=tmp_path, PLANTS_TOKENS_CHECK="garden:check") as service:

        def error_of(token: str) -> int:
            return service.send(headers=[("Authorization", f"Bearer {token}")]).error

        assert [error_of(token) for token in ("tulip", TOKEN, "rose")] == [41500, 41500, 40101]


def test_a_token_check_that_raises_ends_no_worker(tmp_path: Path) -> None:
    (tmp_path / "garden.py").write_text(OWN_CHECK)
    with serving(cwd=tmp_path, PLANTS_TOKENS_CHECK="garden:failing") as service:
        assert service.send(headers=[AUTH, ("X-Request-ID", "first")]).error == 50000
        service.wait_for('.*"msg":"a request failed","request_id":"first"')
        assert service.send(method="GET", path="/livez", headers=[]).status == 200
        [worker] = children(service.process.pid)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: children(service.process.pid) not in ([], [worker]))
        assert service.send(method="GET", path="/livez", headers=[]).status == 200
    assert sum('"msg":"a request failed"' in line for line in service.lines) == 1


def test_importing_plants_has_no_side_effect() -> None:
    code = (
        "import sys, threading, logging, os, json; before = dict(os.environ); import plants;"
        "assert os.environ == before and threading.active_count() == 1 and not logging.getLogger('plants').handlers;"
        "print(json.dumps(sorted(name for name in sys.modules if name.startswith(('gunicorn', 'plants.')))))"
    )
    modules = json.loads(run(sys.executable, "-c", code, PLANTS_UNKNOWN="x").stdout)
    assert not [name for name in modules if name.startswith(("gunicorn", "plants.hosting", "plants.wsgi"))]
