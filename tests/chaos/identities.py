"""A run is resumed with another option, and commands are pointed at folders of something else.

What must hold: the command refuses it, or says so, or does what it would have done had it been so from the start.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from functools import cache
from pathlib import Path

from tests.chaos.children import run
from tests.chaos.place import Place, fingerprint, tree
from tests.chaos.tally import Tally, check
from tests.support.sweep_runs import experiment_file

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
# What somebody may have in a folder that is not a run.
FOREIGN = {
    "config.json": '{"my": "settings"}\n',
    "metrics.jsonl": '{"loss": 1.0}\n',
    "versions.json": "{}\n",
    "thesis.tex": "\\documentclass{book}\n",
    "checkpoints/epoch-1.pt": "weights\n",
    "data/train.txt": "a\n",
    "sweep.json": "{}\n",
    "model.safetensors": "none\n",
}


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
            _weights(workdir) == straight(place, (*options, f"{path}={OTHER[path]}")),
            f"{path}={OTHER[path]} with {schedule}: resumed, and not what a straight run gives",
        )
    shutil.rmtree(workdir)


def unrelated_folder(place: Place, dice: random.Random, tally: Tally) -> None:
    """A folder of something else: nothing that writes a run, a sweep or data begins in it, and it stays as it was."""
    folder = place.new("unrelated")
    if dice.random() < 0.4:
        shutil.copytree(place.finished() / "exported", folder)
    else:
        for name in dice.sample(list(FOREIGN), dice.randint(1, 3)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(FOREIGN[name])
    before, kind = tree(folder), dice.choice(["train", "train", "sweep", "prepare", "export", "average"])
    experiment = place.root / "experiment.py"
    arguments = {
        "train": place.train("plain", folder),
        "sweep": ["sweep", str(experiment), f"--workdir={folder}"],
        "prepare": ["prepare", f"--config={place.config}", f"--workdir={folder}", f"--config.data.directory={folder}"],
        "export": ["export", f"--workdir={place.finished()}", f"--output={folder}"],
        "average": ["average", f"--workdir={folder}", "--last=1"],
    }[kind]
    if not experiment.exists():
        experiment_file(place.root, "Variant('two', {'model.num_heads': 4})")
    tally.count("runs", "unrelated folders")
    ended = run(arguments)
    check(ended.status == 2, f"{kind} began in {sorted(before)}:\n{ended.err[-2000:]}")
    check(tree(folder) == before, f"{kind} has changed {sorted(before)}: {sorted(tree(folder))}")
    shutil.rmtree(folder)


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
    return _weights(workdir)


def _weights(workdir: Path) -> str:
    return hashlib.sha256(json.loads(fingerprint(workdir))["weights"].encode()).hexdigest()
