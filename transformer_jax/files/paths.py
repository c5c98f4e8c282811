"""Paths as they are typed: `~` is the home directory, and what no file system here can hold is refused."""

import os
import re
from pathlib import Path

from transformer_jax.errors import BadInput

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def problem(path: str) -> str | None:
    """Why no file or folder of this machine can be meant, in words that follow the path; None if one can."""
    if URL.match(path):
        return "is a URL; a path in a file system of this machine, local or mounted, would be right"
    if path.startswith("~") and os.path.expanduser(path) == path:
        return (
            f"there is no user {path[1:].partition('/')[0]}, whose home it would be; ./{path} is a folder of that name"
        )
    return None


def expanded(path: str | os.PathLike[str]) -> str:
    """The path with the home directory in place of `~`; relative ones stay relative."""
    text = os.fspath(path)
    if found := problem(text):
        raise BadInput(f"{text}: {found}")
    return os.path.expanduser(text)


def absolute(path: str, directory: str | Path | None = None) -> str:
    """The path from a directory, or from the current one. One below `~` means the same from everywhere, and stays."""
    return path if path.startswith("~") else str(Path(directory or os.getcwd()) / path)
