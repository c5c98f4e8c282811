"""Sweeps whose launcher or workers are killed, stopped or suspended."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from functools import cache
from pathlib import Path

from tests.chaos.children import Child, run
from tests.chaos.place import Place
from tests.chaos.tally import Tally, check
from tests.chaos.trainings import HARMS, harm
from tests.support.sweep_runs import experiment_file
from transformer_jax import cli

KEPT = ("valid", "tests", "target_tokens", "steps")


def interrupted_sweep(place: Place, dice: random.Random, tally: Tally) -> None:
    """In the end the results are those of an undisturbed sweep, and none was made twice."""
    wanted, seconds = reference(place)
    folder = place.new("sweep")
    made: dict[str, int] = {}
    for _ in range(dice.randint(1, 3)):
        launcher = Child(lambda: cli.main(arguments(place, folder)))
        tally.count("runs")
        time.sleep(dice.uniform(0.1, 0.9) * seconds)
        target = dice.choice([launcher.pid, *workers(folder)])
        if target == launcher.pid:
            harm(launcher, dice.choice(HARMS), dice, tally)
        else:
            os.kill(target, signal.SIGKILL)
            tally.count("kills")
        ended = launcher.end()
        check("Traceback" not in ended.err, ended.err[-3000:])
        now = {str(path): path.stat().st_mtime_ns for path in folder.glob("runs/*/*/result.json")}
        check(made.items() <= now.items(), "a finished run was made again, or lost")
        made = now
    tally.count("runs")
    ended = run(arguments(place, folder))
    check(ended.status == 0, f"not resumable:\n{ended.err[-2000:]}")
    check(results(folder) == wanted, f"other results: {results(folder)} {wanted}")
    check(run(["report", str(folder)]).status == 0, "no report")


def arguments(place: Place, folder: Path) -> list[str]:
    cache_option = f"--config.train.compile_cache={place.root / 'cache'}"
    return ["sweep", str(experiment(place)), f"--workdir={folder}", "--jobs=1", cache_option]


def experiment(place: Place) -> Path:
    path = place.root / "experiment.py"
    return path if path.exists() else experiment_file(place.root, "Variant('two', {'model.num_heads': 4})")


@cache
def reference(place: Place) -> tuple[dict[str, object], float]:
    folder, begin = place.new("reference-sweep"), time.monotonic()
    ended = run(arguments(place, folder))
    check(ended.status == 0, ended.err)
    return results(folder), time.monotonic() - begin


def results(folder: Path) -> dict[str, object]:
    found = {}
    for path in sorted(folder.glob("runs/*/*/result.json")):
        result = json.loads(path.read_text())
        found[str(path.relative_to(folder))] = {name: result[name] for name in KEPT}
    return found


def workers(folder: Path) -> list[int]:
    """The processes at work on runs of a sweep."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"transformer_jax.sweeps.worker" in words and str(folder).encode() in words:
                found.append(int(entry.name))
    return found
