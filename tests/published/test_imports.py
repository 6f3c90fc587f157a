"""Imports: each layer of the package imports only the layers below it, and no import is circular."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import plants

PACKAGE = Path(str(plants.__file__)).parent
MODULES = {
    ".".join(("plants", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): file
    for file in PACKAGE.rglob("*.py")
}
# The modules of each layer, and the layers that they may import.
LAYERS = {
    "testing": (r"plants\.(testing|store_suite|pytest_plugin)", {"testing", "application", "stores"}),
    "hosting": (r"plants\.(hosting|wsgi|__main__)", {"hosting", "server", "application", "stores"}),
    "server": (r"plants\.server", {"server"}),
    "stores": (r"plants\.stores", {"stores"}),
    "application": ("plants", {"application", "stores"}),
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


def layer_of(module: str) -> str:
    return next(layer for layer, (pattern, _) in LAYERS.items() if re.match(pattern, module))


def test_a_layer_imports_only_the_layers_below_it_and_no_import_is_circular() -> None:
    imports = {module: imports_of(module) for module in MODULES}
    pairs = [(module, imported) for module, found in imports.items() for imported in found]
    assert [pair for pair in pairs if layer_of(pair[1]) not in LAYERS[layer_of(pair[0])][1]] == []
    # Ignore what a package imports from its own modules, because these modules import the package. For example,
    # open_store() in plants.stores imports plants.stores.sqlite, which imports plants.stores.
    graph = {module: {name for name in found if not name.startswith(f"{module}.")} for module, found in imports.items()}
    TopologicalSorter(graph).prepare()
