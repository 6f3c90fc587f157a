"""The start of a hosted service, and where it logs."""

import json
import os
import pty
import pwd
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import CHECKOUT, SERVE, Service, call, environment, run, serving
from tests.support.needs import needs_root
from tests.support.process import END, Process, children, free_port, wait_for_workers, wait_until
from tests.support.tls_client import make_certificate


@pytest.mark.parametrize("command", [SERVE, [sys.executable, "-m", "gunicorn"]], ids=["plants serve", "gunicorn"])
@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_service_starts_with_one_command(command: list[str]) -> None:
    with serving(command=command) as service:
        assert service.send(new_plant(tag="shade"), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern", "tag": "shade"}
        assert service.send(method="GET", path="/readyz", headers=[]).status == 200
        assert service.stop() == 0


@pytest.mark.parametrize(
    ("store", "bind", "line"),
    [
        (
            "memory:",
            "0.0.0.0:0",
            r"listening on http://0\.0\.0\.0:(\d+); .* memory:, until the process ends; try it at http://127\.0\.0\.1:\1/docs",
        ),
        ("sqlite:///{}/db", "unix:{}/socket", r"listening on unix:.*/socket; plants are stored in sqlite:///.*/db\r\n"),
    ],
    ids=["memory", "sqlite"],
)
def test_a_start_on_a_terminal_prints_the_services_address(store: str, bind: str, line: str, tmp_path: Path) -> None:
    env = environment(PLANTS_TOKENS=TOKEN, PLANTS_STORE=store.format(tmp_path))
    terminal, end = pty.openpty()
    process = subprocess.Popen([*SERVE, f"--bind={bind.format(tmp_path)}"], cwd=CHECKOUT, env=env, stderr=end)
    os.close(end)
    output = ""
    try:
        while not re.search(line, output) and "Booting worker" not in output:
            output += os.read(terminal, 4096).decode()
        assert re.search(line, output)
    finally:
        process.terminate()
        process.wait(60)
        os.close(terminal)


def test_a_killed_worker_of_the_dictionary_store_logs_a_warning() -> None:
    with serving() as service:
        [worker] = children(service.process.pid)
        os.kill(worker, signal.SIGKILL)
        line = service.wait_for(rf".*all plants in memory were lost with worker {worker}; their ids are free again.*")[
            0
        ]
        assert json.loads(line)["level"] == "warning"
        assert service.stop() == 0
    assert sum("were lost" in line for line in service.lines) == 1


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_service_recovers_when_a_removed_file_is_back(tmp_path: Path) -> None:
    file, elsewhere = tmp_path / "plants.db", tmp_path / "elsewhere"
    with serving(PLANTS_STORE=f"sqlite:///{file}") as service:
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}
        file.rename(elsewhere)
        response = service.send(new_plant(id=2), headers=[AUTH, JSON_TYPE])
        assert (response.error, response.headers["retry-after"]) == (50300, "1")
        assert service.send(method="GET", path="/livez", headers=[]).status == 200
        assert service.send(method="GET", path="/readyz", headers=[]).error == 50300
        elsewhere.rename(file)
        wait_until(lambda: service.send(method="GET", path="/readyz", headers=[]).status == 200)
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).error == 40003
        assert service.send(new_plant(id=3), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}


def test_a_generated_token_is_logged_once_and_works() -> None:
    command = ["env", "-u", "PLANTS_TOKENS", *SERVE]
    with serving(command=command) as service:
        token = service.wait_for(r"no token is set; a new one is valid until the service stops: ([\w-]+)")[1]
        headers = [("Authorization", f"Bearer {token}"), JSON_TYPE]
        assert service.send(new_plant(), headers=headers).status == 200
        before = len(service.lines)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("Booting worker", after=before)
        assert service.send(new_plant(id=2), headers=headers).status == 200
    assert sum(token in line for line in service.lines) == 1


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_service_logs_to_gunicorns_error_log(tmp_path: Path) -> None:
    tokens, log = tmp_path / "tokens", tmp_path / "log"
    tokens.write_text("first\n")
    command = [*SERVE, "--bind=127.0.0.1:0", f"--error-logfile={log}"]
    with Service(command, CHECKOUT, {"PLANTS_TOKENS_FILE": str(tokens)}) as service:
        wait_until(lambda: log.exists() and "Booting worker" in log.read_text())
        tokens.write_text("not a token\n")
        wait_until(lambda: "the token file cannot be used" in log.read_text())
    lines = [json.loads(line) for line in log.read_text().splitlines() if "the token file cannot be used" in line]
    assert {line["level"] for line in lines} == {"error"}
    assert service.lines == [END]


