"""Averages the parameters of several checkpoints, as the paper does before it decodes (section 6.1).

  transformer-jax average --workdir=runs/base --last=5
  transformer-jax average --workdir=runs/base --best=3
  transformer-jax average --workdir=runs/base --steps=8000,9000,10000

The result is RUN/averaged, a folder like those of `export`; `translate` and `evaluate` use it with --weights=averaged.
"""

import argparse
from typing import Any

from transformer_jax.commands.arguments import path
from transformer_jax.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", type=path, required=True, metavar="RUN", help="the run's folder")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="the newest N checkpoints (paper: 5, and 20 for big)")
    which.add_argument("--best", type=int, metavar="N", help="the N checkpoints that validated best")
    which.add_argument("--steps", metavar="STEP,STEP...", help="the checkpoints of these steps")


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.runs.export import SavedWeights, write_export
    from transformer_jax.runs.folder import RunFolder

    folder = RunFolder(arguments.workdir)
    weights = SavedWeights(folder)
    steps = chosen_steps(arguments, weights)
    weights.data(steps[-1])  # warns where the tokenizers may be others
    write_export(folder.averaged, weights.average(steps), steps, folder, replace=True)
    print(f"{folder.averaged}: the average of steps {', '.join(map(str, steps))}")


def chosen_steps(arguments: argparse.Namespace, weights: Any) -> list[int]:
    for name in ("last", "best"):
        count = getattr(arguments, name)
        if count is not None:
            if count < 1:
                raise BadInput(f"--{name}={count}: must be at least 1")
            return weights.last_steps(count) if name == "last" else weights.best_steps(count)
    try:
        steps = [int(step) for step in arguments.steps.split(",")]
    except ValueError:
        raise BadInput(f"--steps={arguments.steps}: must be steps with commas between them, as in 8000,9000") from None
    if len(set(steps)) < len(steps):
        raise BadInput(f"--steps={arguments.steps}: names a step twice")
    return steps
