"""A run is resumed with another option.

What must hold: the command refuses it, or says so, or does what it would have done had it been so from the start.
"""

from __future__ import annotations

import random
import shutil
from functools import cache
from pathlib import Path

from tests.chaos.children import run
from tests.chaos.place import Place, fingerprint
from tests.chaos.tally import Tally, check

# Other values of options, to resume with. What comes out must be what a straight run with them gives.
OTHER = {
    "seed": "5",
    "data.seed": "3",
    "data.tokens_per_batch": "128",
    "data.batching": "packing",
    "data.max_length": "12",
    "data.tokenizer": "characters",
    "data.task.alphabet": "7",
    "data.task.train_size": "100",
    "model.num_heads": "4",
    "model.norm": "pre",
    "model.dropout": "0.3",
    "model.positions": "rotary",
    "optimizer.learning_rate": "0.01",
    "optimizer.warmup_steps": "2",
    "optimizer.beta2": "0.9",
    "optimizer.schedule": "cosine",
    "optimizer.clip_norm": "0.5",
    "train.steps": "30",
    "train.epochs": "6",
    "train.tokens": "2500",
    "train.label_smoothing": "0.3",
    "train.best_metric": "valid_accuracy",
    "train.best_is": "highest",
    "train.patience": "50",
    "train.keep_best": "0",
    "train.log_every": "3",
    "train.eval_every": "3",
    "train.checkpoint_every": "12",
    "decode.beam": "2",
    "decode.alpha": "0.2",
}
SCHEDULES = ("inverse_sqrt", "cosine", "linear")


def changed_option(place: Place, dice: random.Random, tally: Tally) -> None:
    """A run is resumed with another option: refused, or it ends as a straight run with that option does."""
    schedule, path = dice.choice(SCHEDULES), dice.choice(list(OTHER))
    options = () if path == "optimizer.schedule" else (f"optimizer.schedule={schedule}",)
    base = half_way(place, options)
    workdir = place.new("option")
    shutil.copytree(base, workdir)
    tally.count("runs", "changes of options")
    ended = run(place.train("plain", workdir, *options, f"{path}={OTHER[path]}"))
    if ended.status == 0:
        check(
            fingerprint(workdir)["weights"] == straight(place, (*options, f"{path}={OTHER[path]}")),
            f"{path}={OTHER[path]} with {schedule}: resumed, and not what a straight run gives",
        )
    shutil.rmtree(workdir)


@cache
def half_way(place: Place, options: tuple[str, ...]) -> Path:
    """A run that is to be resumed from the middle."""
    workdir = place.new("half-way")
    ended = run(place.train("plain", workdir, *options))
    check(ended.status == 0, ended.err)
    shutil.rmtree(max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name)))
    return workdir


@cache
def straight(place: Place, options: tuple[str, ...]) -> str:
    workdir = place.new("straight")
    ended = run(place.train("plain", workdir, *options))
    check(ended.status == 0, ended.err)
    return fingerprint(workdir)["weights"]