def test_a_new_worker_accepts_no_token_until_it_can_use_the_file(tmp_path: Path) -> None:
    tokens, new = tmp_path / "tokens", tmp_path / "new"
    tokens.write_text("first\nsecond\n")

    def error_of(token: str) -> int:
        return service.send(headers=[("Authorization", f"Bearer {token}")]).error

    with serving(PLANTS_TOKENS_FILE=str(tokens), command=["env", "-u", "PLANTS_TOKENS", *SERVE]) as service:
        assert (error_of("first"), error_of("second")) == (41500, 41500)
        new.write_text("second\n")
        new.replace(tokens)
        service.wait_for("the token file has changed; valid tokens: 1")
        tokens.write_text("not a token\n")
        before = len(service.lines)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for("Worker exiting", after=before)
        assert (error_of("first"), error_of("second")) == (40101, 40101)
        new.write_text("second\n")
        new.replace(tokens)
        wait_until(lambda: error_of("second") == 41500)
        assert service.stop() == 0


# The second worker waits before its first instruction until the test opens the pipe for writing.
LATE_WORKER = """
import os
forks = 0
def pre_fork(server, worker):
    global forks
    forks += 1
def wait():
    if forks == 2:
        open({!r}, "rb").close()
os.register_at_fork(after_in_child=wait)
"""


def test_a_signal_to_a_worker_that_has_not_started_is_not_lost(tmp_path: Path) -> None:
    pipe, conf = tmp_path / "pipe", tmp_path / "conf.py"
    os.mkfifo(pipe)
    conf.write_text(LATE_WORKER.format(str(pipe)))
    store = f"sqlite:///{tmp_path}/plants.db"
    with serving("--config", str(conf), "--graceful-timeout=300", PLANTS_STORE=store) as service:
        [first] = children(service.process.pid)
        service.process.send_signal(signal.SIGTTIN)
        [late] = wait_until(lambda: {*children(service.process.pid)} - {first})
        service.process.terminate()
        service.wait_for("Handling signal: term")
        wait_until(lambda: first not in children(service.process.pid))
        pipe.write_bytes(b"")
        assert service.wait_for_exit() == 0
    assert not Path(f"/proc/{late}").exists()


def test_log_config_decides_where_the_service_logs(tmp_path: Path) -> None:
    (tmp_path / "logging.json").write_text(
        json.dumps(
            {
                "version": 1,
                "root": {"handlers": []},
                "disable_existing_loggers": False,
                "handlers": {"file": {"class": "logging.FileHandler", "filename": str(tmp_path / "log")}},
                "loggers": {"plants": {"handlers": ["file"]}},
            }
        )
    )
    (tmp_path / "tokens").write_text("first\n")
    with serving(
        "--log-config-json", str(tmp_path / "logging.json"), PLANTS_TOKENS_FILE=str(tmp_path / "tokens")
    ) as service:
        (tmp_path / "tokens").unlink()
        wait_until((tmp_path / "log").read_text)
    assert "the token file cannot be used" in (tmp_path / "log").read_text()
    assert not any("the token file" in line for line in service.lines)


@needs_root
def test_a_new_file_is_owned_by_the_worker_user() -> None:
    user = 12345
    with tempfile.TemporaryDirectory() as folder:  # Only root may enter tmp_path, so use another folder.
        os.chown(folder, user, user)
        file = Path(folder, "plants.db")
        command = [*SERVE, "--bind=127.0.0.1:0", f"--user={user}", f"--group={user}"]
        env = environment(PLANTS_TOKENS=TOKEN, PLANTS_STORE=f"sqlite:///{file}")
        with Process(command, cwd=CHECKOUT, env=env) as service:
            wait_for_workers(service.process.pid, 1)
            assert (file.stat().st_uid, file.stat().st_gid) == (user, user)


