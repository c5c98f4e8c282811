"""Averages the parameters of several checkpoints, as the paper does before it decodes (section 6.1).

  transformer-jax average --workdir=runs/base --last=5
  transformer-jax average --workdir=runs/base --best=3
  transformer-jax average --workdir=runs/base --steps=8000,9000,10000

The result is RUN/averaged, an exported folder; `translate` and `evaluate` use it with --weights=averaged.
"""

import argparse
from typing import Any

from transformer_jax.commands.arguments import add_run, at_least
from transformer_jax.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=at_least(1), metavar="N", help="the newest N checkpoints (paper: 5, big: 20)")
    which.add_argument("--best", type=at_least(1), metavar="N", help="the N checkpoints with the best validation score")
    which.add_argument("--steps", metavar="STEP,STEP...", help="the checkpoints of these steps")


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.runs.export import SavedWeights, write_export
    from transformer_jax.runs.folder import RunFolder

    folder = RunFolder(arguments.workdir)
    weights = SavedWeights(folder)
    steps = chosen_steps(arguments, weights)
    weights.data(steps[-1])  # warns if the tokenizers may differ
    write_export(folder.averaged, weights.average(steps), steps, folder, replace=True)
    print(f"{folder.averaged}: the average of steps {', '.join(map(str, steps))}")


def chosen_steps(arguments: argparse.Namespace, weights: Any) -> list[int]:
    if arguments.last is not None:
        return weights.last_steps(arguments.last)
    if arguments.best is not None:
        return weights.best_steps(arguments.best)
    try:
        steps = [int(step) for step in arguments.steps.split(",")]
    except ValueError:
        raise BadInput(f"--steps={arguments.steps}: must be steps separated by commas, as in 8000,9000") from None
    if len(set(steps)) < len(steps):
        raise BadInput(f"--steps={arguments.steps}: repeats a step")
    return steps
