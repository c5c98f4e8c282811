"""The identity of custom code: a digest of the file that an option names, the modules it imports, the files it reads.

Installed packages and this library are identified by their versions instead.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.machinery
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from transformer_jax import extension
from transformer_jax.errors import BadInput

# A list of this name in a custom file names the data files that it reads, which are part of its identity.
FILES = "FILES"
# Folders of installed code, besides site-packages: Python's modules, and this package.
_FOLDERS = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(__file__).parent)
INSTALLED = [Path(folder).resolve() for folder in _FOLDERS]


@dataclasses.dataclass(frozen=True)
class CustomCode:
    """A custom Python file with its known dependencies: a SHA-256 for each file.

    `modules`: the file itself and the modules that it imports from outside the installed packages. `data`: its FILES.
    """

    main: str
    modules: Mapping[str, str]
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def digest(self) -> str:
        """One digest of all files; for a file without dependencies, its SHA-256."""
        if self.modules.keys() == {self.main} and not self.data:
            return self.modules[self.main]
        files = {"modules": dict(self.modules), "data": dict(self.data)}
        return hashlib.sha256(json.dumps([self.main, files], sort_keys=True).encode()).hexdigest()

    def changed_since(self, old: CustomCode) -> list[str]:
        """The names of the files that differ from an older version of this code."""
        before, now = {**old.modules, **old.data}, {**self.modules, **self.data}
        return [name for name in dict.fromkeys([*now, *before]) if before.get(name) != now.get(name)]


def read_code(path: str | Path) -> CustomCode:
    """The current identity of a custom file."""
    data = {}
    for name, place in data_files(path).items():
        with open(place, "rb") as opened:
            data[name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return CustomCode(Path(path).name, module_digests(path), data)


def module_digests(path: str | Path) -> dict[str, str]:
    """A SHA-256 for each of `module_files`; refused if one was edited after this process had imported it."""
    files = module_files(path)
    digests = {name: code_digest(place.read_bytes()) for name, place in files.items()}
    for name, place in files.items():
        first = _first_seen.setdefault(place, digests[name])
        if name != Path(path).name and first != digests[name] and _is_loaded(place):
            raise BadInput(f"{place}: was edited after this process had imported it; start a new process")
    return digests


# The digest that a file had when this process first read it.
_first_seen: dict[Path, str] = {}


def _is_loaded(place: Path) -> bool:
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return any(file and Path(file).resolve() == place for file in files)


def module_files(path: str | Path) -> dict[str, Path]:
    """A custom file and the modules that it imports, directly or not, from outside the installed packages."""
    main = Path(path).resolve()
    found = {Path(path).name: main}
    remaining = [(main, "")]
    while remaining:
        file, package = remaining.pop()
        for name in _imported(file, package):
            place = _place(name, main.parent)
            if place is None or place in found.values():
                continue
            label = name.replace(".", "/") + ("/__init__.py" if place.name == "__init__.py" else place.suffix)
            found[label] = place
            if place.suffix == ".py":
                remaining.append((place, name if place.name == "__init__.py" else name.rpartition(".")[0]))
    return dict(sorted(found.items()))


def data_files(path: str | Path) -> dict[str, Path]:
    """The FILES of a custom file: looked for in the current directory, then beside the file."""
    named = vars(extension.module_once(str(path))).get(FILES, ())
    found = {}
    for name in [named] if isinstance(named, str) else named:
        places = (Path(name), Path(path).parent / name)
        place = next((place for place in places if place.is_file()), None)
        if place is None:
            raise BadInput(f"{path}: {FILES} names {name}, and there is no such file")
        found[str(name)] = place
    return found


def code_digest(content: bytes) -> str:
    """A SHA-256 of a Python file without its get_sweep() and get_config(), whose results are compared instead.

    An experiment file may define the layers that it compares, and variants may be added to it.
    """
    lines = content.splitlines(keepends=True)
    with contextlib.suppress(SyntaxError, ValueError):  # reported where it is executed
        for node in reversed(ast.parse(content).body if any(name in content for name in _DEFINING) else []):
            if isinstance(node, ast.FunctionDef) and node.name.encode() in _DEFINING:
                del lines[node.lineno - 1 : node.end_lineno]
    return hashlib.sha256(b"".join(lines)).hexdigest()


_DEFINING = (b"get_sweep", b"get_config")


def _imported(file: Path, package: str) -> Iterator[str]:
    """The dotted names of everything that a file imports, each after its parent packages."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError):  # reported where it is executed
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".") if package else []
            above = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)] if module else []
        else:
            continue
        for name in names:
            yield from _with_parents(name)


def _with_parents(name: str) -> Iterable[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _place(name: str, folder: Path) -> Path | None:
    """The file that a module was, or would be, loaded from; None if it is installed or built in."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
    else:
        file = _unloaded(name, [*sys.path, str(folder)])
    place = Path(file).resolve() if file else None
    return None if place is None or not place.is_file() or _is_installed(place) else place


def _unloaded(name: str, search: list[str]) -> str | None:
    """The file that a module would be loaded from. Unlike importlib.util.find_spec, executes no parent package."""
    spec, places = None, search
    for part in _with_parents(name):
        spec = importlib.machinery.PathFinder.find_spec(part, places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or [])
    return spec.origin if spec is not None and spec.has_location else None


def _is_installed(place: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(place.parts) or any(map(place.is_relative_to, INSTALLED))
