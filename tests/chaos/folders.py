"""Run folders of which a file is spoilt: every command has the right result, a warning, or a clear refusal."""

from __future__ import annotations

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
from tests.chaos.place import Place, fingerprint, prepared_bytes
from tests.chaos.tally import Tally, check

TEXT = b"a b c\nh g f e d\n\nb\n" * 3
HALF = 12


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


def attempt(place: Place, folder: Path, name: str) -> Ended:
    (folder.parent / "text").write_bytes(TEXT)
    arguments = TASKS[name].arguments(folder)
    return run([*arguments, *([f"--config={place.config}"] if name == "prepare" else [])], stdin=TEXT)


@cache
def expected(place: Place, name: str) -> str:
    """What a task comes to in a folder that is whole."""
    folder = copied(place.finished(), place.new("whole"))
    ended = attempt(place, folder, name)
    check(ended.status == 0, f"{name}: {ended.err}")
    return TASKS[name].result(folder, ended)


@cache
def half(place: Place) -> Path:
    workdir = place.new("half")
    ended = run(place.train("plain", workdir, f"train.steps={HALF}"))
    check(ended.status == 0, ended.err)
    return workdir


def _same_weights(place: Place, folder: Path) -> bool:
    ours, theirs = (json.loads(fingerprint(path))["weights"] for path in (folder, place.reference("plain")[0]))
    return ours == theirs
