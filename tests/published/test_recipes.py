"""The recipe for another member of a plant (docs/contributing.md), done in a copy."""

import json
import shutil
import sys
from pathlib import Path

from tests.support.hosted import CHECKOUT, output_of
from tests.support.process import NO_SUBPROCESS_COVERAGE

# Each line is inserted after the one before it.
STEPS = {
    "plants/stores/__init__.py": ["    tag: str | None = None\n", "    light: str | None = None\n"],
    "plants/schemas.py": ["    tag = fields.String(**_TEXT)\n", "    light = fields.String(**_TEXT)\n"],
    "tests/contract.py": ["\nNEW_PLANT = [\n", '    ("light", new_plant(light=""), Plant(1, "Fern", light="")),\n'],
}
# The tests whose plants have all members.
TESTS = ["tests/stores/test_every_store.py", "tests/app/test_schemas.py", "tests/app/test_app.py"]
NAMES = "text or tag or type or in_use or described or members or new_plant or valid_plant"


def test_the_tests_succeed_with_an_added_member(tmp_path: Path) -> None:
    for name in ("plants", "tests"):
        shutil.copytree(CHECKOUT / name, tmp_path / name)
    shutil.copy(CHECKOUT / "setup.cfg", tmp_path)
    for path, (line, new_line) in STEPS.items():
        text = (tmp_path / path).read_text()
        assert line in text
        (tmp_path / path).write_text(text.replace(line, line + new_line))
    description = json.loads((tmp_path / "plants/openapi.json").read_text())
    members = description["components"]["schemas"]["Plant"]["properties"]
    members["light"] = members["tag"]
    (tmp_path / "plants/openapi.json").write_text(json.dumps(description))
    command = [*NO_SUBPROCESS_COVERAGE, sys.executable, "-m", "pytest", "-q", *TESTS, "-k", NAMES]
    output_of(*command, cwd=tmp_path, PYTHONPATH=str(tmp_path))
