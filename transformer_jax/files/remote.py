"""Folders in buckets: gs://BUCKET/FOLDER wherever a command takes a path.

A command works on a copy in a temporary folder, which is fetched at its start. Files that it writes there are uploaded
at each checkpoint, every minute and at the end, but only over the object that was last seen: if another process has
written it, this one ends. No object is deleted but a lock. Checkpoints are not copied: orbax reads and writes them in
the bucket, so that each process of a run needs its own part alone.

~/.cache/transformer_jax/buckets/COPY/BUCKET/FOLDER    a copy ($TRANSFORMER_JAX_BUCKETS is another place)
~/.cache/transformer_jax/buckets/COPY.json             what was last seen of each object, there and here
~/.cache/transformer_jax/buckets/texts/                texts, by address and generation, which later commands find
"""

import contextlib
import fcntl
import functools
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from transformer_jax.errors import BadInput, Failed
from transformer_jax.extras import require
from transformer_jax.files import storage_errors
from transformer_jax.files.atomic import UNFINISHED, Locked, locked, write_json
from transformer_jax.files.digests import sha256
from transformer_jax.files.paths import BUCKETS, bucket_copies, inside
from transformer_jax.files.progress import tell

T = TypeVar("T")

# Folders that are not copied, and files that are only of this machine.
CHECKPOINTS = ("checkpoints", "damaged_checkpoints")
LOCAL = (UNFINISHED, ".partial", ".lock")
# Added to the name of a symbolic link, which a bucket has as a file with its target.
LINK = ".symlink"
SECONDS_BETWEEN_PUSHES = 60.0
# Seconds that a bucket may be away; between lines that say so; and between attempts.
PATIENCE, BETWEEN_LINES, BETWEEN_ATTEMPTS = 300.0, 60.0, 5.0
# A lock is written again every HEARTBEAT seconds. If it is not for LEASE seconds, its process counts as dead.
HEARTBEAT, LEASE = 20.0, 60.0
ATTEMPT = (10.0, 60.0)  # seconds to connect, and between two pieces of an answer
THREADS = 8  # at most 10, the connections that the client keeps
FORGOTTEN_AFTER = 86_400.0  # seconds until the copy of a killed process is removed
COPY, WRITER = "copy", "writer"  # metadata of the objects that are written here

_copies: list[Path] = []  # paths in copies that this process uploads
_texts: dict[str, str] = {}  # the addresses of fetched texts
_locks: dict[str, tuple[str, int]] = {}  # held by this process: content and generation, by name
_told_at = 0.0
_is_away = False  # whether the patience with a bucket is over
_pulse: threading.Event | None = None  # ends the thread when it is set


def is_remote(text: str) -> bool:
    return text.startswith(BUCKETS)


def mirrored(url: str) -> str:
    """The path of a copy of a folder or file; this process uploads what it changes there."""
    require(url, "gcs")
    for state in bucket_copies().glob("*.json"):
        with contextlib.suppress(OSError):
            if time.time() - state.stat().st_mtime > FORGOTTEN_AFTER:
                _remove(state.with_suffix(""))
    path = inside(bucket_copies() / uuid.uuid4().hex[:12], url.removeprefix(BUCKETS).rstrip("/"), url)
    pull(path)
    _copies.append(path)
    _start_pulse()
    return str(path)


def fetched(url: str) -> str:
    """The path of a copy of a text."""
    require(url, "gcs")
    name = url.removeprefix(BUCKETS)
    there = _found(name)
    key = sha256(url)[:16]
    folder = bucket_copies() / "texts" / f"{key}-{there.generation if there else 'missing'}"
    path = inside(folder, name.rpartition("/")[2], url)
    if there and not path.exists():
        for older in {*folder.parent.glob(f"{key}-*")} - {folder}:  # in which another process may be writing
            shutil.rmtree(older, ignore_errors=True)
        _download(name, there, path)
    _texts[str(path)] = url
    return str(path)


def close() -> None:
    """Uploads what has changed, and removes the copies of this process. What cannot be uploaded stays for a day."""
    global _pulse, _is_away
    if _pulse is not None:
        _pulse.set()  # it must not upload what is removed below
    try:
        for path in _copies:
            push(path)
    except Failed:
        tell(f"what could not be uploaded is in {', '.join(map(str, _copies))}")
        raise
    else:
        for path in _copies:
            _remove(_top(path))
    finally:
        _pulse, _is_away = None, False
        _copies.clear()


def url_of(path: Path) -> str | None:
    """The address of a path in a copy; None for any other path."""
    with contextlib.suppress(ValueError):
        copy, *name = path.absolute().relative_to(bucket_copies()).parts
        return f"{BUCKETS}{'/'.join(name)}" if name and copy != "texts" else None
    return None


