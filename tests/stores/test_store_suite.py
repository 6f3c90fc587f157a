"""The store suite, run as in another project: in a folder of its own, without this checkout's conftest.py."""

import re
import sys
from pathlib import Path

from tests.support.hosted import CHECKOUT, run

OWN_STORE = """
from contextlib import suppress

import pytest
from plants import MemoryStore, Plant, PlantIdInUse
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
# For each store: lines that continue the class of ``OWN_STORE``, and a part of the name of each test that then fails.
FAULTS = {
    "none": ("", ""),
    "inexact": (
        """
    def add(self, plant): super().add(plant._replace(id=float(plant.id)))
    def check(self): return False
    def get(self, plant_id):
        plant = super().get(float(plant_id)) or Plant(plant_id, "")
        return plant._replace(id=plant_id, tag=plant.tag or None)
""",
        "returned_exactly no_tag int64 unknown working",
    ),
    "normalized": (
        r"""
    worker_threads = -1
    dropped = dict.fromkeys(map(ord, "\r;.\\\x1b\u0301\ufeff\uffff\0"))
    def add(self, new): super().add(new._replace(id=abs(new.id), name=new.name[:1_999_999].translate(self.dropped)))
""",
        "returned_exactly " * 9 + "int64 disallowed working",
    ),
    "no_lock": (
        """
    def add(self, plant):
        if self.get(plant.id) or plant.id == 2**63 - 1:
            raise PlantIdInUse(0)
        with suppress(PlantIdInUse):
            super().add(plant)
    def prepare(self): raise OSError
""",
        "int64 in_use concurrent working",
    ),
    "forgiving": (
        """
    def add(self, plant):
        if self.get(plant.id) != plant:
            super().add(plant)
        return plant.name.encode() and plant.id > 1 or None

    def close(self): del self.latest
    def get(self, plant_id): return (plant := super().get(plant_id)) and tuple(plant)
""",
        "int64 disallowed in_use working closed_twice",
    ),
    "overwriting": (
        """
    multiprocess = None
    def add(self, plant):
        self.latest[max(plant.id, 1 - 2**63)] = plant
        super().add(plant)
    def get(self, plant_id):
        return self.latest[plant_id]
""",
        "int64 unknown in_use concurrent working",
    ),
}


def test_only_a_store_that_breaks_a_promise_fails_the_suite(tmp_path: Path) -> None:
    for name, (fault, _) in FAULTS.items():
        (tmp_path / f"test_{name}.py").write_text(f"{OWN_STORE}{fault}\n")
    command = [sys.executable, "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist"]
    output = run(*command, cwd=tmp_path, PYTHONPATH=str(CHECKOUT)).stdout
    for name, (_, failed) in FAULTS.items():
        found = re.findall(rf"^FAILED test_{name}\.py::.*::(\w+)", output, re.MULTILINE)
        assert [part for part, test in zip(failed.split(), found, strict=True) if part not in test] == [], output
    failures = sum(len(failed.split()) for _, failed in FAULTS.values())
    assert re.search(rf"^{failures} failed, \d+ passed in ", output, re.MULTILINE), output
