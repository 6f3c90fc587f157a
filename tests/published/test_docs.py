"""The documents: their links, their examples, and the tables that must agree with the code."""

import inspect
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from plants import Plant
from plants.errors import ErrorCode
from plants.hosting import metrics
from plants.hosting.settings import SETTINGS
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.calls import sender
from tests.support.hosted import CHECKOUT
from tests.support.servers import COMMANDS

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


def test_the_table_of_metrics_agrees_with_the_code() -> None:
    # Prometheus appends _total to the names of counters.
    documented = {name.removesuffix("_total") for name in first_column(page("operating"), "| name |")}
    assert documented == set(re.findall(r'"((?:plants|http_server)_\w+)"', inspect.getsource(metrics)))


def test_the_table_of_servers_has_the_tested_servers() -> None:
    table = page("hosting").partition("# Other servers")[2]
    _, *rows = re.findall(r"^\| ([^-|]+?) \|", table, re.MULTILINE)
    assert rows == list(COMMANDS)


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