def name_of(path: str) -> str:
    """A path as a user knows it."""
    return _texts.get(path) or url_of(Path(path)) or path


def place_of(path: Path) -> Any:
    """The path in the bucket, for orbax, or the path itself if it is in no copy."""
    if (url := url_of(path)) is None:
        return path
    from etils import epath

    _set_up_gcsfs()
    return epath.Path(url)


def read_text(path: Path) -> str:
    """The content of a file, in the bucket if it is a copy; "" if it is missing."""
    if (url := url_of(path)) is None:
        return path.read_text() if path.is_file() else ""
    return _content(url.removeprefix(BUCKETS)) or ""


@contextlib.contextmanager
def owned(lock: Path) -> Iterator[Callable[[], str]]:
    """Holds a lock file, in a copy of a bucket also the bucket's; gives a function as `locked` does.

    Raises Locked if a living process has it. What others have written before is fetched.
    """
    with locked(lock, wait=False) as taken_by:
        if (url := url_of(lock)) is None:
            yield taken_by
            return
        name, own = url.removeprefix(BUCKETS), lock.read_text()
        _locks[name] = own, _take(name, own)
        _start_pulse()
        try:
            pull(lock.parent)
            yield functools.partial(_taken_by, name, own)
        finally:
            _remove_object(name, _locks.pop(name)[1])


def is_renewed(lock: Path) -> bool | None:
    """Whether a process with another copy renews a lock in the bucket; None if there is no such lock."""
    if (url := url_of(lock)) is None or (name := url.removeprefix(BUCKETS)) in _locks:
        return None
    there = _found(name)
    return None if there is None else time.time() - there.updated.timestamp() < LEASE


def pull(path: Path) -> None:
    """Brings the files below a path of a copy up to date, and what links there lead to. Newer ones here stay."""
    if (url := url_of(path)) is None:
        return
    top, targets = _top(path), []
    with _state_of(path) as state:
        there = _listed(url.removeprefix(BUCKETS))
        places = {name: inside(top, name.removesuffix(LINK), url) for name in there if _is_copied(name, url)}
        known = {name: state.get(name, [0, None]) for name in places}
        old = {name: place for name, place in places.items() if known[name][0] != there[name].generation}
        old = {name: place for name, place in old.items() if _version(place) == known[name][1]}
        files = {name: place for name, place in old.items() if not name.endswith(LINK)}
        _in_threads(lambda name: _download(name, there[name], files[name]), files)
        for name in old.keys() - files.keys():  # last: no file is written through a link
            old[name].parent.mkdir(parents=True, exist_ok=True)
            if old[name].is_dir() and not old[name].is_symlink():
                raise BadInput(f"{BUCKETS}{name}: is a link where there are also files below {old[name].name}/")
            old[name].unlink(missing_ok=True)
            old[name].symlink_to(_content(name) or "")
        for name in old.keys() - files.keys():
            if not Path(os.path.realpath(old[name])).is_relative_to(os.path.realpath(top)):
                target = os.readlink(old[name])
                old[name].unlink()
                raise BadInput(f"{BUCKETS}{name}: is a link to {target[:80]!r}, which is not in this bucket")
            targets.append(Path(os.path.realpath(old[name])))
        state |= {name: [there[name].generation, _version(place)] for name, place in old.items()}
        for name in [name for name in state if _is_below(name, url) and name not in there]:
            gone = inside(top, name.removesuffix(LINK), url)
            if _version(gone) == state.pop(name)[1]:
                gone.unlink(missing_ok=True)
    for place in targets:
        if not place.is_relative_to(os.path.realpath(path)):
            pull(top / place.relative_to(os.path.realpath(top)))


def push(path: Path) -> None:
    """Uploads the files below a path of a copy that have changed.

    Raises Failed if another process has written one of them, or if the bucket stays away.
    """
    if (url := url_of(path)) is None:
        return
    top = _top(path)
    with _state_of(path) as state:
        here = {f"{place.relative_to(top)}{LINK * place.is_symlink()}": place for place in _files_below(path, top)}
        versions = {name: _version(place) for name, place in here.items() if _is_copied(name, url)}
        changed = [name for name, version in versions.items() if version and state.get(name, [0, None])[1] != version]

        def upload(name: str) -> None:
            try:
                content: str | Path = os.readlink(here[name]) if name.endswith(LINK) else here[name]
                state[name] = [_upload(name, content, state.get(name, [0])[0], top.name), versions[name]]
            except (FileNotFoundError, Failed):
                if os.path.lexists(here[name]):
                    raise

        _in_threads(upload, changed)


def _in_threads(act: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(act, names))


