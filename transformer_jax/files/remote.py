"""Folders in buckets: gs://BUCKET/FOLDER wherever a command takes a path.

A command works on a mirror of the folder on this machine. Its files are fetched at the start, and what has changed is
written back at each checkpoint, every minute and at the end. Checkpoints are not mirrored: orbax reads and writes them
in the bucket, so that each process of a run needs its own part alone.

~/.cache/transformer_jax/buckets/BUCKET/FOLDER    the mirror ($TRANSFORMER_JAX_BUCKETS is another place)
~/.cache/transformer_jax/buckets/BUCKET.json      what was last seen of each file, there and here
"""

import contextlib
import fcntl
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformer_jax.errors import Failed
from transformer_jax.extras import require
from transformer_jax.files.atomic import UNFINISHED, write_json
from transformer_jax.files.paths import BUCKETS

# Folders that are not mirrored, and files that are only of this machine.
CHECKPOINTS = ("checkpoints", "damaged_checkpoints")
LOCAL = (UNFINISHED, ".partial", ".lock")
SECONDS_BETWEEN_PUSHES = 60.0
# Added to the name of a symbolic link, which a bucket has as a file with its target.
LINK = ".symlink"

_mirrored: list[Path] = []  # by this process


def is_remote(text: str) -> bool:
    return text.startswith(BUCKETS)


def mirrored(url: str) -> str:
    """The mirror of a folder or file, up to date; this process writes back what changes there."""
    path = Path(fetched(url))
    if not _mirrored:
        threading.Thread(target=_push_now_and_then, daemon=True).start()
    _mirrored.append(path)
    return str(path)


def fetched(url: str) -> str:
    """The mirror of a folder or file, up to date, to be read."""
    require(url, "gcs")
    path = _root() / url.removeprefix(BUCKETS).strip("/")
    pull(path)
    return str(path)


def url_of(path: Path) -> str | None:
    """The address of a path in a mirror; None for any other path."""
    with contextlib.suppress(ValueError):
        return f"{BUCKETS}{path.absolute().relative_to(_root())}"
    return None


def name_of(path: str) -> str:
    """A path as a user knows it."""
    return url_of(Path(path)) or path


def place_of(path: Path) -> Any:
    """The path in the bucket, for orbax, or the path itself if it is in no mirror."""
    if (url := url_of(path)) is None:
        return path
    from etils import epath

    return epath.Path(url)


def read_text(path: Path) -> str:
    """The content of a file, in the bucket if it is mirrored; "" if it is missing."""
    if (url := url_of(path)) is None:
        return path.read_text() if path.is_file() else ""
    with _explained(url), contextlib.suppress(FileNotFoundError):
        return _files().cat_file(url).decode()
    return ""


@contextlib.contextmanager
def owned(lock: Path, taken_by: Callable[[], str]) -> Iterator[Callable[[], str]]:
    """Marks a locked file of a mirror as this process's, also in the bucket; gives `taken_by` for both."""
    if (url := url_of(lock)) is None:
        yield taken_by
        return
    own = lock.read_text()

    def taken_there_by() -> str:
        content = read_text(lock)
        return "" if content == own else content.partition("\n")[0] or "a process that has ended"

    with _explained(url):
        _files().pipe_file(url, own.encode())
    try:
        yield taken_there_by
    finally:
        if not taken_there_by():
            _files().rm_file(url)


