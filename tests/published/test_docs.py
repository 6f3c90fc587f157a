"""The documents: their links, the tables of names that the code also has, and their commands, from start to end."""

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack, closing
from importlib.metadata import metadata
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from plants import Plant
from plants.errors import ErrorCode
from plants.hosting import metrics
from plants.hosting.settings import SETTINGS
from plants.tokens import TokenFile
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.calls import sender
from tests.support.hosted import CHECKOUT, Service, needs, output_of, run
from tests.support.process import free_port
from tests.support.servers import BIN

PAGES = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/*.md"), *CHECKOUT.glob("tests/**/*.md")])


def page(name: str) -> str:
    return (CHECKOUT / "docs" / f"{name}.md").read_text()


def anchors(text: str) -> set[str]:
    """Return the URL fragments that GitHub and GitLab derive from the headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_dead(link: str, origin: Path) -> bool:
    name, _, fragment = link.partition("#")
    target = (origin.parent / name) if name else origin
    return not target.exists() or bool(fragment and fragment not in anchors(target.read_text()))


@pytest.mark.parametrize("origin", PAGES, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(origin: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", origin.read_text()))
    assert [link for link in links if not link.startswith("https://") and is_dead(link, origin)] == []


def test_the_tables_of_errors_settings_and_metrics_are_complete() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d{5}) \|", page("interface"), re.MULTILINE)}
    # The server rejects these requests; each code is the status times 100.
    assert codes - {41400, 41700, 43100, 50100, 50500} == set(ErrorCode)
    assert re.findall(r"^\| `(PLANTS_\w+)` \|", page("hosting"), re.MULTILINE) == list(SETTINGS)
    names = r"(?:plants|http_server)_\w+"
    # Prometheus appends _total to the names of counters.
    documented = {name.removesuffix("_total") for name in re.findall(f"`({names})`", page("operating"))}
    assert documented == set(re.findall(f'"({names})"', inspect.getsource(metrics)))
    alerts = (CHECKOUT / "deploy/alerts.yaml").read_text()
    assert {name.removesuffix("_count") for name in re.findall(f"({names}){{", alerts)} < documented


def test_the_documented_embedded_application_responds(tmp_path: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```$", page("embedding"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec("".join(snippets).replace("/var/lib/plants", str(tmp_path)).replace("secret", TOKEN), names)
    with closing(names["store"]) as store:
        store.prepare()
        assert sender(names["app"])(new_plant(), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}
        assert store.get(1) == Plant(1, "Fern")
        # Tornado passes the path with its prefix; Litestar appends a slash.
        for number, path in enumerate(["/store/plants", "/plants/"], start=2):
            response = sender(names["store_app"])(new_plant(id=number), path=path, headers=[AUTH, JSON_TYPE])
            assert response.plant == {"name": "Fern"}


@pytest.mark.parametrize(
    "command",
    re.findall(r"^((?:cd examples && )?PLANTS_.* plants serve.*)$", page("embedding") + page("hosting"), re.MULTILINE),
)
def test_the_documented_commands_serve(command: str, tmp_path: Path) -> None:
    command = command.replace("PLANTS_", "exec env PLANTS_", 1).replace("/var/lib/plants", str(tmp_path))
    env = {"PATH": f"{BIN}:{os.defpath}", "PLANTS_STORE": f"sqlite:///{tmp_path}/plants.db"}
    with Service(["sh", "-c", f"{command} --bind 127.0.0.1:0"], CHECKOUT, env) as service:
        service.wait_until_it_serves()
        headers = [("Authorization", "Bearer secret"), JSON_TYPE]
        created, again = (service.send(new_plant(), headers=headers) for _ in range(2))
        next(tmp_path.rglob("plants.db")).unlink()
        failed = service.send(new_plant(id=2), headers=headers)
        assert (created.plant, again.error, failed.error) == ({"name": "Fern"}, 40003, 50300)
        linked = ["link" in response.headers for response in (created, again, failed)]
        assert linked == [False] + ["wrapped_app" in command] * 2


def test_the_documented_commands_change_a_token(tmp_path: Path) -> None:
    add, remove = re.findall(r"^cp -p tokens .*$", page("operating"), re.MULTILINE)
    file, path = tmp_path / "tokens", f"{BIN}:{os.defpath}"
    file.write_text("old-token\n")
    new = run("sh", "-c", add, cwd=tmp_path, PATH=path).stderr.strip()
    assert [TokenFile(file).accepts(token) for token in ("old-token", new)] == [True, True]
    output_of("sh", "-c", remove.replace("OLD LINE", "old-token"), cwd=tmp_path)
    assert [TokenFile(file).accepts(token) for token in ("old-token", new)] == [False, True]


@pytest.mark.network
@needs("systemctl")
def test_the_documented_commands_install_the_units(tmp_path: Path) -> None:
    (commands,) = re.findall(r"^python3 -m venv /opt/plants .*?(?=\n```)", page("operating"), re.DOTALL | re.MULTILINE)
    for words, replacement in [
        ("python3", shlex.quote(sys.executable)),
        ("/opt/", f"{tmp_path}/opt/"),
        ("/etc/", f"{tmp_path}/etc/"),
        ("systemctl daemon-reload", "true"),
        ("enable --now", f"enable --root={tmp_path}"),
        ("plants check", "plants --version"),
    ]:
        assert words in commands
        commands = commands.replace(words, replacement)
    for folder in ("opt", "etc/systemd/system"):
        (tmp_path / folder).mkdir(parents=True)
    assert output_of("sh", "-e", "-c", commands).splitlines()[-1].startswith("plants ")
    assert len([*(tmp_path / "etc/systemd/system").glob("*.wants/plants*")]) == 3
    assert (tmp_path / "etc/plants/tokens").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "opt/plants/backup.py").exists()


@pytest.mark.network
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=needs(command.split()[0]))
        for command in re.findall(r"`((?:uvx|pipx) [^`]* plants) serve`", page("hosting"))
    ],
)
def test_a_checkout_runs_without_an_installation(command: str) -> None:
    assert output_of("sh", "-c", f"{command} --version").startswith("plants ")


(_, INSTALL_IN_GARDEN), *STEPS = re.findall(r"^```(\w+)\n(.*?)\n^```$", page("tutorial"), re.DOTALL | re.MULTILINE)


@needs("curl")
def test_the_tutorial_works_from_the_first_to_the_last_block(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    path = f"{BIN}:{os.environ['PATH']}"
    outputs: list[str] = []
    command = token = ""
    with ExitStack() as service:
        for language, step in STEPS:
            if language == "json":
                # If a second response follows, the reader has sent the same request again.
                output = outputs.pop() if outputs else output_of("sh", "-c", command, cwd=tmp_path, PATH=path)
                assert json.loads(output) == json.loads(step)
            elif step.endswith("plants serve"):
                service.close()
                start = ["sh", "-c", f"exec env {step} --bind {address}"]
                service.enter_context(Service(start, tmp_path, {"PATH": path})).wait_until_it_serves()
            else:
                command = step.replace("127.0.0.1:8000", address).replace("Bearer TOKEN", f"Bearer {token}")
                result = run("sh", "-c", command, cwd=tmp_path, PATH=path)
                outputs, token = [result.stdout], result.stderr.strip()
                assert (result.returncode, '"error"' in result.stdout) == (0, False), result.stderr
                assert "sqlite3" not in step or f"prints `{result.stdout.splitlines()[-1]}`" in page("tutorial")
    assert (tmp_path / "tokens").read_text().startswith("sha256:")


README = (CHECKOUT / "README.md").read_text()
START, CURL, _TEST = re.findall(r"```console\n(.*?)\n```", README, re.DOTALL)
# The last part starts the service.
INSTALL, _, SERVE = START.rpartition(" && ")


def start_and_send(start: str, folder: Path) -> None:
    """Start a service, send the README's request twice, and compare the responses with the README's."""
    command = ["sh", "-c", f"exec env {start}"]
    with Service(command, folder, {"GUNICORN_CMD_ARGS": "--bind 127.0.0.1:0"}) as service:
        service.wait_until_it_serves()
        request = CURL.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}")
        for sentence in ("the response is `{}`", "`{}`"):
            assert sentence.format(output_of("sh", "-c", request).removesuffix("\n")) in README
        assert service.stop() == 0


@needs("curl")
def test_the_readme_shows_the_responses_to_its_requests() -> None:
    start_and_send(SERVE.replace(".venv", shlex.quote(sys.prefix)), CHECKOUT)


@needs("curl")
@pytest.mark.network
def test_a_clean_copy_needs_only_the_documented_commands(tmp_path: Path) -> None:
    copy = tmp_path / "plants"
    ignored = shutil.ignore_patterns(".git*", ".venv", ".*_cache", "build", "*.egg-info", "__pycache__")
    shutil.copytree(CHECKOUT, copy, ignore=ignored)
    # Pretend that an earlier build left a module that has been deleted since.
    (copy / "build/lib/plants").mkdir(parents=True)
    (copy / "build/lib/plants/deleted.py").touch()
    install = INSTALL.replace("python3", shlex.quote(sys.executable), 1)
    subprocess.run(["sh", "-c", install], cwd=copy, check=True, timeout=600)
    start_and_send(SERVE, copy)
    assert not [*copy.glob("*.egg-info")]  # The owner of the checkout could not replace that of root.
    folders = (*copy.glob(".venv/lib/*/site-packages/plants"), CHECKOUT / "plants")
    installed, ours = ({each.relative_to(folder) for each in folder.rglob("*.*")} for folder in folders)
    assert {each for each in installed ^ ours if each.suffix != ".pyc"} == set()
    assert "interpreted server" in output_of(copy / ".venv/bin/plants", "--version")
    install = INSTALL_IN_GARDEN.replace("python3", shlex.quote(sys.executable), 1)
    assert output_of("sh", "-c", f"{install} && plants --version", cwd=copy).startswith("plants ")


def test_the_description_for_a_package_index_has_no_dead_link() -> None:
    description = metadata("plants")["Description"]
    assert "the errors (docs/interface.md#errors)" in description
    assert [link for link in re.findall(r"\]\(([^)]*)\)", description) if not link.startswith("https://")] == []


# The numbers in the documents: a test fails if one is doubled or halved. Other tests try what happens at a limit, with
# a limit that suits them. This asks for the limits that are in force.

# Gunicorn calls this in each worker before it serves.
CONFIGURATION = """
import json
from dataclasses import fields
from pathlib import Path

