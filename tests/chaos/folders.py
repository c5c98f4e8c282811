"""Run folders of which a file is spoilt: every command has the right result, a warning, or a clear refusal."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.chaos.children import Ended, run
from tests.chaos.damage import damage_one
from tests.chaos.place import Place, fingerprint, prepared_bytes
from tests.chaos.tally import Tally, check

TEXT = b"a b c\nh g f e d\n\nb\n" * 3
HALF = 12


class Task(NamedTuple):
    """A command on a folder, and what it comes to: stdout, or a file's digest."""

    command: str  # of the folder RUN, with the text TEXT and the config CONFIG
    result: Callable[[Path, Ended], str] = lambda folder, ended: ended.out.decode().replace(str(folder), "RUN")
    # Whether the whole result depends on files that have checksums: metrics.jsonl and log files have none.
    exact: bool = True


def _file(name: str) -> Callable[[Path, Ended], str]:
    return lambda folder, ended: hashlib.sha256((folder / name).read_bytes()).hexdigest()


TASKS = (
    Task("translate --workdir=RUN --beam=2 --scores"),
    Task("translate --workdir=RUN/exported --beam=1"),
    Task("translate --workdir=RUN --weights=averaged --beam=1"),
    Task("score --workdir=RUN TEXT TEXT"),
    Task("evaluate --workdir=RUN --beam=1 --split=valid"),
    Task("average --workdir=RUN --last=2", _file("averaged/model.safetensors")),
    Task("export --workdir=RUN --output=RUN/new", _file("new/model.safetensors")),
    Task("prepare --workdir=RUN --config=CONFIG", lambda folder, ended: str(prepared_bytes(folder / "data"))),
    Task("inspect --workdir=RUN", exact=False),
    Task("plot page --workdir=RUN", exact=False),
)


def damaged_folder(place: Place, dice: random.Random, tally: Tally) -> None:
    """Whatever file is spoilt, no command takes it for what it was."""
    task, folder = dice.choice(TASKS), shutil.copytree(place.finished(), place.new("damaged"), symlinks=True)
    wanted = expected(place, task)
    harm = [damage_one(folder, dice) for _ in range(dice.choice([1, 1, 1, 2]))]
    tally.count("runs", *["corruptions"] * len(harm))
    ended = attempt(place, folder, task)
    if ended.status == 0 and task.exact and not ended.warned:
        silent = f"{task.command} after {harm}: a silent other result\n{ended.out[:1000]!r}"
        check(task.result(folder, ended) == wanted, silent)
    shutil.rmtree(folder)


def damaged_half(place: Place, dice: random.Random, tally: Tally) -> None:
    """A run that is half done and then spoilt is finished as if it were whole, or refused."""
    folder = shutil.copytree(half(place), place.new("damaged-half"), symlinks=True)
    harm = [damage_one(folder, dice) for _ in range(dice.choice([1, 1, 2]))]
    tally.count("runs", *["corruptions"] * len(harm))
    ended = run(place.train("plain", folder))
    check(ended.status != 1 or bool(ended.complaints), ended.err)
    # Not its metrics: a run that was to end half way has a line there of its own.
    if ended.status == 0:
        _, undisturbed = place.reference("plain")
        check(fingerprint(folder)["weights"] == undisturbed["weights"], f"after {harm}: other parameters")
    shutil.rmtree(folder)


def attempt(place: Place, folder: Path, task: Task) -> Ended:
    return run(attempted(folder, task, place), stdin=TEXT)


def attempted(folder: Path, task: Task, place: Place) -> list[str]:
    """The command of a task in a folder."""
    text = folder.parent / "text"
    text.write_bytes(TEXT)
    names = {"RUN": str(folder), "TEXT": str(text), "CONFIG": str(place.config)}
    return [re.sub("RUN|TEXT|CONFIG", lambda found: names[found[0]], word) for word in task.command.split()]


@cache
def expected(place: Place, task: Task) -> str:
    """What a task comes to in a folder that is whole."""
    folder = shutil.copytree(place.finished(), place.new("whole"), symlinks=True)
    ended = attempt(place, folder, task)
    check(ended.status == 0, f"{task.command}: {ended.err}")
    return task.result(folder, ended)


@cache
def half(place: Place) -> Path:
    workdir = place.new("half")
    ended = run(place.train("plain", workdir, f"train.steps={HALF}"))
    check(ended.status == 0, ended.err)
    return workdir
