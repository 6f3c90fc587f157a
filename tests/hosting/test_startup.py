"""The start of a hosted service, and where it logs."""

import json
import os
import re
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

import plants
from plants import server
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import CHECKOUT, SERVE, Service, call, environment, run, send_to, serving
from tests.support.needs import needs_psycopg, needs_root
from tests.support.process import END, Process, children, free_port, text_of, wait_for_workers, wait_until
from tests.support.servers import is_ready
from tests.support.tls_client import make_certificate

GUNICORN = [sys.executable, "-m", "gunicorn"]


def test_a_start_says_in_one_line_what_started(tmp_path: Path) -> None:
    url, metrics, path = f"sqlite:///{tmp_path}/plants.db", f"127.0.0.1:{free_port()}", f"unix:{tmp_path}/socket"
    for lifetime in (", which is new", ""):
        with serving(f"--bind={path}", PLANTS_STORE=url, PLANTS_METRICS_BIND=metrics) as service:
            service.wait_for(
                rf"plants {plants.__version__} \({server.implementation()}\) listens on 127.0.0.1:{service.port} {path}"
                rf"; plants are stored in {url}{lifetime}; metrics: http://{metrics}/metrics; "
                rf"try it at http://127.0.0.1:{service.port}/docs"
            )


@pytest.mark.parametrize("name", ["INVOCATION_ID", "KUBERNETES_SERVICE_HOST"])
def test_the_log_warns_that_plants_in_memory_are_lost_with_their_only_worker(name: str) -> None:
    with serving(**{name: "1"}) as service:  # type: ignore[arg-type]
        [worker] = children(service.process.pid)
        service.signal(signal.SIGTTIN)
        service.wait_for(r"PLANTS_STORE=memory: cannot be shared by 2 worker processes")
        os.kill(worker, signal.SIGKILL)
        warning = service.wait_for(f".*all plants in memory were lost with worker {worker}; their ids are free again.*")
        assert json.loads(warning[0])["level"] == "warning"
        service.wait_for("Booting worker", times=2)
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


@needs_root
@pytest.mark.parametrize("database", ["plants.db", "missing/plants.db"])
def test_a_new_file_is_owned_by_the_worker_user_and_the_master_stays_root(database: str) -> None:
    user = 12345
    with tempfile.TemporaryDirectory() as folder:  # Only root may enter tmp_path, so use another folder.
        os.chown(folder, user, user)
        command = [*SERVE, "--bind=127.0.0.1:0", f"--user={user}", f"--group={user}"]
        env = environment(PLANTS_TOKENS=TOKEN, PLANTS_STORE=f"sqlite:///{folder}/{database}")
        with Process(command, cwd=CHECKOUT, env=env) as service:
            wait_for_workers(service.process.pid, 1)
            status = Path(f"/proc/{service.process.pid}/status").read_text()
            assert re.search(r"^Uid:(\t0){4}$", status, re.MULTILINE)
            if "missing" in database:
                service.wait_for("the store cannot be used yet: ")
            owners = {(file.stat().st_uid, file.stat().st_gid) for file in Path(folder).glob("plants.db")}
            assert owners == (set() if "missing" in database else {(user, user)})


# This simulates `SystemCallFilter=~@privileged` of deploy/plants.service.
SANDBOX = """
import os
def forbidden(*_): raise PermissionError(1, "Operation not permitted")
os.chown = os.setegid = os.seteuid = forbidden
from plants.hosting.cli import main
main()
"""


def test_the_service_starts_if_chown_and_seteuid_are_forbidden(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SANDBOX, "serve"]
    store, metrics = f"sqlite:///{tmp_path}/plants.db", f"127.0.0.1:{free_port()}"
    with serving(command=command, PLANTS_STORE=store, PLANTS_METRICS_BIND=metrics) as service:
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200


