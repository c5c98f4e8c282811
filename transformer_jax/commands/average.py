"""Averages the parameters of several checkpoints, as the paper does before it decodes (section 6.1).

  transformer-jax average --workdir=runs/base --last=5
  transformer-jax average --workdir=runs/base --best=3
  transformer-jax average --workdir=runs/base --steps=8000,9000,10000

The result is RUN/averaged, an exported folder; `translate` and `evaluate` use it with --weights=averaged.
"""

import argparse

from transformer_jax.commands.arguments import add_run, at_least
from transformer_jax.files.remote import name_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=at_least(1), metavar="N", help="the newest N checkpoints (paper: 5, big: 20)")
    which.add_argument("--best", type=at_least(1), metavar="N", help="the N checkpoints with the best validation score")
    which.add_argument("--steps", type=steps, metavar="STEP,STEP...", help="the checkpoints of these steps")


def steps(text: str) -> list[int]:
    return sorted(set(map(at_least(0), text.split(","))))


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.runs.export import SavedWeights, write_export
    from transformer_jax.runs.folder import RunFolder

    folder = RunFolder(arguments.workdir)
    weights = SavedWeights(folder)
    if arguments.last is not None:
        mean = weights.average(weights.last_steps(arguments.last))
    elif arguments.best is not None:
        mean = weights.average(weights.best_steps(arguments.best))
    else:
        mean = weights.average(arguments.steps)
    write_export(folder.averaged, mean, replace=True)
    print(f"{name_of(str(folder.averaged))}: the average of steps {', '.join(map(str, mean.steps))}")
