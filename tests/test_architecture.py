"""Packages are layers: each imports only from those below it, and no module imports itself by way of others."""

import ast
import graphlib

import pytest

from tests.structure import imports, modules, upward


def test_imports_point_down():
    assert [line for name, path in modules().items() for line in upward(name, imports(path))] == []


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("config", "model.attention"),
        ("model.layers", "data.batching"),
        ("data.batching", "update.step"),
        ("search.beam", "model.transformer"),
        ("training.loop", "translation.translate"),
    ],
)
def test_an_upward_or_sideways_import_is_found(module, imported):
    assert upward(module, {imported}) == [f"{module} imports {imported}"]


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: imports(path) for name, path in modules().items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_package_never_imports_configs_or_experiments():
    for path in modules().values():
        text = path.read_text()
        assert "import configs" not in text
        assert "from configs" not in text
        assert "from experiments" not in text


def test_files_and_functions_are_short():
    long = []
    for name, path in modules().items():
        text = path.read_text()
        lines, most = text.count("\n"), 220 if name.startswith("model.") else 400
        long += [f"{name}: {lines} lines"] if lines > most else []
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        sizes = [(function.name, (function.end_lineno or 0) - function.lineno + 1) for function in functions]
        long += [f"{name}.{function} has {size} lines" for function, size in sizes if size > 60]
    assert long == []
