"""The files of deploy/, checked by the tools that read them, or used to start the service or a proxy in front of it."""

import configparser
import json
import re
import shlex
import shutil
import socket
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from packaging.requirements import Requirement

import plants
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.hosted import CHECKOUT, SERVE, Service, call, error_line, needs, run, send_to, serving
from tests.support.proxies import COMMANDS, running_proxy
from tests.support.tls_client import make_certificate

DEPLOY = CHECKOUT / "deploy"


@needs("systemd-analyze")
def test_systemd_verifies_the_units_and_their_exposure(tmp_path: Path) -> None:
    units = [path for path in DEPLOY.glob("plants*") if path.is_file()]
    for file in (*units, *DEPLOY.glob("plants*.d/*")):
        copy = tmp_path / file.relative_to(DEPLOY)
        copy.parent.mkdir(exist_ok=True)
        # systemd checks that the program exists; the test machine has no /opt/plants.
        copy.write_text(re.sub("/opt/plants/bin/[a-z]+", "/bin/sh", file.read_text()))
    # systemd also reads the units of this machine, and may warn of theirs.
    result = run("systemd-analyze", "verify", *[tmp_path / unit.name for unit in units])
    assert [line for line in result.stderr.splitlines() if "plants" in line] == []
    assert result.returncode == 0, result.stderr
    services = [DEPLOY / "plants.service", DEPLOY / "plants-backup.service"]
    result = run("systemd-analyze", "security", "--offline=true", "--threshold=15", *services)
    assert result.returncode == 0, result.stdout
    service, backup = ({*path.read_text().partition("DynamicUser=")[2].splitlines()} for path in services)
    # The backup has no network, and the service three limits, addresses and WantedBy. All else is the same.
    assert [sum("=" in line for line in lines) for lines in (backup - service, service - backup)] == [2, 5]


@pytest.mark.parametrize("drop_in", [None, DEPLOY / "plants.service.d/tls.conf"], ids=["plain", "TLS"])
def test_the_unit_starts_a_service_that_notifies_systemd(tmp_path: Path, drop_in: Path | None) -> None:
    credentials, state = tmp_path / "credentials", tmp_path / "state"
    credentials.mkdir()
    state.mkdir()
    (credentials / "tokens").write_text(f"{TOKEN}\n")
    for name in ("cert.pem", "key.pem"):
        (credentials / name).symlink_to(make_certificate(tmp_path))
    env = dict(
        setting.replace("%d", str(credentials)).replace("/var/lib/plants", str(state)).split("=", 1)
        for file in (DEPLOY / "plants.service", drop_in)
        for setting in re.findall('^Environment="?(.*?)"?$', file.read_text() if file else "", re.MULTILINE)
    )
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        env |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "CREDENTIALS_DIRECTORY": str(credentials)}
        port = listener.getsockname()[1]
        command = ["sh", "-c", 'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&0', "sh", *SERVE, f"--bind=127.0.0.1:{port}"]
        with Service(command, CHECKOUT, env, stdin=listener.fileno()) as service:
            assert b"READY=1" in manager.recv(4096)
            service.port = port
            if drop_in:  # Nothing else is wrong with the certificate, if it is trusted.
                trusted = call("check", f"https://127.0.0.1:{port}", SSL_CERT_FILE=f"{tmp_path}/certificate.pem")
                assert "IP address mismatch" in error_line(trusted)
            else:
                assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}
            assert service.stop() == 0
    assert (state / "plants.db").stat().st_size > 0


@needs("promtool")
def test_prometheus_accepts_the_alerts() -> None:
    result = run("promtool", "check", "rules", DEPLOY / "alerts.yaml")
    assert (result.returncode, "3 rules found" in result.stdout) == (0, True), result.stdout + result.stderr


def can_unshare() -> bool:
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "true"]
    return shutil.which("bwrap") is not None and run(*command).returncode == 0


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
    with Service([*box, *SERVE, "--bind", "127.0.0.1:0"], CHECKOUT, {"PLANTS_TOKENS": TOKEN}) as service:
        service.wait_until_it_serves()
        assert service.send(new_plant(), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}
        assert not [line for line in service.lines if '"level":"error"' in line]


def test_kubernetes_validate_accepts_every_resource() -> None:
    result = run(Path(sys.executable).with_name("kubernetes-validate"), "--strict", DEPLOY / "kubernetes.yaml")
    assert (result.returncode, result.stdout.count("passed")) == (0, 3), result.stdout + result.stderr


def test_the_image_locks_what_the_package_and_its_build_require() -> None:
    locked: dict[str, str] = {}
    for file in ("requirements.txt", "requirements-build.txt"):
        locked |= dict(re.findall(r"^([a-z-]+)==([0-9.]+) \\$", (DEPLOY / file).read_text(), re.MULTILINE))
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    extras = setup["options.extras_require"]
    required = (setup["options"]["install_requires"] + extras["postgres"] + extras["metrics"]).split()
    required += tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["build-system"]["requires"]
    required += re.findall(r'"(mypy\[mypyc\].*?)"', (CHECKOUT / "setup.py").read_text())
    for requirement in map(Requirement, required):
        assert locked[requirement.name] in requirement.specifier