def pull(path: Path) -> None:
    """Brings the files below a path of a mirror up to date, and what links there lead to. Newer ones here stay."""
    if (url := url_of(path)) is None:
        return
    targets = []
    with _state_of(path) as state, _explained(url):
        there = {name: version for name, version in _listed(url).items() if _is_mirrored(name, path)}
        for name, version in there.items():
            if state.get(name, [None])[0] != version or not os.path.lexists(_local(name)):
                _local(name).parent.mkdir(parents=True, exist_ok=True)
                unfinished = f"{_local(name)}{UNFINISHED}"
                if name.endswith(LINK):
                    os.symlink(_files().cat_file(BUCKETS + name).decode(), unfinished)
                    targets.append(Path(os.path.normpath(_local(name).parent / os.readlink(unfinished))))
                else:
                    _files().get_file(BUCKETS + name, unfinished)
                os.replace(unfinished, _local(name))
                state[name] = [version, *_local_version(_local(name))]
        for name in [name for name in state if _is_below(name, path) and name not in there]:
            _local(name).unlink(missing_ok=True)
            del state[name]
    for target in targets:
        if not target.is_relative_to(path):
            pull(target)


def push(path: Path) -> None:
    """Writes the files below a path of a mirror that have changed into the bucket."""
    if (url := url_of(path)) is None:
        return
    with _state_of(path) as state, _explained(url):
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() or file.is_symlink()]
        names = {f"{file.relative_to(_root())}{LINK * file.is_symlink()}": file for file in files}
        here = {name: _local_version(file) for name, file in names.items() if _is_mirrored(name, path)}
        for name, version in here.items():
            if state.get(name, [None])[1:] != version:
                if name.endswith(LINK):
                    _files().pipe_file(BUCKETS + name, os.readlink(names[name]).encode())
                else:
                    _files().put_file(str(names[name]), BUCKETS + name)
                state[name] = [_version(_files().info(BUCKETS + name)), *version]
        # If nothing is left, the mirror was removed, and not the files.
        for name in [name for name in state if here and _is_below(name, path) and name not in here]:
            with contextlib.suppress(FileNotFoundError):
                _files().rm_file(BUCKETS + name)
            del state[name]


def push_all() -> None:
    """Writes back what has changed in all mirrors of this process."""
    for path in dict.fromkeys(_mirrored):
        push(path)


def _push_now_and_then() -> None:
    pause = threading.Event()
    while not pause.wait(SECONDS_BETWEEN_PUSHES):
        with contextlib.suppress(Failed, OSError):  # the end of the command reports it
            push_all()


def _root() -> Path:
    return Path(os.environ.get("TRANSFORMER_JAX_BUCKETS") or "~/.cache/transformer_jax/buckets").expanduser().absolute()


@functools.cache
def _files() -> Any:
    import fsspec

    return fsspec.filesystem("gs", use_listings_cache=False)


def _listed(url: str) -> dict[str, str]:
    """The files below an address, by BUCKET/FOLDER/NAME, and what tells one version of a file from another."""
    try:
        found = _files().find(url, detail=True)
    except FileNotFoundError:
        return {}
    return {name: _version(info) for name, info in found.items()}


def _version(info: dict[str, Any]) -> str:
    return str(info["generation"])


def _local_version(file: Path) -> list[int]:
    return [file.lstat().st_size, file.lstat().st_mtime_ns]


def _local(name: str) -> Path:
    """Where a file of a bucket is in the mirror."""
    return _root() / name.removesuffix(LINK)


def _is_mirrored(name: str, path: Path) -> bool:
    parts = (_root() / name).relative_to(path).parts
    return not any(part in CHECKPOINTS or part.endswith(LOCAL) for part in parts)


def _is_below(name: str, path: Path) -> bool:
    return (_root() / name).is_relative_to(path)


@contextlib.contextmanager
def _state_of(path: Path) -> Iterator[dict[str, list[Any]]]:
    """The last known state of each file of the bucket: its version there, its size and time here."""
    bucket = path.relative_to(_root()).parts[0]
    record = _root() / f"{bucket}.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    with open(record.with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(record.read_text()) if record.is_file() else {}
        try:
            yield state
        finally:
            write_json(record, state)


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turns an error of the bucket into one line."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # gcsfs tries again by itself
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise Failed(
            f"{url}: the bucket did not respond as expected ({reason}); the same command tries again"
        ) from error
