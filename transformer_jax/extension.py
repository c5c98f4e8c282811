"""A user's own code, from a user's own file: `path/to/file.py:Name`."""

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from transformer_jax.errors import BadInput
from transformer_jax.schema import nearest


class UserCodeError(BadInput):
    """The user's own code raised: the one case in which a traceback is what the user needs to see."""

    def __init__(self, path: str, error: BaseException):
        super().__init__(f"{path} raised {type(error).__name__}: {error}")
        self.traceback = "".join(traceback.format_exception(error.with_traceback(_from_file(path, error))))


@contextlib.contextmanager
def running(path: str) -> Iterator[None]:
    """Runs the code of a user's file: what it raises is reported as its own, with its own traceback."""
    try:
        yield
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(path, error) from error


def load_module(path: str, what: str = "Python file") -> ModuleType:
    """Executes a Python file. Such a file is code: it can do whatever the user can."""
    file = Path(path)
    if file.suffix != ".py":
        raise BadInput(f"{path}: is no {what} (its name must end in .py)")
    if not file.is_file():
        looked_in = "" if file.is_absolute() else f" (looked for in {Path.cwd()})"
        raise BadInput(
            f"{path}: no such {what}{looked_in}" if not file.exists() else f"{path}: is a directory, no {what}"
        )
    name = f"transformer_jax_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and linen modules look their own module up there
    with running(path):
        spec.loader.exec_module(module)
    return module


def load_object(address: str) -> Any:
    """The object called Name in path/to/file.py, given as `path/to/file.py:Name`."""
    path, name = _split(address)
    return _named(_load_custom(path), path, name)


def load_once(address: str) -> Any:
    """The same, of a file that is executed once: linen and jit tell classes and functions apart by what they are."""
    path, name = _split(address)
    return _named(module_once(path), path, name)


def module_once(path: str) -> ModuleType:
    place = Path(path).resolve()
    return _module_at(path, place, place.read_bytes() if place.is_file() else b"")


@functools.cache
def _module_at(path: str, place: Path, content: bytes) -> ModuleType:
    """What a path names depends on the current directory, and an edited file is another one."""
    return _load_custom(path)


def _load_custom(path: str) -> ModuleType:
    """A custom file, which may import modules that lie beside it; installed packages of the same name come first."""
    folder = Path(path).resolve().parent
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    _custom_folders.add(folder)
    module = load_module(path)
    for value in vars(module).values():
        _refuse_namesake(path, folder, value.__name__ if isinstance(value, ModuleType) else _module_of(value))
    return module


# Where custom files were loaded from.
_custom_folders: set[Path] = set()


def _module_of(value: Any) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def _refuse_namesake(path: str, folder: Path, name: str) -> None:
    """Python loads one module of each name: refuses the one from another custom file's folder, if it is different."""
    beside, loaded = folder / f"{name}.py", getattr(sys.modules.get(name), "__file__", None)
    if loaded is None or not beside.is_file():
        return
    place = Path(loaded).resolve()
    if place.parent in _custom_folders - {folder} and place.read_bytes() != beside.read_bytes():
        raise BadInput(f"{path}: imports {name}, but another custom file has already loaded {place}; rename {beside}")


def _split(address: str) -> tuple[str, str]:
    path, separator, name = address.rpartition(":")
    if not separator or not path or not name.isidentifier():
        raise BadInput(f"{address!r}: must be path/to/file.py:Name")
    return path, name


def _named(module: ModuleType, path: str, name: str) -> Any:
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise BadInput(f"{path} has no {name}; {nearest(name, public)}")
    return getattr(module, name)


@dataclasses.dataclass(frozen=True)
class OwnFunction:
    """A function that an option names. It is called with what it asks for; what it raises is told as its own."""

    option: str
    address: str
    function: Callable[..., Any]
    asks_for: tuple[str, ...]

    def __call__(self, *given: Any, **offered: Any) -> Any:
        with self.running():
            return self.function(*given, **{name: offered[name] for name in self.asks_for})

    def running(self) -> contextlib.AbstractContextManager[None]:
        return running(file_of(self.address))

    def refusal(self, problem: str) -> BadInput:
        return BadInput(f"{self.option} = {self.address}: {problem}")


def load_function(option: str, address: str, given: Sequence[str] = (), offered: Sequence[str] = ()) -> OwnFunction:
    """The function at an address, which must take what is `given` in that order; it may ask for what is `offered`."""
    function = load_once(address)
    own = OwnFunction(option, address, function, ())
    if not callable(function):
        raise own.refusal(f"is of type {type(function).__name__}; a function would be right")
    call = f"{address.rpartition(':')[2]}({', '.join(given)})"
    more = f"; it may also ask, by name, for {', '.join(offered)}" if offered else ""
    try:
        signature = inspect.signature(function)
        asks_for = tuple(name for name in offered if name in signature.parameters)
        signature.bind(*given, **dict.fromkeys(asks_for))
    except (TypeError, ValueError) as error:
        raise own.refusal(f"cannot be called as {call}: {error}{more}") from None
    return dataclasses.replace(own, asks_for=asks_for)


def file_of(address: str) -> str:
    return address.rpartition(":")[0]


def _from_file(path: str, error: BaseException) -> Any:
    """The error's traceback from the first frame of the user's file on: what lies above is ours."""
    wanted, frame = str(Path(path).resolve()), error.__traceback__
    while frame is not None:
        if str(Path(frame.tb_frame.f_code.co_filename).resolve()) == wanted:
            return frame
        frame = frame.tb_next
    return None  # a syntax error: its own text names the line
