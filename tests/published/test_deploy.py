"""The files of deploy/, checked by the tools that read them, or used to start the service."""

import configparser
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import plants
from tests.contract import JSON_TYPE, new_plant
from tests.support.hosted import CHECKOUT, SERVE, Service
from tests.support.needs import needs

DEPLOY = CHECKOUT / "deploy"
UNIT = DEPLOY / "plants.service"
STATE = "/var/lib/plants"


@needs("systemd-analyze")
def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    for name in ("plants.socket", "plants.service", "plants-backup.service", "plants-backup.timer"):
        # systemd checks that the program exists; the test machine has no /opt/plants.
        (tmp_path / name).write_text(re.sub("/opt/plants/bin/[a-z]+", "/bin/sh", (DEPLOY / name).read_text()))
    result = subprocess.run(
        ["systemd-analyze", "verify", *tmp_path.iterdir()], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@needs("systemd-analyze")
def test_systemd_rates_the_exposure_of_the_unit_at_most_1_5() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=15", str(UNIT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def settings_of_the_unit() -> list[str]:
    """Return the environment that the unit sets, each variable as NAME=value."""
    lines = UNIT.read_text().splitlines()
    return [line.removeprefix("Environment=") for line in lines if line.startswith("Environment=")]


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_unit_starts_a_service_that_notifies_systemd(tmp_path: Path) -> None:
    credentials, state = tmp_path / "credentials", tmp_path / "state"
    credentials.mkdir()
    state.mkdir()
    (credentials / "tokens").write_text("secret\n")
    env = dict(
        setting.replace("%d", str(credentials)).replace(STATE, str(state)).split("=", 1)
        for setting in settings_of_the_unit()
    )
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        env |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "CREDENTIALS_DIRECTORY": str(credentials)}
        command = ["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&0', "sh", *SERVE]
        with Service(command, CHECKOUT, env, stdin=listener.fileno()) as service:
            assert b"READY=1" in manager.recv(4096)
            service.port = listener.getsockname()[1]
            headers = [("Authorization", "Bearer secret"), JSON_TYPE]
            assert service.send(new_plant(), headers=headers).plant == {"name": "Fern"}
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(60) == 0
    assert (state / "plants.db").stat().st_size > 0


def can_unshare() -> bool:
    return shutil.which("bwrap") is not None and (
        subprocess.run(["bwrap", "--ro-bind", "/", "/", "--unshare-user", "true"], check=False).returncode == 0
    )


@pytest.mark.skipif(not can_unshare(), reason="bwrap is not installed or may not create a user namespace")
def test_a_service_starts_on_a_read_only_root_as_any_user() -> None:
    # The checkout and Python may be below /tmp.
    places = map(shlex.quote, {str(CHECKOUT), sys.prefix, sys.base_prefix})
    bound = " ".join(f"--ro-bind {place} {place}" for place in places)
    box = shlex.split(
        f"bwrap --ro-bind / / --tmpfs /tmp --tmpfs /var/tmp {bound} --remount-ro /tmp --remount-ro /var/tmp "
        "--proc /proc --dev /dev --tmpfs /dev/shm --unshare-user --uid 54321 --gid 54321 --unshare-pid "
        "--die-with-parent --unsetenv HOME --unsetenv COVERAGE_PROCESS_CONFIG --chdir /"
    )
    with Service([*box, *SERVE, "--bind", "127.0.0.1:0"], CHECKOUT, {"PLANTS_TOKENS": "secret"}) as service:
        service.wait_until_it_serves()
        headers = [("Authorization", "Bearer secret"), JSON_TYPE]
        assert service.send(new_plant(), headers=headers).plant == {"name": "Fern"}
        assert not [line for line in service.lines if '"level":"error"' in line]


def test_kubernetes_validate_accepts_every_resource() -> None:
    command = [str(Path(sys.executable).with_name("kubernetes-validate")), "--strict", str(DEPLOY / "kubernetes.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.count("passed")) == (0, 3), result.stdout + result.stderr


def locked_versions(file: str) -> dict[str, list[int]]:
    """Return the locked version of each package; each must have a hash."""
    lock = (DEPLOY / file).read_text()
    assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=[a-z])", lock)[1:])
    return {name: numbers(version) for name, version in re.findall(r"^([a-z-]+)==([0-9.]+) \\$", lock, re.MULTILINE)}


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_the_image_locks_what_the_package_and_its_build_require() -> None:
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    extras = setup["options.extras_require"]
    locked = locked_versions("requirements.txt")
    for requirement in (setup["options"]["install_requires"] + extras["postgres"] + extras["metrics"]).split():
        lowest, *below = map(numbers, re.findall(r"[0-9.]+", requirement))
        version = locked[re.split(r"[\[<>=]", requirement)[0]]
        assert lowest <= version < min(below, default=[sys.maxsize]), requirement
    sources = (CHECKOUT / "pyproject.toml").read_text() + (CHECKOUT / "setup.py").read_text()
    required = re.findall(r'"(setuptools|mypy)(?:\[mypyc\])?>=([0-9.]+)', sources)
    build = locked_versions("requirements-build.txt")
    assert [name for name, lowest in required if build[name] < numbers(lowest)] == []


def test_the_image_copies_existing_files_and_runs_the_command() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()}
    assert all((CHECKOUT / name).exists() for name in copied)
    assert copied == set(re.findall(r"^!(.*)$", (CHECKOUT / ".dockerignore").read_text(), re.MULTILINE))
    for instruction in ('ENTRYPOINT ["plants"]', 'CMD ["serve"]', f"VOLUME {STATE}", "USER 10001:10001"):
        assert f"\n{instruction}\n" in text
    assert re.search(r'^HEALTHCHECK .* CMD \["plants", "check"\]$', text, re.MULTILINE)


def test_the_image_and_the_pod_carry_the_version_of_the_package() -> None:
    for file in ("Containerfile", "kubernetes.yaml"):
        assert re.findall(r"plants:(\d\S+)", (DEPLOY / file).read_text()) == [plants.__version__]
    assert f'org.opencontainers.image.version="{plants.__version__}"' in (DEPLOY / "Containerfile").read_text()
    assert version("plants") == plants.__version__


def test_the_grace_period_covers_prestop_and_the_graceful_stop() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    (prestop,) = re.findall(r"preStop: \{sleep: \{seconds: (\d+)\}\}", text)
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", text)
    graceful_timeout = 30  # Gunicorn's default, which the packaged configuration does not change.
    assert int(grace) > int(prestop) + graceful_timeout
