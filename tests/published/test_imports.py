"""Imports: each layer of the package imports only the layers below it."""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import plants
from tests.support.hosted import CHECKOUT, run

PACKAGE = Path(str(plants.__file__)).parent
MODULES = {
    ".".join(("plants", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): file
    for file in PACKAGE.rglob("*.py")
}


def imports_of(module: str) -> set[str]:
    """Return what a module imports from the package, including imports in functions and for types."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} has a relative import"
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & MODULES.keys() - {module}


TOP_LEVEL_MODULES = {
    "hosting": {"plants.wsgi", "plants.__main__"},
    "testing": {"plants.testing", "plants.store_suite", "plants.pytest_plugin"},
}


def layer_of(module: str) -> str:
    for layer in ("hosting", "server", "stores"):
        if module.startswith(f"plants.{layer}"):
            return layer
    return next((layer for layer, modules in TOP_LEVEL_MODULES.items() if module in modules), "application")


ALLOWED = {
    "testing": {"testing", "application", "stores"},
    "hosting": {"hosting", "server", "application", "stores"},
    "server": {"server"},
    "application": {"application", "stores"},
    "stores": {"stores"},
}


def test_no_import_is_circular() -> None:
    # Ignore what a package imports from its own modules, because these modules import the package. For example,
    # open_store() in plants.stores imports plants.stores.sqlite, which imports plants.stores.
    graph = {module: {name for name in imports_of(module) if not name.startswith(f"{module}.")} for module in MODULES}
    TopologicalSorter(graph).prepare()


def test_a_layer_imports_only_the_layers_below_it() -> None:
    wrong = [
        (module, imported)
        for module in MODULES
        for imported in imports_of(module)
        if layer_of(imported) not in ALLOWED[layer_of(module)]
    ]
    assert wrong == []


@pytest.mark.usefixtures("no_subprocess_coverage")
def test_embedding_and_fixtures_need_no_name_that_windows_lacks() -> None:
    program = (
        "import os; assert not hasattr(os, 'fork'); import plants, plants.app, plants.testing, plants.stores.sqlite"
    )
    simulation = {"PYTHONPATH": str(CHECKOUT / "tests/support/other_systems"), "SIMULATED_SYSTEM": "Windows"}
    found = run(sys.executable, "-c", program, **simulation)
    assert (found.returncode, found.stderr) == (0, "")