def post_worker_init(worker):
    config = worker.loop.shared.config
    numbers = {field.name: getattr(config, field.name) for field in fields(config)}
    numbers["connections"] = worker.cfg.worker_connections  # The limit of descriptors may allow fewer.
    numbers["graceful_timeout"] = worker.cfg.graceful_timeout
    numbers["reserved_for_metrics"] = worker.loop.listeners[-1].reserved_connections
    Path(f"{worker.age}.json").write_text(json.dumps(numbers, default=repr))
"""


DEFAULTS = {
    "request_seconds": 10,
    "response_seconds": 4.5,
    "keepalive_seconds": 650,
    "graceful_timeout": 30,
    "connections": 1000,
    "public_connections": 8,
    "reserved_for_metrics": 8,
    "slots": 64,
    "body_bytes": 1_048_576,
    "line_bytes": 4094,
    "field_bytes": 8190,
    "max_fields": 100,
}
LIMITS_WITHOUT_A_SETTING = {
    "plants.app:create_app.__kwdefaults__": {"max_body_bytes": 1_048_576},
    "plants.server.request:HEAD_BYTES": 16_384,
    "plants.server.config:SMALL_BODY_BYTES": 16_384,
    "plants.server.config:SMALL_RESPONSE_BYTES": 65_536,
    "plants.server.tls:HANDSHAKE_BYTES": 16_384,
    "plants.server.tls:HANDSHAKE_BYTES_WITH_CERTIFICATE": 49_152,
    "plants.hosting.logs:MAX_WAITING_BYTES": 1_048_576,
    "plants.hosting.cli:CHECK_SECONDS": 2,
    "plants.stores.committer:RETRY_SECONDS": 0.5,
    "plants.stores.group_commit:GRACE_SECONDS": 0.8,  # No call takes longer than this and twice the next number.
    "plants.stores.sqlite:SQLiteStore.__init__.__defaults__": (1.8,),
    "plants.stores.postgres:PostgresStore.__init__.__defaults__": (1.8,),
    "plants.stores.postgres:RECHECK_SECONDS": 5,
    "plants.stores.postgres:LOCK_TIMEOUT_MS": 100,
    "plants.tokens:CHECK_SECONDS": 1,  # A change of the token file takes effect within 2 s.
}


def test_a_service_has_the_documented_defaults_and_limits(tmp_path: Path) -> None:
    (tmp_path / "configuration.py").write_text(CONFIGURATION)
    env = {"PLANTS_TOKENS": TOKEN, "PLANTS_METRICS_BIND": f"127.0.0.1:{free_port()}", "WEB_CONCURRENCY": "2"}
    command = [sys.executable, "-m", "plants", "serve", "--bind=127.0.0.1:0", "--config=configuration.py"]
    with Service(command, tmp_path, env | {"PLANTS_STORE": "sqlite:///plants.db"}) as service:
        service.wait_until_it_serves()
    numbers = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert numbers["environ"]["wsgi.multiprocess"]
    assert {name: numbers[name] for name in DEFAULTS} == DEFAULTS
    assert {name: resolve_name(name) for name in LIMITS_WITHOUT_A_SETTING} == LIMITS_WITHOUT_A_SETTING