@pytest.mark.parametrize(
    ("command", "env", "line"),
    [
        ([*SERVE, "--preload"], {"PLANTS_STOER": "x"}, "PLANTS_STOER is not a setting; did you mean PLANTS_STORE? "),
        ([*SERVE, "-w3", "--preload"], {}, "PLANTS_STORE=memory: cannot be shared by 3 worker processes; use one "),
        ([*GUNICORN, "--preload"], {"PLANTS_STORE": "x:"}, "PLANTS_STORE is not usable: a store's URL starts with "),
        (
            [*GUNICORN, "--log-level=debug", "--env", f"PLANTS_TOKENS={TOKEN}", "--workers=0"],
            {},
            "PLANTS_TOKENS has no effect in --env or raw_env; set it in the environment.",
        ),
        ([*GUNICORN, "-b192.0.2.1:80"], {}, "cannot listen on 192.0.2.1:80 (Cannot assign requested address); set "),
        (SERVE, {"GUNICORN_PID": "1", "GUNICORN_FD": "99"}, "[Errno 9] Bad file descriptor."),
        (
            [sys.executable, "-c", SANDBOX, "serve", "--bind=127.0.0.1:0", f"--user={os.geteuid() + 1}"],
            {},
            "only root can start workers as another user or group (--user, --group).",
        ),
    ],
    ids=["plants serve", "workers", "gunicorn", "tokens in raw_env", "address", "descriptor", "user"],
)
def test_a_start_that_fails_prints_one_line(command: list[str], env: dict[str, str], line: str) -> None:
    result = run(*command, **{"PLANTS_TOKENS": "a", "GUNICORN_CMD_ARGS": "--log-level=error"} | env)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith(f"plants: {line}")


def test_a_bad_setting_stops_plain_gunicorn_without_traceback() -> None:
    result = run(*GUNICORN, "-c", os.devnull, "-b", "127.0.0.1:0", "plants.wsgi:app", PLANTS_STORE="x:")
    assert result.returncode != 0
    assert "PLANTS_STORE is not usable: " in result.stderr
    assert "Traceback" not in result.stderr


def test_importing_plants_wsgi_without_tokens_logs_a_new_token() -> None:
    result = run(sys.executable, "-c", "import os, plants.wsgi; print(os.environ['PLANTS_TOKENS'])")
    assert result.stderr == (f"no token is set; a new one is valid until the service stops: {result.stdout.strip()}\n")


def test_only_check_config_accepts_an_address_in_use(tmp_path: Path) -> None:
    address = ("127.0.0.1", 0)
    with socket.create_server(address) as other, socket.create_server(address, reuse_port=True) as sharing:
        used, shared = (f"127.0.0.1:{sock.getsockname()[1]}" for sock in (other, sharing))
        for bind, metrics in ((used, ""), ("127.0.0.1:0", shared)):
            env = {"PLANTS_TOKENS": "a"} | ({"PLANTS_METRICS_BIND": metrics} if metrics else {})
            setting = "PLANTS_METRICS_BIND" if metrics else "--bind HOST:PORT"
            line = f"cannot listen on {metrics or bind} (Address already in use); set another one with {setting}"
            for options in ([], ["--reuse-port"]):
                result = call("serve", "--log-level=error", f"--bind={bind}", *options, **env)
                assert (result.returncode, result.stderr) == (1, f"plants: {line}.\n")
        env |= {"PLANTS_STORE": f"sqlite:///{tmp_path}/plants.db"}  # A start would create it.
        for metrics, options in ((shared, [f"-b={used}"]), (used, [f"-b={shared}", "--reuse-port", "-b=fd://0"])):
            result = call("serve", "--check-config", *options, **env | {"PLANTS_METRICS_BIND": metrics})
            assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


# A configuration that cannot serve


