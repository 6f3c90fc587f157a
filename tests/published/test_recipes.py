"""The recipe for another member of a plant (docs/contributing.md), done in a copy."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.hosted import CHECKOUT, output_of

CREATE = """
import sys
import plants
from tests.contract import AUTH, JSON_TYPE, TOKEN, new_plant
from tests.support.calls import sender

store = plants.open_store(sys.argv[1])
send = sender(plants.create_app(store, tokens=[TOKEN]))
assert send(new_plant(light="shade"), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern", "light": "shade"}
assert store.get(1).light == "shade"
assert send(new_plant(id=2), headers=[AUTH, JSON_TYPE]).plant == {"name": "Fern"}
assert "light: " in send(new_plant(id=3, light=1), headers=[AUTH, JSON_TYPE]).message
store.close()
"""
# The tests whose plants have all members.
STORE_TESTS = ["tests/stores/test_every_store.py", "-k", "text or tag or type or largest or in_use"]
APP_TESTS = [
    "tests/app/test_schemas.py",
    "tests/app/test_app.py",
    "-k",
    "described or members or new_plant or valid_plant",
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout in which a plant has one more member, ``light``."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("plants", "tests"):
        shutil.copytree(CHECKOUT / name, copy / name)
    shutil.copy(CHECKOUT / "setup.cfg", copy)
    for path, line, new_line in (
        ("stores/__init__.py", "    tag: str | None = None\n", "    light: str | None = None\n"),
        ("schemas.py", "    tag = fields.String(**_TEXT)\n", "    light = fields.String(**_TEXT)\n"),
    ):
        file = copy / "plants" / path
        text = file.read_text()
        assert line in text
        file.write_text(text.replace(line, line + new_line))
    description = json.loads((copy / "plants/openapi.json").read_text())
    members = description["components"]["schemas"]["Plant"]["properties"]
    members["light"] = members["tag"]
    (copy / "plants/openapi.json").write_text(json.dumps(description))
    return copy


@pytest.mark.usefixtures("no_subprocess_coverage")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["-c", CREATE, "memory:"], id="create with the dictionary"),
        pytest.param(["-c", CREATE, "sqlite:///plants.db"], id="create with SQLite"),
        pytest.param(["-m", "pytest", "-q", *STORE_TESTS], id="tests of the stores"),
        pytest.param(["-m", "pytest", "-q", *APP_TESTS], id="tests of the application"),
    ],
)
def test_with_an_added_member_creates_and_the_tests_succeed(copy: Path, arguments: list[str]) -> None:
    output_of(sys.executable, *arguments, cwd=copy, PYTHONPATH=str(copy))
