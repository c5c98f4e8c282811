"""Files that appear whole or not at all, and one process at a time in a directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.record import sealed

NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file got too big",
}
NO_PLACE = {
    errno.ENOENT: "there is no such place to write to",
    errno.EISDIR: "is a directory; a file would be right",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "its symbolic links run in a circle",
}
# Something else stands where a file or a directory of ours was.
TAKEN = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
NO_PERMISSION = {
    errno.EACCES: "no permission to write there",
    errno.EPERM: "no permission to write there",
    errno.EROFS: "it lies on a read-only file system",
}


@contextlib.contextmanager
def published(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes its name only when it is complete and on the disk.

    What is there and is no file, /dev/null or a pipe, is written to; it is not replaced.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        with open(path, "wb") as file:
            yield file
        return
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    sync_directory(path.parent)


def publish_json(path: Path, content: Any) -> None:
    with published(path) as file:
        # A byte of a file's name that is not UTF-8 is written as JSON's escape of it, and is read back as it was.
        file.write((json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode(errors="backslashreplace"))


def publish_record(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON object that `record.read_record` will know for what was written."""
    publish_json(path, sealed(content))


def sync_directory(path: Path) -> None:
    """Puts the names in a directory on the disk; a rename is not safe from a power cut before."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Reports what is wrong with a disk in one line: a place that cannot be written to is bad input, no room is not."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise Failed(f"{directory}: {NO_ROOM[error.errno]}; make room or choose another directory") from None
        if error.errno in NO_PLACE:
            raise BadInput(f"{error.filename or directory}: {NO_PLACE[error.errno]}") from None
        if error.errno in NO_PERMISSION:
            raise BadInput(f"{error.filename or directory}: {NO_PERMISSION[error.errno]}") from None
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            raise BadInput(f"{error.filename or directory}: is a file; a directory would be right") from None
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of that name; a second process waits here. The kernel releases the lock of a killed process."""
    while True:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever had the lock removes the file; if we waited for that, ours is no longer the file of that name.
            if not is_same_file(file, path):
                continue
            try:
                yield
            finally:
                path.unlink()
            return


@contextlib.contextmanager
def made(directory: Path) -> Iterator[None]:
    """Makes a directory where there is none, and takes it away again if it is left with nothing in it."""
    missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for parent in missing:
                parent.rmdir()


def remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def is_same_file(file: IO[str], path: Path) -> bool:
    """Whether an open file still is the one of that name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