def test_the_image_copies_existing_files() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()}
    assert all((CHECKOUT / name).exists() for name in copied)
    assert copied == set(re.findall(r"^!(.*)$", (CHECKOUT / ".dockerignore").read_text(), re.MULTILINE))


# What the documents, or comments in the files, promise of files that no test can run here.
PROMISED = """
enableServiceLinks: false | replicas: 2 | minAvailable: 1 | maxUnavailable: 0 | terminationGracePeriodSeconds: 45
runAsUser: 10001 | containerPort: 8000 | {name: plants, key: store} | limits: {memory: 768Mi}
PLANTS_TOKENS_FILE, value: /run/plants/tokens | mountPath: /run/plants, | items: [{key: tokens, path: tokens}]
defaultMode: 0440 | readOnlyRootFilesystem: true | preStop: {sleep: {seconds: 5}}
startupProbe: {httpGet: {path: /livez, port: http} | livenessProbe: {httpGet: {path: /livez, port: http}
readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 2, timeoutSeconds: 2, failureThreshold: 2}
Requires=plants.socket After=plants.socket | Type=notify | -HUP $MAINPID KillMode=mixed | TimeoutStopSec=40
Restart=always | LoadCredential=tokens:/etc/plants/tokens | LoadCredential=key.pem:/etc/plants/key.pem
EnvironmentFile=-/etc/plants/environment DynamicUser=yes User=plants StateDirectory=plants StateDirectoryMode=0700
UMask=0077 LimitNOFILE=16384 MemoryMax=768M | AF_UNIX AF_INET AF_INET6 | WEB_CONCURRENCY=4 | MemoryMax=2720M
ListenStream=127.0.0.1:8000 Backlog=2048 | [Socket] ListenStream= ListenStream=8443
/var/lib/plants/plants.db /var/lib/plants/backups | OnCalendar=daily | Persistent=true
PLANTS_COMPILE=1 | --owner=10001 | VOLUME /var/lib/plants | PORT=8000 | USER 10001:10001
CMD ["plants", "check"] | ENTRYPOINT ["plants"]
expr: up{job="plants"} == 0 for: 1m | seconds_count{error="50300"}[5m]) > 0 | seconds_count{status="500"}[5m]) > 0
keepalive 32; | client_max_body_size 1m; | proxy_http_version 1.1; proxy_set_header Connection "";
option httpchk GET /readyz | server one 127.0.0.1:8000 check
"""


def test_the_files_have_the_version_and_what_is_promised_of_them() -> None:
    files = [path for path in (*DEPLOY.glob("*"), *DEPLOY.glob("*.d/*")) if path.is_file()]
    text = " ".join("".join(path.read_text() for path in files).split())
    assert re.findall(r'(?:plants:|image\.version=")(\d+\.\d+\.\d+)', text) == [plants.__version__] * 3
    assert [promise for promise in re.split(r" \| |\n", PROMISED.strip()) if promise not in text] == []


@pytest.mark.parametrize("proxy", [pytest.param(name, marks=needs(name)) for name in COMMANDS])
def test_the_service_works_behind_a_proxy_with_a_prefix(proxy: str, tmp_path: Path) -> None:
    headers = [AUTH, JSON_TYPE]
    with serving() as service, running_proxy(proxy, service.port, tmp_path) as port:
        created = send_to(port, new_plant(), path="/v1/plants", headers=[*headers, ("X-Request-ID", "own-1")])
        assert (created.plant, created.headers["x-request-id"]) == ({"name": "Fern"}, "own-1")
        assert send_to(port, new_plant(), path="/v1/plants", headers=headers).error == 40003
        assert b"docs/page.js" in send_to(port, method="GET", path="/v1/docs", headers=[]).body
        description: Any = json.loads(send_to(port, method="GET", path="/v1/openapi.json", headers=[]).body)
        assert urljoin("http://host/v1/openapi.json", description["servers"][0]["url"]) == "http://host/v1/"
        if proxy == "nginx":  # Its recipe adds the CORS headers, to every response.
            asked = [("Origin", "https://garden.example.com"), ("Access-Control-Request-Method", "POST")]
            preflight = send_to(port, method="OPTIONS", path="/v1/plants", headers=asked)
            refused = send_to(port, new_plant(), path="/v1/plants", headers=[JSON_TYPE])
            assert (preflight.status, refused.status) == (204, 401)
            assert preflight.headers["access-control-allow-headers"] == "Authorization, Content-Type, X-Request-ID"
            for response in (preflight, refused):
                assert response.headers["access-control-allow-origin"] == "https://garden.example.com"
                assert response.headers["access-control-expose-headers"] == "Retry-After, X-Request-ID"
