"""The store suite, run as in another project: in a folder of its own, without this checkout's conftest.py."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.hosted import CHECKOUT, run

OWN_STORE = """
from plants import PlantIdInUse, PlantStore

class OwnStore(PlantStore):
    worker_threads = 1
    multiprocess = False

    def __init__(self, folder):
        self.plants = {}

    def add(self, plant):
        if self.plants.setdefault(plant.id, plant) is not plant:
            raise PlantIdInUse(plant.id)

    def get(self, plant_id):
        return self.plants.get(plant_id)

    def check(self):
        pass

    def close(self):
        pass
"""
SUITE = """
import pytest
from plants.store_suite import StoreSuite

class TestOwnStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path):
        return OwnStore(tmp_path)
"""
# For each store: lines that continue the class of ``OWN_STORE``, and the tests that then fail. ``add=add`` refers to
# the method that is replaced.
FAULTS = {
    "none": ("", []),
    "rounded_ids": (
        "    def add(self, plant, add=add): add(self, plant._replace(id=float(plant.id)))",
        ["test_every_int64_is_an_id_of_its_own"],
    ),
    "no_lock": (
        """
    def add(self, plant):
        if plant.id in self.plants:
            raise PlantIdInUse(plant.id)
        self.plants[plant.id] = plant
""",
        ["test_exactly_one_of_concurrent_adds_of_an_id_succeeds"],
    ),
    "stored_rejections": (
        "    def add(self, plant, add=add): add(self, plant); plant.name.encode()",
        ["test_disallowed_text_is_rejected_or_stored_unchanged"],
    ),
    "overwriting": (
        """
    def add(self, plant, add=add):
        try:
            add(self, plant)
        finally:
            self.plants[plant.id] = plant
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
        (tmp_path / f"test_{name}.py").write_text(f"{OWN_STORE}{fault}\n{SUITE}")
    command = [sys.executable, "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist"]
    output = run(*command, cwd=tmp_path, PYTHONPATH=str(CHECKOUT)).stdout
    for name, (_, failed) in FAULTS.items():
        assert re.findall(rf"^FAILED test_{name}\.py::.*::(\w+)", output, re.MULTILINE) == failed, output
    failures = sum(len(failed) for _, failed in FAULTS.values())
    assert re.search(rf"^{failures} failed, \d+ passed in ", output, re.MULTILINE), output
