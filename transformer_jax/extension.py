"""A user's own code, from a user's own file: `path/to/file.py:Name`."""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
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
        raise BadInput(f"{path}: is not a {what} (its name must end in .py)")
    if not file.is_file():
        raise BadInput(f"{path}: no such {what}" if not file.exists() else f"{path}: is a directory, not a {what}")
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
    path, separator, name = address.rpartition(":")
    if not separator or not path or not name.isidentifier():
        raise BadInput(f"{address!r}: must be path/to/file.py:Name")
    module = load_module(path)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise BadInput(f"{path} has no {name}; {nearest(name, public)}")
    return getattr(module, name)


def _from_file(path: str, error: BaseException) -> Any:
    """The error's traceback from the first frame of the user's file on: what lies above is ours."""
    wanted, frame = str(Path(path).resolve()), error.__traceback__
    while frame is not None:
        if str(Path(frame.tb_frame.f_code.co_filename).resolve()) == wanted:
            return frame
        frame = frame.tb_next
    return None  # a syntax error: its own text names the line