def error_line(*options: str, **env: str) -> str:
    """Check that ``--check-config`` fails with one line, and return it."""
    result = call("serve", "--check-config", *options, **{"PLANTS_TOKENS": TOKEN} | env)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    return result.stderr.removeprefix("plants: ").rstrip()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("-b 127.0.0.1:http", "'http' is not a valid port number."),
        ("-c /missing.py", "'/missing.py' doesn't exist."),
        ("-k nonexistent", "class uri 'nonexistent' invalid or not found."),
        ("--logger-class nonexistent", "class uri 'nonexistent' invalid or not found."),
        ("-e X", "environment setting 'X' invalid."),
        ("--cert-reqs 2", "cert_reqs has no effect without a certificate; set --certfile and --keyfile."),
        ("-b=", "--bind is empty; set HOST:PORT, or leave it out."),
        ("-w 2", "PLANTS_STORE=memory: cannot be shared by 2 worker processes; use one (WEB_CONCURRENCY or "),
        ("-w 0", "the service needs a worker process: set WEB_CONCURRENCY or --workers to 1 or more."),
        ("-e FOO=1 -e PLANTS_STORE=memory:", "PLANTS_STORE has no effect in --env or raw_env; set it in the "),
        ("--certfile /", "cannot use the certificate / without --keyfile (Is a directory); set another one with "),
        ("--keyfile /x", "cannot use the key /x without --certfile (certfile should be a valid filesystem path); "),
        ("--certfile /x --keyfile /y", "cannot use the certificate /x and the key /y (No such file or directory); "),
        ("--worker-tmp-dir /proc", "cannot make a file for a worker (No such file or directory); set another one "),
        ("--pid /missing/pid", "cannot make /missing/pid (No such file or directory); set another one with --pid."),
        ("-b 192.0.2.1:80", "cannot listen on 192.0.2.1:80 (Cannot assign requested address); set another one "),
        ("-b 127.0.0.1:99999", "cannot listen on 127.0.0.1:99999 (bind(): port must be 0-65535.); "),
        ("-b nonexistent.invalid:80", "cannot listen on nonexistent.invalid:80 ("),
        ({"GUNICORN_CMD_ARGS": "-b '"}, "No closing quotation."),
        ({"PLANTS_TOKENS_CHECK": "nothing"}, "PLANTS_TOKENS_CHECK is not usable: set package.module:object."),
        *(
            ({name: value}, f"{name} is not usable: set a number from ")
            for name in ("PORT", "WEB_CONCURRENCY")
            for value in ("", "two", "99999")
        ),
        ({"PLANTS_STORE": "sqlite:////x/y"}, "the store cannot be used: /x/y: there is no file, and no folder "),
        (
            {"PLANTS_METRICS_BIND": "127.0.0.1:9100", "GUNICORN_CMD_ARGS": "-k gthread"},
            "PLANTS_METRICS_BIND needs the packaged worker class, so do not set another one (-k, worker_class).",
        ),
        (
            {"PLANTS_METRICS_BIND": "127.0.0.1:9100", "GUNICORN_CMD_ARGS": "-b 127.0.0.1:9100"},
            "PLANTS_METRICS_BIND is an address of the service itself; set another one.",
        ),
        ({"PLANTS_METRICS_BIND": "unknown.invalid:9100"}, "cannot listen on unknown.invalid:9100 ("),
        (
            {"PLANTS_METRICS_BIND": "192.0.2.1:9100"},
            "cannot listen on 192.0.2.1:9100 (Cannot assign requested address); set another one with PLANTS_METRICS_",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_configuration_that_cannot_serve_fails_in_one_line(given: str | dict[str, str], line: str) -> None:
    options, env = (given.split(), {}) if isinstance(given, str) else ([], given)
    assert error_line(*options, **env).startswith(line)


@needs_psycopg
def test_check_config_only_warns_of_a_database_that_does_not_respond() -> None:
    url = f"postgresql://127.0.0.1:{free_port()}/x"
    result = run(*SERVE, "--check-config", PLANTS_TOKENS=TOKEN, PLANTS_STORE=url)
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith("the store cannot be used now: ")


def test_a_hook_that_makes_no_tls_context_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def ssl_context(_, make): make()")
    line = error_line(f"--config={tmp_path}/mine.py", f"--certfile={make_certificate(tmp_path)}")
    assert "(the hook ssl_context returned None); set another one with --certfile and --keyfile." in line


# HUP and USR2


# The two commands differ only in how they report that a file cannot be loaded, which the first two rows show.
@pytest.mark.parametrize(("command", "rows"), [(SERVE, None), (GUNICORN, 2)], ids=["plants serve", "gunicorn"])
def test_hup_reloads_the_configuration_unless_it_cannot_serve(
    command: list[str], rows: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    good = "from plants.hosting.gunicorn_conf import *\nbind = '127.0.0.1:0'\n"
    file.write_text(good)
    (tmp_path / "foreign").write_text("1\n")
    env = {
        "PLANTS_TOKENS": TOKEN,
        "GUNICORN_CMD_ARGS": f"--log-level=debug -c {file}",
        # Python takes a file of the same size, written in the same second, for the one that it has compiled.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with socket.create_server(("127.0.0.1", 0)) as other, Service(command, CHECKOUT, env) as service:
        service.wait_until_it_serves()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for content, problem in [
            ("workers =", "Failed to read config file: .*; SyntaxError: "),
            (good + "workers = 'many'\n", "Invalid value for workers: many"),
            (good + "workers = 2\n", ".*cannot be shared by 2 worker processes"),
            (good + "certfile = '/missing'\n", "cannot use the certificate /missing without --keyfile "),
            (good + "errorlog = '/missing/log'\n", "Error: '/missing/log' isn't writable "),
            (good + "pidfile = '/missing/pid'\n", "cannot make /missing/pid "),
            (good + f"pidfile = '{tmp_path}/foreign'\n", ".*/foreign has the id of another process, 1; set another "),
            (good + f"bind = '{address}'\n", rf"cannot listen on {address} \(Address already in use\)"),
            (good + "reuse_port = True\nbind = '127.0.0.1:99999'\n", "cannot listen on 127.0.0.1:99999 "),
        ][:rows]:
            before = len(service.lines)
            file.write_text(content)
            service.signal(signal.SIGHUP)
            service.wait_for(f"the new configuration cannot be used, so the old one stays: {problem}", after=before)
            service.wait_for("Worker exiting", after=before)
            assert service.send(method="GET", path="/livez", headers=[]).status == 200
        good += f"pidfile = '{tmp_path}/pid'\n"
        file.write_text(good + "def post_worker_init(worker): worker.log.warning('the new configuration is here')\n")
        service.signal(signal.SIGHUP)
        service.wait_for("the new configuration is here")
        assert service.stop() == 0


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_workers_start_after_the_certificate_becomes_unusable(tmp_path: Path) -> None:
    pem = make_certificate(tmp_path)
    with Service([*GUNICORN, "--bind=127.0.0.1:0", f"--certfile={pem}"], CHECKOUT, {"PLANTS_TOKENS": TOKEN}) as service:
        url = "https://" + service.wait_for(r"Listening at: https://(\S+)")[1]
        wait_for_workers(service.process.pid, 1)
        pem.write_text(pem.read_text()[:500])
        service.signal(signal.SIGHUP)
        service.wait_for(f"the old one stays: cannot use the certificate {pem} without --keyfile ")
        worker = service.wait_for(r"Booting worker with pid: (\d+)", times=2)[1]
        os.kill(int(worker), signal.SIGKILL)
        service.wait_for("Booting worker", times=3)
        assert "certificate" in call("check", url).stderr  # The handshake failed only because nothing trusts it.
        assert service.stop() == 0


@pytest.mark.parametrize(
    "command", [SERVE, [str(Path(sys.executable).with_name("gunicorn"))]], ids=["serve", "gunicorn"]
)
def test_usr2_starts_the_same_command_with_the_generated_token(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from plants.hosting.gunicorn_conf import *\n")
    command = ["env", "-u", "PLANTS_TOKENS", *command]
    with serving("--config", str(file), command=command) as service:
        token = service.wait_for(r"no token is set; .*: ([\w-]+)")[1]
        service.signal(signal.SIGHUP)
        service.wait_for("Booting worker", times=2)
        headers = [("Authorization", f"Bearer {token}"), JSON_TYPE]
        assert service.send(new_plant(), headers=headers).status == 200
        old = children(service.process.pid)
        service.signal(signal.SIGUSR2)
        service.wait_for("Booting worker", times=3)
        [new] = {*children(service.process.pid)} - {*old}
        service.process.terminate()
        service.process.wait(60)
        try:
            # Only the new master still serves.
            assert send_to(service.port, new_plant(), headers=headers).plant == {"name": "Fern"}
        finally:
            os.kill(new, signal.SIGTERM)
            service.wait_for(re.escape(END))
    assert sum(token in line for line in service.lines) == 1


def test_a_new_master_that_cannot_start_leaves_no_pid_file(tmp_path: Path) -> None:
    file, pid_file = tmp_path / "mine.py", tmp_path / "pid"
    file.touch()
    with serving("-c", str(file), "--pid", str(pid_file)) as service:
        file.write_text("certfile = '/missing'\n")
        service.signal(signal.SIGUSR2)
        service.wait_for("plants: cannot use the certificate")
        wait_until(lambda: not Path(f"{pid_file}.2").exists())
        assert pid_file.read_text() == f"{service.process.pid}\n"
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200
        assert service.stop() == 0
    assert not pid_file.exists()


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


@pytest.mark.parametrize("command", [SERVE, GUNICORN], ids=["plants serve", "gunicorn"])
def test_a_store_of_another_package_is_hosted_like_our_own(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "garden.py").write_text(OWN_STORE)
    (tmp_path / "garden-1.dist-info").mkdir()
    (tmp_path / "garden-1.dist-info" / "entry_points.txt").write_text("[plants.stores]\ngarden = garden:Garden\n")
    env = {"PYTHONPATH": str(tmp_path), "PLANTS_STORE": "garden://me:secret@home", "PLANTS_TOKENS": TOKEN}
    with serving(command=command, **env) as service:  # type: ignore[arg-type]
        service.wait_for("plants are stored in garden://me:\\*\\*\\*@home, until the process ends")
        assert service.send(method="GET", path="/readyz", headers=[]).status == 200
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).error == 40003
    assert "PLANTS_STORE=garden://me:***@home  # environment" in run(*SERVE[:-1], "config", **env).stdout
    assert run(*SERVE, "--check-config", **env).stderr == ""
    for options, problem in ((["-w2"], "cannot be shared by 2 "), ([], "not usable: this is not my garden.")):
        url = env["PLANTS_STORE"] if options else "garden:"
        result = run(*SERVE, *options, "--check-config", **env | {"PLANTS_STORE": url})
        assert result.stderr.count("\n") == 1
        assert problem in result.stderr


def test_a_token_check_of_ones_own_decides_beside_the_other_tokens(tmp_path: Path) -> None:
    (tmp_path / "garden.py").write_text(
        "class Check:\n    def accepts(self, token): return token == 'tulip'\n\ncheck = Check()\n"
    )
    with serving(cwd=tmp_path, PLANTS_TOKENS_CHECK="garden:check") as service:

        def error_of(token: str) -> int:
            return service.send(headers=[("Authorization", f"Bearer {token}")]).error

        assert [error_of(token) for token in ("tulip", TOKEN, "rose")] == [41500, 41500, 40101]


def test_importing_plants_has_no_side_effect() -> None:
    code = (
        "import sys, threading, logging, os, json; before = dict(os.environ); import plants;"
        "assert os.environ == before and threading.active_count() == 1 and not logging.getLogger('plants').handlers;"
        "print(json.dumps(sorted(name for name in sys.modules if name.startswith(('gunicorn', 'plants.')))))"
    )
    modules = json.loads(run(sys.executable, "-c", code, PLANTS_UNKNOWN="x").stdout)
    assert not [name for name in modules if name.startswith(("gunicorn", "plants.hosting", "plants.wsgi"))]
