"""Custom code, loaded from a user's file: `path/to/file.py:Name`; and its identity, a digest."""

import ast
import contextlib
import dataclasses
import importlib.util
import inspect
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from transformer_jax.errors import BadInput, did_you_mean
from transformer_jax.files.digests import json_sha256, sha256

# A list of this name in a custom file names other files on which it depends, such as word lists or modules.
FILES = "FILES"
# The module of path/to/file.py is called transformer_jax_user_file.
PREFIX = "transformer_jax_user_"
# Where modules are that no run copies: of this package, installed ones and Python's.
INSTALLED = [
    Path(__file__).resolve().parent,
    *(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")),
]
# Folders of copies of custom files and of their modules, which these files import in place of the current versions.
copies = set[Path]()


class UserCodeError(BadInput):
    """Custom code raised an exception: the one case in which a user needs a traceback, from that file on."""

    def __init__(self, paths: Sequence[str], error: BaseException):
        blamed, first, frame = paths[0], None, error.__traceback__
        files = {Path(path).resolve(): path for path in paths}
        while frame is not None:
            if (file := Path(frame.tb_frame.f_code.co_filename).resolve()) in files:
                blamed, first = files[file], first or frame
            frame = frame.tb_next
        super().__init__(f"{blamed} raised {type(error).__name__}: {error}")
        if first is None and not isinstance(error, SyntaxError):  # which names the file itself
            first = error.__traceback__
        self.traceback = "".join(traceback.format_exception(error.with_traceback(first)))


@contextlib.contextmanager
def running(*paths: str) -> Iterator[None]:
    """Runs custom code of files: its exceptions are reported with their traceback from the first of them on."""
    try:
        yield
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(paths, error) from error


def custom_files(error: BaseException) -> list[str]:
    """The custom files whose code an exception passed."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [each.f_code.co_filename for each in frames if each.f_globals.get("__name__", "").startswith(PREFIX)]


def file_of(address: str) -> str:
    return address.rpartition(":")[0]


def load_module(path: str, what: str = "Python file") -> ModuleType:
    """Executes a Python file, with all the permissions of the user.

    It may import modules beside it. Installed packages of the same name take precedence.
    """
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise BadInput(f"{path}: no such {what} in {Path.cwd()} (its name must end in .py)")
    _import_from(file.resolve())
    name = f"{PREFIX}{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and linen modules look up their module there
    with running(path):
        spec.loader.exec_module(module)
    return module


def _import_from(file: Path) -> None:
    """Makes the modules beside a custom file importable: after installed packages, but copies of a run before them.

    Copies of another run that have a module which this file imports make way: it gets its own.
    """
    folder = file.parent
    imported = _imported_by(file)
    stale = {copy for copy in copies if copy.parent != folder.parent and imported & _modules_in(copy)}
    sys.path[:] = [place for place in sys.path if Path(place) not in stale]
    _forget(name for name, place in imported_files().items() if any(place.is_relative_to(copy) for copy in stale))
    if folder in copies:
        modules = _modules_in(folder)
        _forget(name for name in imported_files() if name.partition(".")[0] in modules)
        sys.path[:] = [str(folder), *(place for place in sys.path if Path(place) != folder)]
    elif str(folder) not in sys.path:
        sys.path.append(str(folder))


def _imported_by(file: Path) -> set[str]:
    """The modules and packages that a file imports."""
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
    except (SyntaxError, ValueError):  # reported where it is executed
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def _modules_in(folder: Path) -> set[str]:
    return {each.stem for each in folder.iterdir()} if folder.is_dir() else set()


def _forget(names: Iterable[str]) -> None:
    """Lets these modules be imported anew, with all of their packages."""
    packages = {name.partition(".")[0] for name in names} - {"__main__"}
    for name in [*sys.modules]:
        if name.partition(".")[0] in packages and not name.startswith(PREFIX):
            del sys.modules[name]


def imported_files() -> dict[str, Path]:
    """The file of each module that was imported, but of no installed package."""
    found = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    files = {name: Path(file).resolve() for name, file in found.items() if isinstance(file, str)}
    return {name: file for name, file in files.items() if not any(map(file.is_relative_to, INSTALLED))}


def load_object(address: str) -> Any:
    """The object at the address `path/to/file.py:Name`."""
    path, _, name = address.rpartition(":")
    if not path or not name.isidentifier():
        raise BadInput(f"{address!r}: must be path/to/file.py:Name")
    module = module_once(path)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise BadInput(f"{path} has no {name}; {did_you_mean(name, public)}")
    return getattr(module, name)


def module_once(path: str) -> ModuleType:
    """The module of a custom file, executed again only after an edit of it or of the modules in its FILES.

    linen and jit tell classes by identity.
    """
    place = Path(path).resolve()
    module, contents = _loaded.get(place, (None, {}))
    if module is None or any(_content(file) != content for file, content in contents.items()):
        _forget(name for name, file in imported_files().items() if file in contents)
        module = load_module(path)
        files = [file.resolve() for file in _places(path, _named_in(module, path, FILES)).values()]
        modules = [place, *(file for file in files if file.suffix == ".py")]
        _loaded[place] = module, {file: _content(file) for file in modules}
    return module


# Modules of custom files, and the contents of these files and of the modules in their FILES.
_loaded: dict[Path, tuple[ModuleType, dict[Path, bytes]]] = {}


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


@dataclasses.dataclass(frozen=True)
class CustomCode:
    """The identity of custom code: its file's name, a digest of its definition there, and one of each of the FILES."""

    main: str
    source: str
    files: Mapping[str, str]

    @property
    def digest(self) -> str:
        return json_sha256(dataclasses.asdict(self))

    def is_at(self, address: str) -> bool:
        """Whether a file there has this code. The file is not executed, which would import its modules."""
        places = _places(file_of(address), self.files)
        return source_digest(address) == self.source and all(
            place.is_file() and sha256(place.read_bytes()) == self.files[name] for name, place in places.items()
        )

    def changed_since(self, old: "CustomCode") -> list[str]:
        """The names of the files that differ from an older version of this code."""
        before, now = {old.main: old.source, **old.files}, {self.main: self.source, **self.files}
        return [name for name in dict.fromkeys([*now, *before]) if before.get(name) != now.get(name)]


def read_code(address: str) -> CustomCode:
    """The current identity of the code at an address."""
    path = file_of(address)
    files = {name: sha256(place.read_bytes()) for name, place in named_files(path).items()}
    return CustomCode(Path(path).name, source_digest(address), files)


def named_in(path: str, variable: str) -> list[str]:
    """The texts or paths in a variable of a custom file: one or several; none where it is not defined."""
    return _named_in(module_once(path), path, variable)


def _named_in(module: ModuleType, path: str, variable: str) -> list[str]:
    named = vars(module).get(variable, ())
    try:
        return [*map(os.fspath, [named] if isinstance(named, str | os.PathLike) else named)]
    except TypeError:
        raise BadInput(f"{path}: {variable} = {named!r}: must be a text, or a list of texts") from None


def named_files(path: str) -> dict[str, Path]:
    """The FILES of a custom file."""
    found = _places(path, named_in(path, FILES))
    if missing := [name for name, place in found.items() if not place.is_file()]:
        raise BadInput(f"{path}: {FILES} names {missing[0]}, and there is no such file")
    return found


def _places(path: str, names: Iterable[str]) -> dict[str, Path]:
    """Where the FILES of a custom file are: in the current directory, or beside it."""
    return {name: Path(name) if Path(name).is_file() else Path(path).parent / name for name in names}


def source_digest(address: str) -> str:
    """A digest of the statements of a file that define a name, and of all that they use in the file.

    Comments, docstrings and formatting do not count, nor what else the file defines: an experiment file may get another
    variant without a change of the layers that it compares.
    """
    path, _, name = address.rpartition(":")
    content = Path(path).read_bytes()
    try:
        statements = ast.parse(content).body
    except (SyntaxError, ValueError):  # reported where it is executed
        return sha256(content)
    defined = [_defined_by(statement) for statement in statements]
    wanted, chosen = {name}, set[int]()
    # A statement without a name, such as a condition, may change what any name means.
    while new := {i for i, names in enumerate(defined) if i not in chosen and (not names or names & wanted)}:
        chosen |= new
        wanted |= {node.id for i in new for node in ast.walk(statements[i]) if isinstance(node, ast.Name)}
    return sha256(json.dumps(_plain([statements[i] for i in sorted(chosen)])))


def _defined_by(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top level of a file defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names} - {"*"}
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        # Not all of the value: a comprehension's variable is defined nowhere else.
        targets = [*statement.targets] if isinstance(statement, ast.Assign) else [statement.target]
        targets += [node.target for node in ast.walk(statement) if isinstance(node, ast.NamedExpr)]
        parts = [node for target in targets for node in ast.walk(target)]
        if any(isinstance(node, ast.Attribute | ast.Subscript) for node in parts):
            return set()  # an object is changed, whatever its names are
        return {node.id for node in parts if isinstance(node, ast.Name)}
    return set()


def _plain(node: Any) -> Any:
    """A syntax tree as lists, the same in every version of Python: without empty fields, and None for docstrings."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return None
    if isinstance(node, ast.AST):
        fields = [[name, _plain(value)] for name, value in ast.iter_fields(node) if value not in (None, [])]
        return [type(node).__name__, fields]
    return [plain for each in node if (plain := _plain(each))] if isinstance(node, list) else repr(node)


@dataclasses.dataclass(frozen=True)
class CustomFunction:
    """A custom function named by an option. It is called with the optional arguments that its signature has."""

    option: str
    address: str
    function: Callable[..., Any]
    optional: tuple[str, ...]

    def __call__(self, *args: Any, **optional: Any) -> Any:
        with self.running():
            return self.function(*args, **{name: optional[name] for name in self.optional})

    def running(self) -> contextlib.AbstractContextManager[None]:
        return running(file_of(self.address))

    def refusal(self, problem: str) -> BadInput:
        return BadInput(f"{self.option} = {self.address}: {problem}")


def load_function(
    option: str, address: str, required: Sequence[str] = (), optional: Sequence[str] = ()
) -> CustomFunction:
    """The function at an address, which takes required arguments by position and may take optional ones by name."""
    function = load_object(address)
    try:
        signature = inspect.signature(function)
        taken = tuple(name for name in optional if name in signature.parameters)
        signature.bind(*required, **dict.fromkeys(taken))
    except (TypeError, ValueError) as error:
        wanted = f"must be callable with ({', '.join(required)})"
        more = f" and, by name, any of {', '.join(optional)}" if optional else ""
        raise BadInput(f"{option} = {address}: {wanted}{more}: {error}") from None
    return CustomFunction(option, address, function, taken)
