"""Preparing that is killed, and finds damaged what it had begun."""

from __future__ import annotations

import random
import shutil
import signal
import time
from functools import cache
from pathlib import Path

from tests.chaos.children import Child, Ended
from tests.chaos.damage import damage_one
from tests.chaos.place import Place, prepared_bytes
from tests.chaos.tally import Tally, check
from tests.chaos.trainings import await_moment, harm
from transformer_jax import cli
from transformer_jax.config import ExperimentConfig, from_config_dict
from transformer_jax.data import prepare as preparing
from transformer_jax.data.prepare import prepare

WORDS = ("the", "a", "big", "old", "red", "dog", "cat", "house", "tree", "sees", "likes", "near", "ä", "猫", "🐈")
PAIRS = 1500
KINDS = {
    "words": {"tokenizer": "words"},
    "characters": {"tokenizer": "characters", "cleaning": {"drop_duplicates": True}},
    "bpe": {"tokenizer": "bpe"},
}


def interrupted_preparing(place: Place, dice: random.Random, tally: Tally) -> None:
    """Killed at any moment, and whatever became of what it left: the same bytes in the end, or no."""
    kind, directory = dice.choice(list(KINDS)), place.new("preparing") / "data"
    config = experiment(place, kind)
    wanted, seconds = reference(place, kind)
    for _ in range(dice.randint(1, 4)):
        child = Child(lambda: work(config, directory))
        tally.count("runs")
        await_moment(child, directory.parent, seconds, dice)
        harm(child, signal.SIGKILL, dice, tally)
        child.end()
        check(not directory.exists() or prepared_bytes(directory) == wanted, "half of it has the name of the whole")
        left = directory.with_name("data.partial")
        if left.is_dir() and any(left.rglob("*.*")) and dice.random() < 0.5:
            damage_one(left, dice)
            tally.count("corruptions")
    refused = done(config, directory)
    if refused.status == 2:  # what was damaged is named, and gone
        done(config, directory, must=True)
    tally.count("runs")
    check(prepared_bytes(directory) == wanted, "other data than an undisturbed preparing makes")
    shutil.rmtree(directory.parent)


def work(config: ExperimentConfig, directory: Path) -> None:
    preparing.BLOCK = 100  # so that there are many
    prepare(config, directory).verify()


def done(config: ExperimentConfig, directory: Path, must: bool = False) -> Ended:
    """Through the command's own frame, which says what is wrong."""

    def small_blocks() -> int:
        preparing.BLOCK = 100
        directory.parent.mkdir(parents=True, exist_ok=True)
        return cli.main(["prepare", *options(config), f"--workdir={directory.parent}"])

    ended = Child(small_blocks).end().checked()
    check(ended.status == 0 or (ended.status == 2 and not must), f"not resumable:\n{ended.err[-2000:]}")
    return ended


@cache
def reference(place: Place, kind: str) -> tuple[dict[str, str], float]:
    directory, begin = place.new(f"prepared-{kind}") / "data", time.monotonic()
    done(experiment(place, kind), directory, must=True)
    return prepared_bytes(directory), time.monotonic() - begin


def options(config: ExperimentConfig) -> list[str]:
    data, (source,), (target,) = config.data, config.data.source, config.data.target
    root = Path(source).parent
    (root / "prepare.py").write_text("from transformer_jax.config import default_config as get_config\n")
    changes = {"source": source, "target": target, "tokenizer": data.tokenizer}
    changes["cleaning.drop_duplicates"] = str(data.cleaning.drop_duplicates).lower()
    options = [f"--config.data.{name}={value}" for name, value in changes.items()]
    return [f"--config={root / 'prepare.py'}", f"--config.model.vocab_size={config.model.vocab_size}", *options]


def experiment(place: Place, kind: str) -> ExperimentConfig:
    dice, files = random.Random(0), {}
    for side in ("source", "target"):
        path = place.root / f"text.{side}"
        if not path.exists():
            lines = (" ".join(dice.choices(WORDS, k=dice.randint(1, 12))) + "\n" for _ in range(PAIRS))
            path.write_text("".join(lines))
        files[side] = (str(path),)
    return from_config_dict({"model": {"vocab_size": 300}, "data": {**files, **KINDS[kind]}})