@needs_root
@pytest.mark.parametrize("options", [[], ["--initgroups"]], ids=["user alone", "initgroups"])
def test_the_master_stays_root_if_the_store_is_unavailable(options: list[str]) -> None:
    command = [*SERVE, "--bind=127.0.0.1:0", "--user=12345", *options]
    env = environment(PLANTS_TOKENS=TOKEN, PLANTS_STORE="sqlite:////missing/plants.db")
    with Process(command, cwd=CHECKOUT, env=env) as service:
        service.wait_for("the store cannot be used yet: ")
        wait_for_workers(service.process.pid, 1)
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        assert re.search(r"^Uid:(\t0){4}$", status, re.MULTILINE)


@needs_root
@pytest.mark.parametrize("options", [[], ["--check-config"], ["--chdir=/"]], ids=["start", "check", "chdir"])
def test_a_token_file_that_workers_cannot_read_stops_the_start(options: list[str], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    tokens.chmod(0o600)
    command = ["serve", "--log-level=error", "--bind=127.0.0.1:0", "--user=12345", *options]
    result = call(*command, cwd=tmp_path, PLANTS_TOKENS_FILE=tokens.name)
    assert (result.returncode, result.stderr) == (
        1,
        "plants: PLANTS_TOKENS_FILE is not usable: the user of the workers cannot read it (--user, --initgroups).\n",
    )


@needs_root
def test_a_key_that_workers_cannot_read_stops_the_start(tmp_path: Path) -> None:
    pem = make_certificate(tmp_path)
    pem.chmod(0o600)
    result = call(
        "serve", "--log-level=error", "--bind=127.0.0.1:0", "--user=12345", f"--certfile={pem}", PLANTS_TOKENS="a"
    )
    line = "cannot use the certificate (Permission denied); choose another one with --certfile and --keyfile"
    assert (result.returncode, result.stderr) == (1, f"plants: {line}.\n")


USERS_IN_GROUPS = [user for user in pwd.getpwall() if user.pw_uid and len(os.getgrouplist(user.pw_name, 12345)) > 1]


@needs_root
@pytest.mark.skipif(not USERS_IN_GROUPS, reason="no user has a supplementary group")
@pytest.mark.parametrize(("options", "status"), [([], 1), (["--initgroups"], 0)], ids=["without", "with"])
def test_initgroups_decides_whether_workers_can_read_the_tokens(options: list[str], status: int) -> None:
    user = USERS_IN_GROUPS[0]
    [group, *_] = {*os.getgrouplist(user.pw_name, 12345)} - {12345, *os.getgroups()}
    with tempfile.NamedTemporaryFile("w") as tokens:
        tokens.write("secret\n")
        tokens.flush()
        os.chown(tokens.name, 0, group)
        Path(tokens.name).chmod(0o640)
        command = [*SERVE, "--check-config", "--bind=127.0.0.1:0", f"--user={user.pw_uid}", "--group=12345", *options]
        assert run(*command, PLANTS_TOKENS_FILE=tokens.name).returncode == status


# This simulates `SystemCallFilter=~@privileged` of deploy/plants.service.
SANDBOX = """
import os
def forbidden(*_): raise PermissionError(1, "Operation not permitted")
os.chown = os.setegid = os.seteuid = forbidden
from plants.hosting.cli import main
main()
"""


def test_a_start_that_cannot_change_its_user_fails_in_one_line() -> None:
    result = run(sys.executable, "-c", SANDBOX, "serve", "--bind=127.0.0.1:0", f"--user={os.geteuid() + 1}")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "plants: only root can start workers as another user or group (--user, --group)."
    )
    assert "Traceback" not in result.stderr


def test_the_service_starts_if_chown_and_seteuid_are_forbidden(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SANDBOX, "serve"]
    store, metrics = f"sqlite:///{tmp_path}/plants.db", f"127.0.0.1:{free_port()}"
    with serving(command=command, PLANTS_STORE=store, PLANTS_METRICS_BIND=metrics) as service:
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200