def _files_below(path: Path, top: Path) -> Iterator[Path]:
    """The files and the links inside the copy."""
    if path.is_file():
        yield path
    for folder, folders, files in os.walk(path):
        for place in (Path(folder, name) for name in (*folders, *files)):
            if place.is_symlink():
                if Path(os.path.realpath(place)).is_relative_to(os.path.realpath(top)):
                    yield place
            elif place.is_file():
                yield place


def _take(name: str, own: str) -> int:
    """Writes a lock into the bucket; returns its generation. Raises Locked if its process shows that it lives."""
    first, until = None, time.monotonic() + LEASE
    while True:
        there = _found(name)
        holder = (_content(name) or "").partition("\n")[0]
        if there is not None and first not in (None, there.generation):
            raise Locked(holder)
        if there is None or time.monotonic() > until:
            try:
                return _write(name, own, there.generation if there else 0)
            except _gone():
                if other := _taken_by(name, own):
                    raise Locked(other) from None
                return _found(name).generation  # the answer to an earlier attempt was lost
        if first is None:
            tell(f"{BUCKETS}{name}: {holder} is working here, or has died: waiting up to {LEASE:.0f} s")
        first = there.generation
        time.sleep(1.0)


def _taken_by(name: str, own: str) -> str:
    """The other process that has taken a lock since, or ""."""
    content = _content(name)
    return "" if content == own else (content or "").partition("\n")[0] or "another process"


def _start_pulse() -> None:
    global _pulse
    if _pulse is None:
        _pulse = threading.Event()
        threading.Thread(target=_keep_alive, args=[_pulse], daemon=True).start()


def _keep_alive(ended: threading.Event) -> None:
    """Renews the locks, uploads, and ends the process if the bucket stays away or another process has a lock.

    Nothing else would end it, while it waits inside of orbax.
    """
    pushed = time.monotonic()
    while not ended.wait(HEARTBEAT):
        try:
            for name, (own, generation) in list(_locks.items()):
                try:
                    renewed = _write(name, own, generation)
                except _gone():
                    if other := _taken_by(name, own):
                        if name not in _locks:
                            continue
                        raise Failed(f"{BUCKETS}{name}: {other} has begun to work here") from None
                    renewed = _found(name).generation
                if name in _locks:
                    _locks[name] = own, renewed
                else:  # it was given back while it was renewed
                    _remove_object(name, renewed)
            if not _locks and _copies:
                _found(f"{_copies[0].relative_to(_top(_copies[0]))}/.lock")
            if time.monotonic() - pushed > SECONDS_BETWEEN_PUSHES:
                pushed = time.monotonic()
                for path in list(_copies):
                    push(path)
        except Exception as failure:  # or of the disk here: without this thread others would take the locks
            if not ended.is_set():
                tell(f"failed: {failure}; this process ends and writes no more")
                os._exit(1)
        ended.wait(1.0)


def _patiently(name: str, act: Callable[[], T]) -> T:
    """Calls `act`, again for a while if the bucket does not respond, with one line a minute. Then raises Failed."""
    global _told_at, _is_away
    began, expected = time.monotonic(), _gone()
    while True:
        try:
            return act()
        except expected:
            raise
        except Exception as error:
            now, why = time.monotonic(), storage_errors.short(error)
            left = 0.0 if _is_away else began + PATIENCE - now
            if not _is_passing(error) or left <= 0:
                _is_away = _is_passing(error)
                raise Failed(f"{BUCKETS}{name}: {why}; the same command tries again") from error
            if now > _told_at + BETWEEN_LINES or not _told_at:
                _told_at = now
                tell(f"{BUCKETS}{name}: {why}; it is waited for, up to {left:.0f} s more")
            time.sleep(min(BETWEEN_ATTEMPTS, left))


def _is_passing(error: Exception) -> bool:
    from google.api_core import exceptions

    for_good = isinstance(error, exceptions.ClientError) and not isinstance(error, exceptions.TooManyRequests)
    return storage_errors.passing(error) is not None and not for_good


def _gone() -> tuple[type[Exception], ...]:
    """The errors of an object that is not there, or not the one that was last seen."""
    from google.api_core import exceptions

    return exceptions.NotFound, exceptions.PreconditionFailed


@functools.cache
def _client(_: str | None) -> Any:
    from google.cloud import storage

    return storage.Client(project=None)


def _bucket(name: str) -> tuple[Any, str]:
    bucket, _, key = name.partition("/")
    return _client(os.environ.get("STORAGE_EMULATOR_HOST")).bucket(bucket), key


def _blob(name: str) -> Any:
    bucket, key = _bucket(name)
    return bucket.blob(key)


def _found(name: str) -> Any:
    """The object with its generation, or None."""
    bucket, key = _bucket(name)
    return _patiently(name, lambda: bucket.get_blob(key, retry=None, timeout=ATTEMPT))


