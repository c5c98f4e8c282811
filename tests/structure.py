"""The structure of the package, read from its imports: figures, and the diagram of docs/architecture.md.

`python -m tests.structure` prints the figures, `--diagram` the diagram (docs/packages.svg); `--package DIRECTORY` reads
the package of another checkout.
"""

import argparse
import ast
import collections
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.diagram import drawn
from tests.support.places import ROOT

NAME = "transformer_jax"
PACKAGE = ROOT / NAME
# From the bottom up: a package or module imports only from the lines above its own. Those of one line are independent.
LAYERS = [
    ["errors", "version", "table3"],
    ["extras", "shipped", "exact_match"],
    ["files"],
    ["schema"],
    ["extension", "model_config", "data_config", "optimizer_config"],
    ["config"],
    ["search", "grammar", "model", "pictures"],
    ["data", "processes"],
    ["update"],
    ["runs"],
    ["training", "translation"],
    ["evaluation", "interop", "planning"],
    ["experiment"],
    ["sweeps"],
    ["report"],
    ["commands"],
    ["cli", "__init__"],
    ["__main__"],
]
# The most lines of each package that it is meant to have.
BUDGETS = {
    "top level": 2000,
    "model": 1800,
    "update": 1000,
    "search": 650,
    "training": 1000,
    "data": 2500,
    "runs": 1200,
    "processes": 400,
    "translation": 650,
    "files": 450,
    "planning": 350,
    "interop": 650,
    "sweeps": 2300,
    "report": 2300,
    "commands": 1600,
    "pictures": 300,
    "grammar": 1350,
}
# Left out of the diagram: what nearly every package imports, and the two entries.
BASICS = {
    "errors",
    "extras",
    "version",
    "shipped",
    "table3",
    "files",
    "schema",
    "extension",
    "model_config",
    "data_config",
}
BASICS |= {"optimizer_config", "config", "__init__", "__main__"}


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module by its dotted name inside the package; a folder's own name stands for its `__init__`."""
    paths = {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in sorted(paths.items())}


@functools.cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def imports(path: Path, package: Path = PACKAGE) -> set[str]:
    """The modules of the package that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found |= {_module(f"{node.module}.{alias.name}", str(node.module), package) for alias in node.names}
    return {name.removeprefix(f"{NAME}.") for name in found if name.startswith(f"{NAME}.")}


def _module(name: str, parent: str, package: Path) -> str:
    path = package.parent.joinpath(*name.split("."))
    return name if path.is_dir() or path.with_suffix(".py").is_file() else parent


def layer(module: str) -> int:
    """The layer of the package, or of the top-level module, that a module belongs to."""
    top = module.partition(".")[0]
    for number, names in enumerate(LAYERS):
        if top in names:
            return number
    raise AssertionError(f"{module} is missing in LAYERS")


def upward(module: str, imported: set[str]) -> list[str]:
    """The imports of a module that lead to a package of the same layer or of one above."""
    top = module.partition(".")[0]
    return [
        f"{module} imports {name}"
        for name in sorted(imported)
        if name.partition(".")[0] != top and layer(name) >= layer(module)
    ]


def group(module: str) -> str:
    """The package that a module belongs to; the modules at the top level are one group, the command line another."""
    top, _, inner = module.partition(".")
    if top in ("cli", "__main__"):
        return "commands"
    return top if inner or (PACKAGE / top).is_dir() else "top level"


def raises(path: Path) -> int:
    """The number of `raise` statements of a file that raise a new error."""
    return sum(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree(path)))


def untested(package: Path = PACKAGE) -> list[str]:
    """Modules `a/b.py` without a `tests/a/test_b.py`."""
    tests = package.parent / "tests"
    return [
        name
        for name, path in modules(package).items()
        if path.name not in ("__init__.py", "__main__.py")
        and not (tests / path.relative_to(package)).with_name(f"test_{path.name}").is_file()
    ]


def mentions(*words: str, package: Path = PACKAGE) -> list[str]:
    """Modules whose code has one of these identifiers, or a string that is one or ends in it (`"decode.beam"`)."""

    def found(node: ast.AST) -> bool:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value.rpartition(".")[2] in words
        return any(getattr(node, field, None) in words for field in ("id", "attr", "arg", "name"))

    return [name for name, path in modules(package).items() if any(map(found, ast.walk(tree(path))))]


def traced(script: str, package: Path = PACKAGE) -> dict[str, Any]:
    """What a script of tests/support finds while it trains a tiny model with the package."""
    environment = os.environ | {"PYTHONPATH": str(package.parent), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, ROOT / "tests/support" / script]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def diagram() -> str:
    """The packages as an SVG picture, without the arrows that follow from others and what nearly all of them import."""
    graph = collections.defaultdict(set)
    for name, path in modules().items():
        top = name.partition(".")[0]
        graph[top] |= {imported.partition(".")[0] for imported in imports(path)} - {top}
    shown = {name: graph[name] - BASICS for name in graph if name not in BASICS}

    def reached(name: str) -> set[str]:
        return set().union(*({below} | reached(below) for below in shown[name]))

    return drawn(
        {
            name: {
                below for below in shown[name] if not any(below in reached(other) for other in shown[name] - {below})
            }
            for name in shown
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--diagram", action="store_true")
    parser.add_argument("--package", type=Path, default=PACKAGE)
    options = parser.parse_args()
    package = options.package
    if options.diagram:
        print(diagram())
        return
    lines, errors = collections.Counter[str](), collections.Counter[str]()
    for name, path in modules(package).items():
        lines[group(name)] += path.read_text().count("\n")
        errors[group(name)] += raises(path)
    print(f"lines: {lines.total():,} in {len(modules(package))} modules; raise statements: {errors.total()}")
    for name, count in lines.most_common():
        print(f"  {name:<12} {count:>6,} lines, budget {BUDGETS.get(name, 0):>5,}; {errors[name]:>3} raise")
    if package == PACKAGE:
        print(f"upward imports: {sum(len(upward(name, imports(path))) for name, path in modules().items())}")
    for words in (("label_smoothing",), ("beam", "beam_size")):
        found = mentions(*words, package=package)
        print(f"modules whose code mentions {' or '.join(words)}: {len(found)}: {', '.join(found)}")
    missing = untested(package)
    print(f"modules without a test file of their name: {len(missing)}: {', '.join(missing)}")
    for name, files in traced("crossed_files.py", package).items():
        print(f"files that one {name} crosses: {len(files)}: {', '.join(files)}")
    batch = traced("traced_training.py", package)["batch"]
    print(f"files on the path of a batch, from the corpus to the update: {len(batch)}: {', '.join(batch)}")


if __name__ == "__main__":
    main()