def test_an_inherited_socket_is_served_but_not_passed_on_by_usr2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        activate = 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&0'
        command = ["sh", "-c", activate, "sh", *SERVE, "--bind", f"127.0.0.1:{listener.getsockname()[1]}"]
        with Service(command, CHECKOUT, {"PLANTS_TOKENS": TOKEN}, stdin=listener.fileno()) as service:
            service.wait_until_it_serves()
            assert service.port == listener.getsockname()[1]
            service.signal(signal.SIGUSR2)
            service.wait_for("plants: .*(Bad file descriptor|Socket operation on non-socket)")
            assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).status == 200


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_signals_term_and_int_stop_the_service() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with serving() as service:
            service.signal(number)
            assert service.wait_for_exit() == 0
        assert "Traceback" not in "".join(service.lines)


@pytest.mark.parametrize("hook", ["post_fork(server, worker)", "post_worker_init(worker)"])
def test_a_worker_stopped_before_it_serves_is_replaced(hook: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"import os\ndef {hook}:\n    if worker.age == 1: os.kill(os.getpid(), {int(signal.SIGTERM)})\n"
    )
    with serving(f"-c={tmp_path}/mine.py", PLANTS_METRICS_BIND=f"127.0.0.1:{free_port()}") as service:
        service.wait_for(r"Worker \(pid:\d+\) was sent SIGTERM|Worker exiting")
        service.wait_for("Booting worker", times=2)


TOO_MANY_WORKERS = [
    ([], {"WEB_CONCURRENCY": "2"}),
    (["--workers", "2"], {}),
    (["-w3", "--preload"], {}),
    ([], {"GUNICORN_CMD_ARGS": "--workers 2"}),
]


@pytest.mark.parametrize(("options", "env"), TOO_MANY_WORKERS, ids=["environment", "option", "preload", "arguments"])
def test_the_dictionary_store_is_not_served_by_two_processes(options: list[str], env: dict[str, str]) -> None:
    result = call("serve", *options, **env)
    assert result.returncode == 1
    assert result.stderr.startswith("plants: PLANTS_STORE=memory: cannot be shared by ")
    assert result.stderr.count("\n") == 1


def test_ttin_adds_no_second_worker_to_the_dictionary_store() -> None:
    with serving() as service:
        service.wait_for("Booting worker")
        service.process.send_signal(signal.SIGTTIN)
        service.wait_for(r"PLANTS_STORE=memory: cannot be shared by 2 worker processes")
        assert service.stop() == 0
    assert sum("Booting worker" in line for line in service.lines) == 1


@pytest.mark.parametrize(
    ("options", "env"),
    [([], {"PLANTS_STOER": "x"}), (["--preload"], {"PLANTS_STORE": "x:"}), ([], {"PLANTS_TOKENS": "a;b"})],
    ids=["unknown name", "store", "token"],
)
@pytest.mark.parametrize("gunicorn", [False, True], ids=["plants serve", "gunicorn"])
def test_a_bad_setting_stops_the_start_with_one_line(gunicorn: bool, options: list[str], env: dict[str, str]) -> None:
    result = run(sys.executable, "-m", "gunicorn", *options, **env) if gunicorn else call("serve", *options, **env)
    assert result.returncode == 1
    assert result.stderr.startswith(f"plants: {next(iter(env))} is not ")
    assert result.stderr.count("\n") == 1


def test_gunicorn_rejects_tokens_in_raw_env_without_logging_them() -> None:
    options = ["--log-level=debug", "--env", "PLANTS_TOKENS=secret", "--workers=0"]
    result = run(sys.executable, "-m", "gunicorn", *options, PLANTS_TOKENS="a")
    line = "plants: PLANTS_TOKENS has no effect in --env or raw_env; set it in the environment.\n"
    assert (result.returncode, result.stdout, result.stderr) == (1, "", line)


def test_a_bad_setting_stops_plain_gunicorn_without_traceback() -> None:
    result = run(
        sys.executable, "-m", "gunicorn", "-c", os.devnull, "-b", "127.0.0.1:0", "plants.wsgi:app", PLANTS_STORE="x:"
    )
    assert result.returncode != 0
    assert "PLANTS_STORE is not usable: " in result.stderr
    assert "Traceback" not in result.stderr


def test_importing_plants_wsgi_without_tokens_logs_a_new_token() -> None:
    result = run(sys.executable, "-c", "from plants import wsgi; print(wsgi.settings.new_token)")
    assert result.stderr == (f"no token is set; a new one is valid until the service stops: {result.stdout.strip()}\n")


