"""The recipe for another member of a plant (docs/contributing.md), done in a copy."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hosted import CHECKOUT

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


def run(copy: Path, *command: str) -> None:
    environ = os.environ | {"PYTHONPATH": str(copy)}
    result = subprocess.run(
        [sys.executable, *command], cwd=copy, env=environ, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.usefixtures("no_subprocess_coverage")
@pytest.mark.parametrize("url", ["memory:", "sqlite:///plants.db"])
def test_an_added_member_is_validated_stored_and_returned(copy: Path, url: str) -> None:
    run(copy, "-c", CREATE, url)


@pytest.mark.usefixtures("no_subprocess_coverage")
@pytest.mark.parametrize("tests", [STORE_TESTS, APP_TESTS], ids=["stores", "application"])
def test_with_an_added_member_the_tests_pass(copy: Path, tests: list[str]) -> None:
    run(copy, "-m", "pytest", "-q", *tests)
