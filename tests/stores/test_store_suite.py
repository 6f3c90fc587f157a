"""The store suite, run as in another project: in a folder of its own, without this checkout's conftest.py."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.hosted import CHECKOUT, run

OWN_STORE = """
from contextlib import suppress

import pytest
from plants import MemoryStore, PlantIdInUse
from plants.store_suite import StoreSuite

class TestOwnStore(StoreSuite):
    @pytest.fixture
    def store(self):
        return OwnStore()

class OwnStore(MemoryStore):
    def __init__(self):
        super().__init__()
        self.latest = {}
"""
# For each store: lines that continue the class of ``OWN_STORE``, and the tests that then fail.
FAULTS = {
    "none": ("", []),
    "rounded_ids": (
        "    def add(self, plant): super().add(plant._replace(id=float(plant.id)))",
        ["test_every_int64_is_an_id_of_its_own"],
    ),
    "plain_tuples": (
        "    def get(self, plant_id): return (plant := super().get(plant_id)) and tuple(plant)",
        ["test_every_int64_is_an_id_of_its_own"],
    ),
    "normalized": (
        "    def add(self, plant): super().add(plant._replace(name=plant.name.replace('e\u0301', '\u00e9')))",
        ["test_text_is_returned_exactly"],
    ),
    "no_lock": (
        """
    def add(self, plant):
        if self.get(plant.id):
            raise PlantIdInUse(plant.id)
        with suppress(PlantIdInUse):
            super().add(plant)
""",
        ["test_exactly_one_of_concurrent_adds_of_an_id_succeeds"],
    ),
    "stored_rejections": (
        "    def add(self, plant): super().add(plant); plant.name.encode()",
        ["test_disallowed_text_is_rejected_or_stored_unchanged"],
    ),
    "overwriting": (
        """
    def add(self, plant):
        self.latest[plant.id] = plant
        super().add(plant)

    def get(self, plant_id):
        return self.latest.get(plant_id)
""",
        [
            "test_an_id_in_use_is_rejected_and_its_plant_is_unchanged",
            "test_exactly_one_of_concurrent_adds_of_an_id_succeeds",
        ],
    ),
}


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_only_a_store_that_breaks_a_promise_fails_the_suite(tmp_path: Path) -> None:
    for name, (fault, _) in FAULTS.items():
        (tmp_path / f"test_{name}.py").write_text(f"{OWN_STORE}{fault}\n")
    command = [sys.executable, "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist"]
    output = run(*command, cwd=tmp_path, PYTHONPATH=str(CHECKOUT)).stdout
    for name, (_, failed) in FAULTS.items():
        assert re.findall(rf"^FAILED test_{name}\.py::.*::(\w+)", output, re.MULTILINE) == failed, output
    failures = sum(len(failed) for _, failed in FAULTS.values())
    assert re.search(rf"^{failures} failed, \d+ passed in ", output, re.MULTILINE), output
