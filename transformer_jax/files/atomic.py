"""Atomic file writes, locks, errors of a disk: those that pass, and clear messages for the others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.paths import no_links
from transformer_jax.files.progress import tell
from transformer_jax.files.record import LARGEST_FILE, sealed
from transformer_jax.files.storage_errors import PASSING

T = TypeVar("T")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
NOT_WRITABLE = {
    *(errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM),
}
NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)  # of fsync, for a directory
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of flock
TRIES, SECONDS_BETWEEN_TRIES = 4, 0.1  # to take a lock
# Seconds before each further attempt after such an error: two minutes.
WAITS = (1.0, 4.0, 15.0, 40.0, 60.0)
# The end of the name of a file that is being written.
UNFINISHED = ".unfinished"


def write_atomically(path: Path, content: bytes, follow: bool = False) -> None:
    """Writes a file, which gets its name only when it is complete and on the disk.

    A symbolic link is replaced, or followed if the user has typed it. Other than files, /dev/null and the like are
    written to directly.
    """
    if path.exists() and not path.is_file() and not path.is_dir() and (follow or not path.is_symlink()):
        path.write_bytes(content)
        return
    place = Path(os.path.realpath(path)) if follow and path.is_symlink() else path
    unfinished = place.with_name(f"{place.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    try:
        with open(unfinished, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, place)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    sync_directory(place.parent)


def write_json(path: Path, content: Any) -> None:
    # Bytes of a file name that are not UTF-8 are written as JSON escapes, and read back unchanged.
    text = (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode(errors="backslashreplace")
    if len(text) > LARGEST_FILE:
        raise BadInput(f"{path}: would have {len(text):,} bytes; at most {LARGEST_FILE:,} can be read back")
    write_atomically(path, text)


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object with a checksum, for `record.read_record`."""
    write_json(path, sealed(content))


def sync_directory(path: Path) -> None:
    """Flushes a file or a directory to the disk: what a directory names then survives a power failure.

    Some file systems of a network or a bucket cannot do that for a directory, which is ignored.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, follow: bool = True) -> None:
    """Writes a whole file that the user has named; raises BadInput or Failed if that is not possible."""
    with explained(path):
        write_atomically(path, text.encode(), follow)


@contextlib.contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Turns an OSError into one line: BadInput for a path that cannot be written to, Failed for a disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*NO_ROOM, *NOT_WRITABLE):
            raise
        kind = Failed if error.errno in NO_ROOM else BadInput
        raise kind(f"{error.filename or directory}: {error.strerror}") from None


def patiently(act: Callable[[], T]) -> T:
    """Calls `act` and returns its result. An error that may pass is tried again for two minutes."""
    waits = list(WAITS)
    while True:
        try:
            return act()
        except OSError as error:
            if error.errno not in PASSING or not waits:
                raise
            if len(waits) == len(WAITS):
                tell(f"warning: {error}: trying again for {sum(WAITS):.0f} s")
            time.sleep(waits.pop(0))


class Locked(Exception):
    """Another process holds a lock; the text is that process."""


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[Callable[[], str]]:
    """Holds a lock file; other processes wait, or raise Locked. The kernel releases the lock of a killed process.

    Some file systems have no locks, or keep them within a machine. So this gives a function that returns which process
    has taken the file since, or "".
    """
    own = f"process {os.getpid()} on {socket.gethostname()}\n{uuid.uuid4().hex}\n"

    def taken_by() -> str:
        try:
            content = patiently(lambda: path.read_text(errors="replace"))
        except FileNotFoundError:
            content = "a process that has ended"
        return "" if content == own else content.partition("\n")[0] or "another process"

    tries = TRIES
    while True:
        with open(path, "a+", opener=no_links, errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.readline().strip()
                if not wait and tries:  # `status` holds a lock for a moment
                    tries -= 1
                    time.sleep(SECONDS_BETWEEN_TRIES)
                    continue
                if not wait:
                    raise Locked(holder) from None
                tell(f"{path}: waiting for {holder}")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                tell(f"warning: {path}: locks do not work on this file system ({error.strerror})")
            # The previous holder removed the file, and another process may have made a new one.
            if not _is_same_file(file, path):
                continue
            file.truncate(0)
            file.write(own)
            file.flush()
            try:
                yield taken_by
            finally:
                if not taken_by():
                    path.unlink(missing_ok=True)
            return


@contextlib.contextmanager
def made(directory: Path) -> Iterator[None]:
    """Makes a directory if needed, and removes it again if it is left empty."""
    missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for parent in missing:
                parent.rmdir()


def _is_same_file(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
