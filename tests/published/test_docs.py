"""The documents: their links, and the tables that must agree with the code."""

import inspect
import re
from collections import Counter
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from plants import Plant
from plants.errors import ErrorCode
from plants.hosting import settings, worker
from plants.hosting.settings import Settings
from plants.server import connection, loop, threads, tls
from plants.server.request import HEAD_BYTES
from plants.stores.batch import BatchStore
from plants.stores.sqlite import SQLiteStore
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.published.test_imports import MODULES, layer_of
from tests.support.calls import sender
from tests.support.hosted import CHECKOUT
from tests.support.servers import COMMANDS

PAGES = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/*.md")])


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
def test_no_link_is_dead(origin: Path) -> None:
    text = re.sub(r"`[^`]*`", "", origin.read_text())
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("https://")]
    assert [link for link in links if is_dead(link, origin)] == []


def test_the_readme_links_to_every_document() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    assert [path.name for path in PAGES if path.parent.name == "docs" and f"(docs/{path.name})" not in readme] == []


def test_the_table_of_errors_agrees_with_the_code() -> None:
    rows = re.findall(r"^\| (\d{5}) \| (\d{3}) \|", page("interface"), re.MULTILINE)
    assert [(int(code), int(status)) for code, status in rows] == [(code, code // 100) for code in ErrorCode]


def test_the_interface_names_exactly_the_existing_error_codes() -> None:
    named = {int(code) for code in re.findall(r"\b[45]\d{4}\b", page("interface"))}
    # These three are examples of the rule for any other status: the code is the status times 100.
    assert named - {41400, 43100, 50100} == set(ErrorCode)


def test_the_table_of_settings_agrees_with_the_code() -> None:
    rows = re.findall(r"^\| `(PLANTS_\w+)` \| (.*?) \|", page("hosting"), re.MULTILINE)
    assert [name for name, _ in rows] == list(settings.SETTINGS)
    defaults = dict(rows)
    default_settings = Settings.from_environ({"PLANTS_TOKENS": "secret"})
    assert defaults["PLANTS_STORE"] == f"`{default_settings.store}`"
    assert defaults["PLANTS_MAX_BODY_BYTES"] == str(default_settings.max_body_bytes)
    assert defaults["PLANTS_REQUEST_TIMEOUT"] == f"{default_settings.request_timeout:.0f}"
    assert defaults["PLANTS_METRICS_BIND"] == "none"
    assert default_settings.metrics_bind is None


def test_the_table_of_limits_agrees_with_the_code() -> None:
    table = page("hosting").partition("### Limits")[2].partition("\n## ")[0]
    for limit in (
        f"the limit of descriptors minus {loop._OTHER_DESCRIPTORS} if that is lower",
        f"{worker._METRICS_CONNECTIONS} more for the metrics",
        f"{loop._MAX_BUFFERED_BODIES} times `PLANTS_MAX_BODY_BYTES`, at least",
        f"at least {loop._MAX_BUFFERED_BODIES * HEAD_BYTES >> 20} MiB;",
        f"{BatchStore.max_batch}; fewer if their bodies reach {threads._MAX_BATCH_BYTES // 1024} KiB together",
        f"the delay that a body above {threads._LARGE_BODY_BYTES // 1024} KiB",
        f"{loop._SWEEP_SECONDS} s: after that, it starts no further call",
        f"connections that are ready, at most {loop._MAX_STEPS_PER_STAGE}.",
        f"{worker.Worker.response_timeout} s",
        f"{tls.MAX_OVERHEAD_BYTES // 1024} KiB: when the server has counted more bytes, it closes",
        f"lowers the count by {tls.OVERHEAD_BYTES_PER_RECORD // 1024} KiB, but not below 0",
        f"{connection._LINGER_SECONDS:.0f} s without a byte",
    ):
        assert limit in table


def test_the_timeouts_leave_room_for_a_response_within_5_s() -> None:
    timeout = inspect.signature(SQLiteStore).parameters["timeout"].default
    assert timeout < worker.Worker.response_timeout < 5 - loop._SWEEP_SECONDS


def test_the_table_of_packaged_settings_agrees_with_the_code() -> None:
    table = page("hosting").partition("| Gunicorn | packaged | why |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    text = Path(str(import_module("plants.hosting.settings").__file__)).with_name("gunicorn_conf.py").read_text()
    assert named == set(re.findall(r"^(\w+)(?:: .*)? = ", text, re.MULTILINE)) - {
        "wsgi_app",
        "logger_class",
        "worker_class",
    }


@pytest.mark.parametrize("name", ["hosting", "scaling"])
def test_each_table_of_servers_has_the_tested_servers(name: str) -> None:
    table = page(name).partition("# Other servers\n")[2].partition("\n## ")[0]
    _, *rows = re.findall(r"^\| (?:16 \| )?([^-|]+?) \|", table, re.MULTILINE)
    assert [row for row in rows if row != "Apache, mod_wsgi"] == list(COMMANDS)


def test_the_table_of_servers_has_only_tested_options() -> None:
    table = page("hosting").partition("# Other servers")[2]
    for server, command in COMMANDS.items():
        row = next(line for line in table.splitlines() if line.startswith(f"| {server} |"))
        documented = row.split("|")[2].replace("ADDRESS", "127.0.0.1:PORT")
        options_with_values = re.findall(r"(?<= )-[^ `]+(?: [^-` ][^ `]*)?", documented)
        assert [option for option in options_with_values if f" {option} " not in f"{command} "] == [], server


def test_the_documented_embedded_application_responds(tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", page("embedding"), re.DOTALL)
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


def test_every_benchmark_accepts_its_documented_options() -> None:
    commands = re.findall(r"^\.venv/bin/python -m ([\w.]+)(.*)$", page("scaling"), re.MULTILINE)
    assert len(commands) > 3
    for module, options in commands:
        source = Path(str(import_module(module).__file__)).read_text()
        assert [option for option in re.findall(r"--[\w-]+", options) if f'"{option}"' not in source] == []


def test_the_documented_lines_of_each_layer_are_about_right() -> None:
    sizes: Counter[str] = Counter()
    for module, file in MODULES.items():
        sizes[layer_of(module)] += len(file.read_text().splitlines())
    table = page("decisions").partition("| layer | 2eaa4f4 | now |")[2].partition("\n\n")[0]
    documented = {
        layer: int(lines) for layer, lines in re.findall(r"^\| (\w+) \| \d+ \| (\d+) \|", table, re.MULTILINE)
    }
    assert documented == {layer: pytest.approx(lines, abs=100) for layer, lines in sizes.items()}
    stated = re.findall(r"has about ([\d,]+) now", page("decisions"))
    assert int(stated[0].replace(",", "")) == pytest.approx(sizes.total(), abs=200)


def test_the_modules_that_the_decisions_name_exist() -> None:
    table = page("decisions").partition("| where | what it does for a user |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([\w/]+\.py)`", row.split("|")[1]) for row in table.splitlines()[2:]]
    assert rows
    assert all(rows)
    # Only the first module of a row is written with its folder.
    paths = [CHECKOUT / "plants" / Path(row[0]).with_name(Path(name).name) for row in rows for name in row]
    assert [path for path in paths if not path.exists()] == []
