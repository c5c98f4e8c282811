"""The structure of the package, read from its imports: figures, and the diagram of docs/architecture.md.

`python -m tests.structure` prints the figures, `--diagram` the diagram (docs/packages.svg); `--package DIRECTORY` reads
the package of another checkout.
"""

import argparse
import ast
import collections
import functools
from html import escape
from pathlib import Path

from tests.support.places import ROOT

NAME = "transformer_jax"
PACKAGE = ROOT / NAME
# From the bottom up: a package or module imports only from the lines above its own. Those of one line are independent.
LAYERS = [
    ["errors", "version", "table3", "accelerators", "metric_names"],
    ["extras", "shipped"],
    ["files"],
    ["schema"],
    ["extension", "model_config"],
    ["config"],
    ["search", "grammar", "model"],
    ["data", "processes"],
    ["update"],
    ["runs"],
    ["training", "translation"],
    ["evaluation", "interop", "planning", "pictures"],
    ["bootstrap"],
    ["experiment"],
    ["sweeps"],
    ["report"],
    ["commands"],
    ["cli", "__init__"],
    ["__main__"],
]
# The most lines of each package that it is meant to have.
BUDGETS = {
    "top level": 2000, "model": 1800, "update": 1000, "search": 650, "training": 1000, "data": 2500,
    "runs": 1200, "processes": 400, "translation": 650, "files": 450, "interop": 650,
    "sweeps": 2300, "report": 2300, "commands": 1600, "pictures": 300, "grammar": 1350,
}  # fmt: skip
# Left out of the diagram: what nearly every package imports, and the two entries.
BASICS = {name for names in LAYERS[:6] for name in names} | {"__init__", "__main__"}

# The drawing: boxes in rows from top to bottom.
WIDTH, HEIGHT = 110, 30  # of a box
ROW, COLUMN, MARGIN = 72, 132, 20
START = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">\
<path d="M0 0 8 4 0 8z" fill="#888"/></marker></defs>
<g fill="none" stroke="#888" marker-end="url(#tip)">"""


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module by its dotted name inside the package; a folder's own name stands for its `__init__`."""
    paths = {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in sorted(paths.items())}


@functools.cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found |= {_module(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names}
    return {name.removeprefix(f"{NAME}.") for name in found if name.startswith(f"{NAME}.")}


def _module(name: str, parent: str) -> str:
    path = ROOT.joinpath(*name.split("."))
    return name if path.is_dir() or path.with_suffix(".py").is_file() else parent


def layer(module: str) -> int:
    """The layer of the package, or of the top-level module, that a module belongs to."""
    top = module.partition(".")[0]
    (number,) = (number for number, names in enumerate(LAYERS) if top in names)
    return number


def upward(module: str, imported: set[str]) -> list[str]:
    """The imports of a module that lead to a package of the same layer or of one above."""
    top = module.partition(".")[0]
    others = sorted(name for name in imported if name.partition(".")[0] != top)
    return [f"{module} imports {name}" for name in others if layer(name) >= layer(module)]


def group(module: str) -> str:
    """The package that a module belongs to; the modules at the top level are one group, the command line another."""
    top, _, inner = module.partition(".")
    if top in ("cli", "__main__"):
        return "commands"
    return top if inner or (PACKAGE / top).is_dir() else "top level"


def raises(path: Path) -> int:
    """The number of `raise` statements of a file that raise a new error."""
    return sum(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(tree(path)))


def untested() -> list[str]:
    """Modules `a/b.py` without a `tests/a/test_b.py`."""
    tests = ROOT / "tests"
    paths = [path for path in modules().values() if path.name not in ("__init__.py", "__main__.py")]
    names = [path.relative_to(PACKAGE) for path in paths]
    return [str(name) for name in names if not (tests / name).with_name(f"test_{name.name}").is_file()]


def diagram() -> str:
    """The packages as an SVG picture, without the arrows that follow from others and what nearly all of them import."""
    graph = collections.defaultdict(set)
    for name, path in modules().items():
        graph[name.partition(".")[0]] |= {imported.partition(".")[0] for imported in imports(path)}
    shown = {name: graph[name] - BASICS - {name} for name in graph if name not in BASICS}

    def reached(name: str) -> set[str]:
        return set().union(*({below} | reached(below) for below in shown[name]))

    return drawn({name: below - set().union(*map(reached, below)) for name, below in shown.items()})


def drawn(graph: dict[str, set[str]]) -> str:
    """Every name in a box above those that it leads to."""
    rows = _rows(graph)
    widest = max(map(len, rows))
    place = {
        name: (MARGIN + WIDTH / 2 + COLUMN * (column + (widest - len(row)) / 2), MARGIN + ROW * number)
        for number, row in enumerate(rows)
        for column, name in enumerate(row)
    }
    lines = [START.format(width=2 * MARGIN + WIDTH + COLUMN * (widest - 1), height=2 * MARGIN + ROW * len(rows))]
    for name, below in sorted(graph.items()):
        for target in sorted(below):
            (x, y), (to_x, to_y) = place[name], place[target]
            bend = (y + HEIGHT + to_y) / 2
            lines.append(
                f'<path d="M{x:.0f} {y + HEIGHT}C{x:.0f} {bend:.0f} {to_x:.0f} {bend:.0f} {to_x:.0f} {to_y}"/>'
            )
    lines.append('</g><g fill="#e8eaf6" stroke="#3f51b5">')
    box = f'<rect x="{{:.0f}}" y="{{}}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>'
    lines += [box.format(x - WIDTH / 2, y) for x, y in place.values()]
    lines.append('</g><g fill="#111" font-size="14" text-anchor="middle">')
    lines += [f'<text x="{x:.0f}" y="{y + HEIGHT / 2 + 5:.0f}">{escape(name)}</text>' for name, (x, y) in place.items()]
    return "\n".join([*lines, "</g></svg>"])


def _rows(graph: dict[str, set[str]]) -> list[list[str]]:
    """The names by the longest way that leads to them; in a row, below what leads to them."""
    above = collections.defaultdict(set)
    for name, below in graph.items():
        for target in below:
            above[target].add(name)

    def depth(name: str) -> int:
        return max((depth(other) + 1 for other in above[name]), default=0)

    rows = collections.defaultdict(list)
    for name in sorted(graph):
        rows[depth(name)].append(name)
    where: dict[str, float] = {}
    for number in sorted(rows):
        rows[number].sort(key=lambda name: sum(where[other] for other in above[name]) / (len(above[name]) or 1))
        where |= {name: (column + 0.5) / len(rows[number]) for column, name in enumerate(rows[number])}
    return [rows[number] for number in sorted(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--diagram", action="store_true")
    parser.add_argument("--package", type=Path, default=PACKAGE)
    arguments = parser.parse_args()
    if arguments.diagram:
        print(diagram())
        return
    lines, errors = collections.Counter[str](), collections.Counter[str]()
    for name, path in modules(arguments.package).items():
        lines[group(name)] += path.read_text().count("\n")
        errors[group(name)] += raises(path)
    print(f"lines: {lines.total():,} in {len(modules(arguments.package))} modules; raise statements: {errors.total()}")
    for name, count in lines.most_common():
        print(f"  {name:<12} {count:>6,} lines, budget {BUDGETS.get(name, 0):>5,}; {errors[name]:>3} raise")
    if arguments.package == PACKAGE:
        print(f"upward imports: {sum(len(upward(name, imports(path))) for name, path in modules().items())}")
        print(f"modules without a test file of their name: {', '.join(untested()) or 'none'}")


if __name__ == "__main__":
    main()