def _content(name: str) -> str | None:
    with contextlib.suppress(*_gone()):
        return _patiently(name, lambda: _blob(name).download_as_bytes(retry=None, timeout=ATTEMPT)).decode()
    return None


def _listed(name: str) -> dict[str, Any]:
    """An object and those below it, by BUCKET/NAME."""
    bucket, key = _bucket(name)
    blobs = _patiently(name, lambda: list(bucket.list_blobs(prefix=key, retry=None, timeout=ATTEMPT)))
    found = {f"{bucket.name}/{blob.name}": blob for blob in blobs}
    return {other: blob for other, blob in found.items() if _is_below(other, BUCKETS + name)}


def _download(name: str, there: Any, place: Path) -> None:
    """Makes a file of an object, with the time at which the object was written."""
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f"{uuid.uuid4().hex[:12]}{UNFINISHED}")
    options = {"if_generation_match": there.generation, "retry": None, "timeout": ATTEMPT}
    try:
        _patiently(name, lambda: there.download_to_filename(str(unfinished), **options))
        os.replace(unfinished, place)
    except _gone():
        raise Failed(f"{BUCKETS}{name}: was changed while it was read; try again") from None
    finally:
        unfinished.unlink(missing_ok=True)


def _remove_object(name: str, generation: int) -> None:
    """Removes an object, unless it has another generation or the bucket is away."""
    delete = functools.partial(_blob(name).delete, if_generation_match=generation)
    with contextlib.suppress(Failed, *_gone()):
        _patiently(name, lambda: delete(retry=None, timeout=ATTEMPT))


def _write(name: str, content: str | Path, generation: int, copy: str = "") -> int:
    """Writes an object over the one of a generation (0: none); returns the new one. Raises an error of `_gone`."""
    blob = _blob(name)
    blob.metadata = {COPY: copy, WRITER: f"process {os.getpid()} on {socket.gethostname()}"}
    options = {"if_generation_match": generation, "retry": None, "timeout": ATTEMPT}
    if isinstance(content, Path):
        _patiently(name, lambda: blob.upload_from_filename(str(content), **options))
    else:
        _patiently(name, lambda: blob.upload_from_string(content, **options))
    return blob.generation


def _upload(name: str, content: str | Path, generation: int, copy: str) -> int:
    try:
        return _write(name, content, generation, copy)
    except _gone():
        there = _found(name)
        by = (there.metadata or {}) if there else {}
        if by.get(COPY) == copy:  # written by this process, which did not learn of it
            return _write(name, content, there.generation, copy)
    other = f"{by.get(WRITER, 'another process')} has written it" if there else "it was deleted"
    raise Failed(f"{BUCKETS}{name}: {other} meanwhile, so this process ends and writes no more")


def _top(path: Path) -> Path:
    """The folder of the copy that a path is in."""
    return bucket_copies() / path.absolute().relative_to(bucket_copies()).parts[0]


def _remove(copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    for ending in (".json", ".lock"):
        copy.with_suffix(ending).unlink(missing_ok=True)


def _version(place: Path) -> list[int] | None:
    """What tells one version of a file here from another; None if there is none."""
    try:
        found = place.lstat()
    except FileNotFoundError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _is_copied(name: str, url: str) -> bool:
    """Whether an object at or below an address is copied. One that ends with a slash stands for a folder."""
    parts = (BUCKETS + name).removeprefix(url).split("/")
    return not name.endswith("/") and not any(part in CHECKPOINTS or part.endswith(LOCAL) for part in parts)


def _is_below(name: str, url: str) -> bool:
    return BUCKETS + name == url or (BUCKETS + name).startswith(f"{url}/")


@contextlib.contextmanager
def _state_of(path: Path) -> Iterator[dict[str, list[Any]]]:
    """What was last seen of each object, by BUCKET/NAME: its generation there, its size and time here."""
    record = _top(path).with_suffix(".json")
    record.parent.mkdir(parents=True, exist_ok=True)
    with open(record.with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of a sweep share its copy
        state = json.loads(record.read_text()) if record.is_file() else {}
        try:
            yield state
        finally:
            write_json(record, state)


@functools.cache
def _set_up_gcsfs() -> None:
    """What gcsfs, which orbax uses, does otherwise: it keeps listings for ever, and gives up before PATIENCE is over.

    `_keep_alive` ends the process when the bucket stays away.
    """
    import fsspec.config
    from gcsfs.core import GCSFileSystem
    from gcsfs.retry import retry_request

    fsspec.config.conf.setdefault("gs", {})["use_listings_cache"] = False
    GCSFileSystem._request = retry_request(retries=16)(GCSFileSystem._request.__wrapped__)
