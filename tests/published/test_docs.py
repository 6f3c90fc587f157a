"""The documents: their links, their examples, and the tables that must agree with the code."""

import inspect
import json
import re
import shlex
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from gunicorn.config import KNOWN_SETTINGS, WorkerConnections

from plants import MAX_BODY_BYTES, Plant, __version__
from plants.errors import ErrorCode
from plants.fast_path import dumper
from plants.hosting import cli, metrics
from plants.hosting.settings import SETTINGS
from plants.hosting.worker import Worker
from plants.schemas import PlantSchema
from plants.server import bounds, tls
from plants.stores.group_commit import MAX_BATCH
from tests.contract import AUTH, JSON_TYPE, TOKEN, Send, new_plant
from tests.support.calls import sender
from tests.support.hosted import CHECKOUT, SERVE, Service, serving
from tests.support.servers import COMMANDS

PACKAGED = dict(re.findall(r"^(\w+) = (\S+)", (CHECKOUT / "plants/hosting/gunicorn_conf.py").read_text(), re.MULTILINE))
PAGES = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/*.md")])


def page(name: str) -> str:
    return (CHECKOUT / "docs" / f"{name}.md").read_text()


def blocks(text: str, language: str = r"\w+") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def first_column(text: str, head: str) -> set[str]:
    """Return the names in the first column of the table with this head."""
    table = text.partition(head)[2].partition("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def anchors(text: str) -> set[str]:
    """Return the URL fragments that GitHub and GitLab derive from the headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_dead(link: str, origin: Path) -> bool:
    name, _, fragment = link.partition("#")
    target = (origin.parent / name) if name else origin
    return not target.exists() or bool(fragment and fragment not in anchors(target.read_text()))


@pytest.mark.parametrize("origin", PAGES, ids=lambda path: path.name)
def test_every_linked_and_every_named_file_exists(origin: Path) -> None:
    text = origin.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text))
    assert [link for link in links if not link.startswith("https://") and is_dead(link, origin)] == []
    named = re.findall(r"(?<![\w/.:-])((?:plants|tests|deploy|examples|benchmarks|docs|\.ci)/[\w./-]*)", text)
    named += [
        f"{name.replace('.', '/')}.py" for name in re.findall(r"python -m ((?:tests|benchmarks)\.[\w.]+\w)", text)
    ]
    assert [name for name in named if not (CHECKOUT / name.rstrip(".")).exists()] == []


def test_the_readme_links_to_every_document() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    assert [path.name for path in PAGES if path.parent.name == "docs" and f"(docs/{path.name})" not in readme] == []


def test_the_documented_request_gets_the_documented_responses(send: Send) -> None:
    request, error = blocks(page("interface"))
    head, _, body = request.partition("\n\n")
    method, path, _ = head.splitlines()[0].split()
    headers = [(name, value) for name, _, value in (line.partition(": ") for line in head.splitlines()[2:])]
    headers = [(name, value.replace("<ACCESS_TOKEN>", TOKEN)) for name, value in headers]
    response = send(body.encode(), method=method, path=path, headers=headers)
    assert response.plant == {"name": "Monstera", "tag": "tropical"}
    assert send(body.encode(), method=method, path=path, headers=headers).body.decode() == error.strip()


def test_the_tables_of_members_and_columns_agree_with_the_code() -> None:
    assert first_column(page("interface"), "| member |") == set(Plant._fields)
    assert first_column(page("stores"), "| column |") == set(Plant._fields)


def test_the_table_of_errors_agrees_with_the_code() -> None:
    rows = re.findall(r"^\| (\d{5}) \| (\d{3}) \|", page("interface"), re.MULTILINE)
    documented = [int(code) for code, _ in rows]
    assert documented == sorted(documented)
    assert [int(status) for _, status in rows] == [code // 100 for code in documented]
    # The server rejects these requests; each code is the status times 100.
    assert set(documented) - {41400, 41700, 43100, 50100, 50500} == set(ErrorCode)


def test_the_table_of_settings_agrees_with_the_code() -> None:
    rows = re.findall(r"^\| `(PLANTS_\w+)` \| (.*?) \|", page("hosting"), re.MULTILINE)
    assert [name for name, *_ in rows] == list(SETTINGS)
    for name, documented in rows:
        _, default = SETTINGS[name]
        assert name == "PLANTS_LOG_FORMAT" or documented.strip("`") == (default or "none")


def test_the_table_of_packaged_settings_agrees_with_the_code() -> None:
    named = first_column(page("hosting"), "| Gunicorn | packaged | why |")
    packaged = PACKAGED.keys() & {setting.name for setting in KNOWN_SETTINGS}
    assert named == packaged - {"wsgi_app", "logger_class", "worker_class"}


def test_the_table_of_metrics_agrees_with_the_code() -> None:
    # Prometheus appends _total to the names of counters.
    documented = {name.removesuffix("_total") for name in first_column(page("operating"), "| name |")}
    assert documented == set(re.findall(r'"((?:plants|http_server)_\w+)"', inspect.getsource(metrics)))


def test_the_table_of_limits_agrees_with_the_code() -> None:
    table = page("hosting").partition("### Limits")[2].partition("### ")[0]
    assert f"| {Worker.response_timeout} s, then 503 |" in table
    assert f"| `keepalive` ({PACKAGED['keepalive']} s) |" in table
    assert f"| `worker_connections` ({WorkerConnections.default}), or" in table
    assert f"; {bounds.PUBLIC_CONNECTIONS} more for requests that need no token, such as probes, and" in table
    extra = bounds.TLS_CONNECTION_BYTES - bounds.CONNECTION_BYTES
    assert f"| {bounds.CONNECTION_BYTES >> 10} KiB in every state, {extra >> 10} KiB more with TLS |" in table
    sizes = f"bodies above {bounds.SMALL_BODY_BYTES >> 10} KiB, and responses above {bounds.SMALL_RESPONSE_BYTES >> 10}"
    assert f"| {sizes} KiB | {bounds.PLACES} connections of a process at the same time;" in table
    assert f"| {MAX_BATCH}, or " in table
    handshake = f"{tls.HANDSHAKE_BYTES >> 10} KiB of handshake, {tls.HANDSHAKE_BYTES_WITH_CERTIFICATE >> 10} KiB if"
    assert f"| TLS | {handshake} the client must send a certificate |" in table
    # A body may have U+007F as one byte; the response escapes it.
    largest_response = MAX_BODY_BYTES * len(dumper(PlantSchema())(Plant(1, "\x7f" * 1000))) // 1000
    connections = WorkerConnections.default + bounds.PUBLIC_CONNECTIONS
    most = connections * bounds.CONNECTION_BYTES + bounds.PLACES * largest_response
    assert f"{round(most / 2**20, -1):.0f} MiB with the defaults" in table
    assert f"*timed out*, after {cli.CHECK_SECONDS} seconds" in page("operating")
    assert f", in {-(-metrics.ROW_BYTES // 1024)} KiB of memory for each worker" in page("operating")


def test_the_table_of_servers_has_the_tested_servers_and_options() -> None:
    table = page("hosting").partition("# Other servers")[2]
    _, *rows = re.findall(r"^\| ([^-|]+?) \|", table, re.MULTILINE)
    assert rows == list(COMMANDS)
    for server, command in COMMANDS.items():
        row = next(line for line in table.splitlines() if line.startswith(f"| {server} |"))
        documented = row.split("|")[2].replace("ADDRESS", "127.0.0.1:PORT")
        options_with_values = re.findall(r"(?<= )-[^ `]+(?: [^-` ][^ `]*)?", documented)
        assert [option for option in options_with_values if f" {option} " not in f"{command} "] == [], server


def test_the_documented_embedded_application_responds(tmp_path: Path) -> None:
    snippets = blocks(page("embedding"), "python")
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


def test_the_documented_entry_point_is_that_of_the_example() -> None:
    (entry_point,) = blocks(page("embedding"), "toml")
    assert entry_point in (CHECKOUT / "examples/redis_store/pyproject.toml").read_text()


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_documented_token_check_decides() -> None:
    (command,) = blocks(page("embedding"), "console")
    serve = command.replace("&& ", "&& exec env ").replace("plants serve", f"{shlex.join(SERVE)} --bind 127.0.0.1:0")
    with Service(["sh", "-c", serve], CHECKOUT, {}) as service:
        service.wait_until_it_serves()
        statuses = [
            service.send(new_plant(), headers=[("Authorization", f"Bearer {token}"), JSON_TYPE]).status
            for token in ("other", "secret")
        ]
        assert statuses == [401, 200]


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_the_documented_hook_and_log_line_are_right(tmp_path: Path) -> None:
    (call,) = re.findall(r"must call that one: `plants\.hosting\.(gunicorn_conf\.(\w+)\(.*?\))`", page("operating"))
    hook = f"def {call[1]}(server):\n    {call[0]}\n    server.log.info('the garden opens')\n"
    (tmp_path / "own.py").write_text(f"from plants.hosting import gunicorn_conf\n{hook}")
    (example,) = (json.loads(line) for line in page("operating").splitlines() if line.startswith('{"ts"'))
    with serving(f"--config={tmp_path}/own.py") as service:
        service.wait_for("plants are stored in memory:")
        service.wait_for("the garden opens")
        for request_id in ("first", example["request_id"]):
            service.send(new_plant(id=17), headers=[AUTH, JSON_TYPE, ("X-Request-ID", request_id)])
        line = service.line_of(example["request_id"])
    assert list(line) == list(example)
    assert {name for name, value in line.items() if value != example[name]} <= {"ts", "duration"}


def test_every_benchmark_accepts_its_documented_options() -> None:
    commands = re.findall(r"^\.venv/bin/python -m ([\w.]+)(.*)$", page("scaling"), re.MULTILINE)
    assert commands
    for module, options in commands:
        source = Path(str(import_module(module).__file__)).read_text()
        assert [option for option in re.findall(r"--[\w-]+", options) if f'"{option}"' not in source] == []


def test_the_commands_for_docker_fit_the_image() -> None:
    commands = re.findall(r"^docker run .*$", page("hosting"), re.MULTILINE)
    image = (CHECKOUT / "deploy/Containerfile").read_text()
    assert len(commands) == 3
    for command in commands:
        assert command.endswith(f" plants:{__version__}")
        assert [name for name in re.findall(r"--env (\w+)=", command) if name not in SETTINGS] == []
        assert [
            folder for folder in re.findall(r"--volume plants:(\S+)", command) if f"VOLUME {folder}" not in image
        ] == []
