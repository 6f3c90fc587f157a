"""The commands of docs/operating.md. The tests run them in a temporary folder, which replaces the root directory."""

import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import plants
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import CHECKOUT, SERVE, Service, environment, output_of, send_to, serving
from tests.support.needs import needs
from tests.support.process import Process, free_port, wait_for_workers, wait_until
from tests.support.proxies import NGINX
from tests.support.servers import is_ready

OPERATING = (CHECKOUT / "docs/operating.md").read_text()
DIAGNOSE, INSTALL, ROTATE, RELOAD, RESTART, DRAIN = re.findall(r"```console\n(.*?)```", OPERATING, re.DOTALL)
pytestmark = pytest.mark.usefixtures("no_subprocess_coverage")
SERVERS = """
upstream plants {
    server 127.0.0.1:8001;
    server 127.0.0.1:8002;
}
server {
    listen 127.0.0.1:8000;
    location / {
        proxy_pass http://plants;
    }
}
"""
Run = Callable[..., str]


def write_program(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def with_root(folder: Path, script: str) -> str:
    """Return a script that uses ``folder`` as the root directory."""
    return re.sub(r"(?<!\w)/(?=(?:etc|opt|run)/)", f"{folder}/", script)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of the commands, in which ``plants`` is the command of this checkout."""
    plants_command = f'exec {shlex.quote(sys.executable)} -m plants "$@"'
    for name in ("bin", "opt/plants/bin"):
        write_program(tmp_path / name / "plants", plants_command)
    (tmp_path / "run").mkdir()
    return environment(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", PLANTS_TOKENS=TOKEN)


@pytest.fixture
def run(tmp_path: Path, env: dict[str, str]) -> Run:
    def run(script: str, cwd: Path = tmp_path, **more: str) -> str:
        return output_of("sh", "-e", "-c", with_root(tmp_path, script), cwd=cwd, **env | more)

    return run


@contextmanager
def started(command: str, folder: Path, env: dict[str, str]) -> Iterator[int]:
    """Run a command that starts the service, and return its port."""
    port = free_port()
    bind = {"GUNICORN_CMD_ARGS": f"--bind=127.0.0.1:{port}"}
    with Process(["sh", "-c", command.replace("plants serve", "exec plants serve")], cwd=folder, env=env | bind):
        wait_until(lambda: is_ready(port))
        yield port


def address_of(service: Service) -> dict[str, str]:
    """Return the environment variable with which a command finds the service."""
    return {"PORT": str(service.port)}


def create(service: Service, plant_id: int, token: str = TOKEN) -> int:
    headers = [("Authorization", f"Bearer {token}"), JSON_TYPE]
    return service.send(new_plant(id=plant_id), headers=headers).status


def test_the_diagnostic_commands_work_as_documented(run: Run) -> None:
    check, check_config, print_config, version = DIAGNOSE.splitlines()
    with serving() as service:
        address = address_of(service)
        assert run(check, **address).endswith(": ready\n")
        assert run(check_config, **address) == ""
        assert re.search(rf"^bind += \['0.0.0.0:{service.port}'\]$", run(print_config, **address), re.MULTILINE)
    assert run(version).startswith(f"plants {plants.__version__}")


def test_the_systemd_installation_prepares_the_unit(run: Run, tmp_path: Path) -> None:
    # Do not run the first line, because an installation takes long. A test of the README already installs the package,
    # but without the postgres extra. Replace systemctl, because it needs a running systemd.
    first, *script = INSTALL.splitlines()
    install = "python3 -m venv /opt/plants && /opt/plants/bin/pip install '.[postgres,metrics]' && "
    assert first.startswith(install)
    script.insert(0, first.removeprefix(install))
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    write_program(tmp_path / "bin/systemctl", f'echo "$@" >> {tmp_path}/calls')
    # The commands must not find ``plants`` on PATH, because the installation does not put it there.
    write_program(tmp_path / "bin/plants", "exit 127")
    with serving() as service:
        assert run("\n".join(script), cwd=CHECKOUT, **address_of(service)).endswith(": ready\n")
    run(RESTART)
    calls = (tmp_path / "calls").read_text().splitlines()
    enabled = "plants.socket plants.service plants-backup.timer"
    assert calls == ["daemon-reload", f"enable --now {enabled}", "daemon-reload", "restart plants"]
    assert {file.name for file in units.iterdir()} == {"plants-backup.service", *enabled.split()}
    assert (tmp_path / "opt/plants/backup.py").is_file()
    tokens = tmp_path / "etc/plants/tokens"
    assert tokens.read_text().startswith("sha256:")
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600


def test_a_token_is_rotated_without_a_rejected_request(run: Run, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("old-line\n")
    tokens.chmod(0o640)
    print_token, add, wait, remove = ROTATE.splitlines()
    command = ["env", "-u", "PLANTS_TOKENS", *SERVE]
    with serving(command=command, PLANTS_TOKENS_FILE=str(tokens)) as service:
        token, line = run(f"exec 2>&1\n{print_token}").splitlines()[-2:]
        assert create(service, 1, "old-line") == 200
        run(add.replace("sha256:...", line))
        assert wait.startswith("sleep 3 ")
        wait_until(lambda: create(service, 2, token) == 200)
        assert create(service, 3, "old-line") == 200
        run(remove)
        wait_until(lambda: create(service, 4, "old-line") == 401)
        assert create(service, 5, token) == 200
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o640


def test_a_hup_loads_a_changed_configuration(run: Run, tmp_path: Path) -> None:
    configuration = tmp_path / "settings.py"
    configuration.touch()
    options = [f"--config={configuration}", f"--pid={tmp_path}/run/plants.pid"]
    with serving(*options, PLANTS_STORE=f"sqlite:///{tmp_path}/plants.db") as service:
        configuration.write_text("workers = 2")
        run(RELOAD)
        wait_for_workers(service.process.pid, 2)
        assert create(service, 1) == 200


@needs("nginx")
def test_nginx_drains_a_service_before_it_stops(run: Run, tmp_path: Path) -> None:
    with ExitStack() as stack:
        services = [
            stack.enter_context(serving(f"--pid={tmp_path}/run/plants-{number}.pid")) for number in (8001, 8002)
        ]
        ports = {"8000": free_port(), "8001": services[0].port, "8002": services[1].port}

        def with_ports(text: str) -> str:
            return re.sub(r"(?<=127\.0\.0\.1:)80\d\d", lambda found: str(ports[found[0]]), text)

        file = tmp_path / "etc/nginx/conf.d/plants.conf"
        file.parent.mkdir(parents=True)
        file.write_text(with_ports(SERVERS))
        (tmp_path / "nginx.conf").write_text(NGINX % "include etc/nginx/conf.d/plants.conf;")
        nginx = ["nginx", "-p", str(tmp_path), "-c", "nginx.conf"]
        balancer = stack.enter_context(Process(nginx, cwd=tmp_path, env=environment()))
        wait_until(lambda: is_ready(ports["8000"]))
        drain, wait, stop = with_ports(DRAIN).splitlines()
        assert wait == "sleep 2"
        run(drain.replace("nginx -s", f"{shlex.join(nginx)} -s"))
        balancer.wait_for("exited with code 0")  # This is the worker with the old configuration.

        def create_through_nginx(plant_id: int) -> None:
            headers = [AUTH, JSON_TYPE, ("X-Request-ID", f"request-{plant_id}")]
            assert send_to(ports["8000"], new_plant(id=plant_id), headers=headers).status == 200
            services[1].line_of(f"request-{plant_id}")

        # If nginx still used both services, it would send one of two requests to each.
        create_through_nginx(1)
        create_through_nginx(2)
        run(stop)
        assert services[0].wait_for_exit() == 0
        create_through_nginx(3)