@pytest.mark.parametrize(
    ("host", "options"),
    [("127.0.0.1", []), ("[::1]", []), ("127.0.0.1", ["--reuse-port"])],
    ids=["IPv4", "IPv6", "--reuse-port"],
)
@pytest.mark.usefixtures("no_subprocess_coverage")
def test_a_port_in_use_stops_the_start_with_one_line(host: str, options: list[str]) -> None:
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    with socket.create_server((host.strip("[]"), 0), family=family) as other:
        port = other.getsockname()[1]
        result = run(*SERVE, "--bind", f"{host}:{port}", *options, PLANTS_TOKENS="a")
    assert result.returncode == 1
    assert f":{port} (Address already in use); choose another address with --bind HOST:PORT" in result.stderr
    assert len([line for line in result.stderr.splitlines() if "info" not in line]) == 1


def test_addresses_that_overlap_stop_the_start_with_one_line() -> None:
    port = free_port()
    options = ["--log-level=error", f"--bind=0.0.0.0:{port}", f"--bind=127.0.0.1:{port}"]
    result = call("serve", *options, PLANTS_TOKENS="a")
    line = f"cannot listen on 127.0.0.1:{port} (Address already in use); choose another address with --bind HOST:PORT"
    assert (result.returncode, result.stderr) == (1, f"plants: {line}.\n")


def test_check_config_accepts_a_shared_port_and_a_descriptor() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        options = ["--check-config", "--reuse-port", f"--bind=127.0.0.1:{other.getsockname()[1]}", "--bind=fd://0"]
        result = call("serve", *options, PLANTS_TOKENS="a")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:99999", r"bind\(\): port must be 0-65535."),
        ("nowhere.invalid:8000", "Name or service not known|Temporary failure in name resolution"),
    ],
    ids=["port", "name"],
)
@pytest.mark.usefixtures("no_subprocess_coverage")
def test_an_unusable_address_is_reported_in_one_line(address: str, reason: str) -> None:
    result = run(sys.executable, "-m", "gunicorn", "--log-level=error", "--bind", address, PLANTS_TOKENS="a")
    assert result.returncode == 1
    line = rf"plants: cannot listen on {address} \(.*({reason}).*\); choose another address with --bind HOST:PORT\.\n"
    assert re.fullmatch(line, result.stderr)


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_gunicorn_reports_a_missing_certificate_in_one_line() -> None:
    options = ["--log-level=error", "--bind=127.0.0.1:0", "--certfile=/missing"]
    result = run(sys.executable, "-m", "gunicorn", *options, PLANTS_TOKENS="a")
    assert result.returncode == 1
    assert result.stderr.startswith("plants: cannot use the certificate (No such file or directory); ")
    assert result.stderr.count("\n") == 1


def test_a_unix_socket_address_is_served(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving("--bind", f"unix:{path}") as service, socket.socket(socket.AF_UNIX) as client:
        service.wait_for("Booting worker")
        client.connect(str(path))
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_start_replaces_a_unix_socket_unless_it_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        result = run(*SERVE, "--log-level=error", "--bind", f"unix:{path}", PLANTS_TOKENS="a")
        assert result.returncode == 1
        assert result.stderr == (
            f"plants: cannot listen on unix:{path} (Address already in use); choose another address with "
            "--bind HOST:PORT.\n"
        )
    with serving("--bind", f"unix:{path}"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_no_control_socket_is_opened(tmp_path: Path) -> None:
    with serving(HOME=str(tmp_path), XDG_RUNTIME_DIR="") as service:
        assert service.stop() == 0
    # Gunicorn creates the folder of a control socket after it has started its workers, and never removes this folder.
    assert list(tmp_path.iterdir()) == []


def test_importing_plants_has_no_side_effect() -> None:
    code = (
        "import sys, threading, logging, os, json; before = dict(os.environ); import plants;"
        "assert os.environ == before and threading.active_count() == 1 and not logging.getLogger('plants').handlers;"
        "print(json.dumps(sorted(name for name in sys.modules if name.startswith(('gunicorn', 'plants.')))))"
    )
    modules = json.loads(run(sys.executable, "-c", code, PLANTS_UNKNOWN="x").stdout)
    assert not [name for name in modules if name.startswith(("gunicorn", "plants.hosting", "plants.wsgi"))]
