"""Runs cases of fault injection, and prints what was done and every violation. See `tests/chaos/__init__.py`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS_OF_COMMANDS", "")

from jax._src import compiler

from tests.chaos import folders, identities, preparing, several, storage, trainings
from tests.chaos.place import VARIANTS, Place
from tests.chaos.tally import Tally, Violation
from transformer_jax import cli

# Each case, and its weight in the choice of the next one.
CASES: dict[Callable[[Place, random.Random, Tally], None], int] = {
    trainings.interrupted_training: 20,
    preparing.interrupted_preparing: 12,
    folders.damaged_folder: 20,
    folders.damaged_half: 10,
    identities.changed_option: 8,
    storage.failing_training: 16,
    storage.failing_reading: 10,
    storage.failing_preparing: 6,
    storage.interrupted_on_failing_storage: 6,
    storage.two_trainings: 4,
    storage.lost_checkpoints: 3,
    storage.stale_listing: 3,
    several.killed_process: 12,
    several.stopped_process: 10,
    several.suspended_process: 6,
    several.failing_process: 16,
    several.stale_process: 4,
    several.differing_process: 5,
    several.hanging_process: 8,
    several.absent_process: 3,
}
BY_NAME = {case.__name__: case for case in CASES}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="a case is a function of the seed and its number")
    parser.add_argument("--runs", type=int, default=None, help="how many cases (default: 20, without --hours)")
    parser.add_argument("--hours", type=float, help="in place of --runs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", help=f"of these, with commas between: {', '.join(BY_NAME)}")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="what is trained (default: %(default)s)")
    parser.add_argument("--place", type=Path, help="where (default: a temporary directory, removed if all is well)")
    chosen = parser.parse_args()
    names = chosen.only.split(",") if chosen.only else list(BY_NAME)
    if unknown := set(names) - set(BY_NAME):
        parser.error(f"--only: there is no {', '.join(unknown)}")
    failing = [case.__name__ for case in CASES if case.__module__ == storage.__name__]
    failing += [several.failing_process.__name__, several.stale_process.__name__]
    of_storage = [name for name in names if name in failing]
    if of_storage and not storage.preload():
        print(f"without {', '.join(of_storage)}: there is no C compiler (cc)")
        names = [name for name in names if name not in of_storage]
        if not names:
            return 0
    ready()
    root = chosen.place or Path(tempfile.mkdtemp(prefix="chaos-"))
    tally, begin = Tally(), time.monotonic()
    place, number = Place(root.absolute(), chosen.variants.split(",")), chosen.first
    runs = chosen.runs if chosen.runs is not None else (sys.maxsize if chosen.hours else 20)
    deadline = begin + 3600 * (chosen.hours or 1e6)
    with contextlib.suppress(KeyboardInterrupt):
        while number < chosen.first + runs and time.monotonic() < deadline:
            run_case(place, chosen.seed, number, names, tally)
            number += 1
    minutes = (time.monotonic() - begin) / 60
    print(f"\nseed {chosen.seed}, {number - chosen.first} cases in {minutes:.1f} minutes\n\n{tally.table()}")
    for violation in tally.violations:
        print(f"\nVIOLATION {violation}")
    if tally.violations:
        print(f"\nThe folders are in {root}")
    elif chosen.place is None:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if tally.violations else 0


def run_case(place: Place, seed: int, number: int, names: list[str], tally: Tally) -> None:
    """The case of a number, and whether what must hold after it holds."""
    dice = random.Random(f"{seed}:{number}")
    name = dice.choices(names, [CASES[BY_NAME[name]] for name in names])[0]
    again = f"--only={','.join(names)} " if len(names) < len(BY_NAME) else ""
    print(f"{number:>5} {name}", flush=True)
    tally.count(f"cases: {name.replace('_', ' ')}")
    try:
        BY_NAME[name](place, dice, tally)
    except Violation as violation:
        tally.violations.append(f"{name} (again: {again}--seed={seed} --first={number} --runs=1): {violation}")
        print(f"      VIOLATION {violation}", flush=True)
    except Exception:
        tally.violations.append(
            f"{name} (--seed={seed} --first={number}): the driver itself:\n{traceback.format_exc()}"
        )
        print(f"      {traceback.format_exc()}", flush=True)


def ready() -> None:
    """Imports what commands import, so that their children need not; starts no device."""
    for name in cli.COMMANDS:
        importlib.import_module(f"transformer_jax.commands.{'import_' if name == 'import' else name}")
    for name in ("orbax.checkpoint", "safetensors.numpy", "sentencepiece", "tensorboardX", "matplotlib.figure"):
        importlib.import_module(name)
    for name in ("translation.load", "experiment", "training.train", "report.write", "interop.marian"):
        importlib.import_module(f"transformer_jax.{name}")
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    # On CPUs each process has its own keys of the compile cache, and JAX lets only process 0 write to it.
    compiler.distributed = types.SimpleNamespace(global_state=types.SimpleNamespace(process_id=0))


if __name__ == "__main__":
    sys.exit(main())
