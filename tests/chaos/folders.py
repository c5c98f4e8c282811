"""Run folders of which a file is spoilt: every command has the right result, a warning, or a clear refusal."""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.chaos.children import Ended, run
from tests.chaos.damage import copied, damage_one
from tests.chaos.place import Place, fingerprint, is_root, prepared_bytes, tree
from tests.chaos.tally import Tally, check

TEXT = b"a b c\nh g f e d\n\nb\n" * 3
HALF = 12
# Of Linux: the layout of capget, and CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER.
CAPABILITY_VERSION, OVERLOOKING = 0x20080522, 0b1110


class Task(NamedTuple):
    """A command on a folder, and what it comes to: stdout, or a file's digest."""

    arguments: Callable[[Path], list[str]]
    result: Callable[[Path, Ended], str] = lambda folder, ended: _without(folder, ended.out)
    # Whether the whole result depends on files that have checksums: metrics.jsonl and log files have none.
    exact: bool = True


def _without(folder: Path, out: bytes) -> str:
    """Output in which the folder has no name."""
    return out.decode(errors="replace").replace(str(folder), "RUN")


def _file(name: str) -> Callable[[Path, Ended], str]:
    return lambda folder, ended: hashlib.sha256((folder / name).read_bytes()).hexdigest()


def of(name: str, *more: str) -> Callable[[Path], list[str]]:
    return lambda folder: [name, f"--workdir={folder}", *more]


TASKS = {
    "translate": Task(of("translate", "--beam=2", "--scores")),
    "translate exported": Task(lambda folder: ["translate", f"--workdir={folder / 'exported'}", "--beam=1"]),
    "translate averaged": Task(of("translate", "--weights=averaged", "--beam=1")),
    "score": Task(lambda folder: ["score", f"--workdir={folder}", *[str(folder.parent / "text")] * 2]),
    "evaluate": Task(of("evaluate", "--beam=1", "--split=valid")),
    "average": Task(of("average", "--last=2"), _file("averaged/model.safetensors")),
    "export": Task(
        lambda folder: ["export", f"--workdir={folder}", f"--output={folder / 'new'}"], _file("new/model.safetensors")
    ),
    "prepare": Task(of("prepare"), lambda folder, ended: str(prepared_bytes(folder / "data"))),
    "inspect": Task(of("inspect"), exact=False),
    "plot page": Task(lambda folder: ["plot", "page", f"--workdir={folder}"], exact=False),
}


def damaged_folder(place: Place, dice: random.Random, tally: Tally) -> None:
    """Whatever file is spoilt, no command takes it for what it was."""
    name = dice.choice(list(TASKS))
    task, folder = TASKS[name], copied(place.finished(), place.new("damaged"))
    wanted = expected(place, name)
    harm = [damage_one(folder, dice) for _ in range(dice.choice([1, 1, 1, 2]))]
    tally.count("runs", *["corruptions"] * len(harm))
    ended = attempt(place, folder, name)
    if ended.status == 0 and task.exact and not ended.warned:
        check(task.result(folder, ended) == wanted, f"{name} after {harm}: a silent other result\n{ended.out[:1000]!r}")
    shutil.rmtree(folder)


def damaged_half(place: Place, dice: random.Random, tally: Tally) -> None:
    """A run that is half done and then spoilt is finished as if it were whole, or refused."""
    folder = copied(half(place), place.new("damaged-half"))
    harm = [damage_one(folder, dice) for _ in range(dice.choice([1, 1, 2]))]
    tally.count("runs", *["corruptions"] * len(harm))
    ended = run(place.train("plain", folder))
    check(ended.status != 1 or bool(ended.complaints), ended.err)
    # Not its metrics: a run that was to end half way has a line there of its own.
    check(ended.status != 0 or _same_weights(place, folder), f"after {harm}: other parameters")
    shutil.rmtree(folder)


def read_only_folder(place: Place, dice: random.Random, tally: Tally) -> None:
    """Where nothing may be written, what only reads works as ever, and what writes says so."""
    name = dice.choice([*TASKS, "train"])
    folder = copied(place.finished(), place.new("read-only"))
    (folder.parent / "text").write_bytes(TEXT)
    wanted = expected(place, name) if name in TASKS else ""
    before = tree(folder)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    tally.count("runs", "read-only folders")
    arguments = place.train("plain", folder, "train.compile_cache=none") if name == "train" else None
    ended = attempt(place, folder, name, arguments, heed_permissions if is_root() else None)
    if ended.status == 0 and name in TASKS and TASKS[name].exact:
        check(task_result(folder, name, ended) == wanted, f"{name}: another result from a read-only folder")
    check(ended.status == 0 or "no permission" in ended.err or "read-only" in ended.err, ended.err[-2000:])
    check(tree(folder) == before, f"{name} has changed a read-only folder")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(folder)


def attempt(
    place: Place,
    folder: Path,
    name: str,
    arguments: list[str] | None = None,
    before: Callable[[], None] | None = None,
) -> Ended:
    (folder.parent / "text").write_bytes(TEXT)
    if arguments is None:
        arguments = TASKS[name].arguments(folder)
        if name == "prepare":
            arguments += [f"--config={place.config}"]
    return run(arguments, before, TEXT)


def task_result(folder: Path, name: str, ended: Ended) -> str:
    return TASKS[name].result(folder, ended)


@cache
def expected(place: Place, name: str) -> str:
    """What a task comes to in a folder that is whole."""
    folder = copied(place.finished(), place.new("whole"))
    ended = attempt(place, folder, name)
    check(ended.status == 0, f"{name}: {ended.err}")
    return task_result(folder, name, ended)


@cache
def half(place: Place) -> Path:
    workdir = place.new("half")
    ended = run(place.train("plain", workdir, f"train.steps={HALF}"))
    check(ended.status == 0, ended.err)
    return workdir


def heed_permissions() -> None:
    """Root may write everywhere, by powers of its own; without them permissions hold for it as for any owner."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    powers = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 of them
    if libc.capget(header, powers) == 0:
        for index in range(3):
            powers[index] &= ~OVERLOOKING
        libc.capset(header, powers)


def _same_weights(place: Place, folder: Path) -> bool:
    ours, theirs = (json.loads(fingerprint(path))["weights"] for path in (folder, place.reference("plain")[0]))
    return ours == theirs
