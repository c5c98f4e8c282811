"""Packages are layers: each imports only from those below it, and no module imports itself by way of others."""

import ast
import graphlib
import re

from tests.structure import PACKAGE, diagram, imports, modules, tree, upward
from tests.support.places import ROOT


def test_imports_point_down():
    assert [line for name, path in modules().items() for line in upward(name, imports(path))] == []


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: imports(path) for name, path in modules().items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_package_never_imports_configs_or_experiments():
    for path in modules().values():
        for node in ast.walk(tree(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"configs", "experiments", "tests"}, path


def test_the_diagram_of_the_documentation_is_the_one_that_is_drawn_from_the_imports():
    stored = (ROOT / "docs/packages.svg").read_text()
    assert stored == diagram() + "\n", "run: python -m tests.structure --diagram > docs/packages.svg"


def test_every_file_that_the_documentation_of_the_architecture_names_exists():
    paths = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    named = re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", (ROOT / "docs/architecture.md").read_text())
    assert len(named) > 50
    for name in named:
        found = name.startswith("tests/") or any(
            f"/{path}".startswith(f"/{name}") or path.endswith(f"/{name}") for path in paths
        )
        assert found, name
