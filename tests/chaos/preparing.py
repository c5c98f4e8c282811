"""Preparing that is killed, and finds damaged what it had begun."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.chaos.children import Child, Ended
from tests.chaos.damage import damage_one
from tests.chaos.place import Place, prepared_bytes
from tests.chaos.tally import Tally, check
from tests.chaos.trainings import await_moment, harm
from transformer_jax import cli
from transformer_jax.data import prepare as preparing

WORDS = ("the", "a", "big", "old", "red", "dog", "cat", "house", "tree", "sees", "likes", "near", "ä", "猫", "🐈")
PAIRS = 1500
KINDS = {
    "words": ("data.tokenizer=words",),
    "characters": ("data.tokenizer=characters", "data.cleaning.drop_duplicates=true"),
    "bpe": ("data.tokenizer=bpe", "model.vocab_size=300"),
}


def interrupted_preparing(place: Place, dice: random.Random, tally: Tally) -> None:
    """Killed at any moment, and whatever became of what it left: the same bytes in the end, or no."""
    kind, workdir = dice.choice(list(KINDS)), place.new("preparing")
    directory, (wanted, seconds) = workdir / "data", reference(place, kind)
    for _ in range(dice.randint(1, 4)):
        child = prepare(place, kind, workdir)
        tally.count("runs")
        await_moment(child, workdir, seconds, dice)
        harm(child, signal.SIGKILL, dice, tally)
        child.end()
        check(not directory.exists() or prepared_bytes(directory) == wanted, "half of it has the name of the whole")
        left = workdir / "data.partial"
        if left.is_dir() and any(left.rglob("*.*")) and dice.random() < 0.5:
            damage_one(left, dice)
            tally.count("corruptions")
    if done(place, kind, workdir).status == 2:  # what was damaged is named, and gone
        check(done(place, kind, workdir).status == 0, "refused twice")
    tally.count("runs")
    check(prepared_bytes(directory) == wanted, "other data than an undisturbed preparing makes")
    shutil.rmtree(workdir)


def prepare(place: Place, kind: str, workdir: Path, before: Callable[[], None] | None = None) -> Child:
    """The command, at work in many small blocks."""

    def work() -> int:
        preparing.BLOCK = 100
        return cli.main(["prepare", f"--workdir={workdir}", *options(place, kind)])

    workdir.mkdir(exist_ok=True)
    return Child(work, before)


def done(place: Place, kind: str, workdir: Path) -> Ended:
    ended = prepare(place, kind, workdir).end().checked()
    check(ended.status in (0, 2), f"not resumable:\n{ended.err[-2000:]}")
    return ended


@cache
def reference(place: Place, kind: str) -> tuple[dict[str, str], float]:
    workdir, begin = place.new(f"prepared-{kind}"), time.monotonic()
    check(done(place, kind, workdir).status == 0, "an undisturbed preparing was refused")
    return prepared_bytes(workdir / "data"), time.monotonic() - begin


def options(place: Place, kind: str) -> list[str]:
    """The options of a kind, on a text and a config that are made when they are first wanted."""
    dice, config = random.Random(0), place.root / "prepare.py"
    files = {side: place.root / f"text.{side}" for side in ("source", "target")}
    if not config.exists():
        for path in files.values():
            lines = (" ".join(dice.choices(WORDS, k=dice.randint(1, 12))) + "\n" for _ in range(PAIRS))
            path.write_text("".join(lines))
        config.write_text("from transformer_jax.config import default_config as get_config\n")
    changes = (*(f"data.{side}={path}" for side, path in files.items()), *KINDS[kind])
    return [f"--config={config}", *(f"--config.{change}" for change in changes)]
