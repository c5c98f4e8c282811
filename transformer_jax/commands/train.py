"""Trains a model, or goes on training one: the same command again takes a stopped or killed run up where it was saved.

  transformer-jax train --config=configs/demo.py --workdir=runs/demo
  transformer-jax train --config=configs/text.py --workdir=runs/mine --config.data.source=a.en --config.data.target=a.de

Everything about the run is in its folder: config.json, versions.json, metrics.jsonl, tensorboard/, checkpoints/.
SIGTERM or Ctrl-C saves and ends; a second one ends at once.
"""

import argparse

from transformer_jax.commands import configuration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser)
    parser.add_argument(
        "--workdir",
        type=configuration.path,
        required=True,
        metavar="RUN",
        help="the run's folder, made if there is none",
    )


def run(arguments: argparse.Namespace) -> None:
    experiment = configuration.load(arguments.config, arguments.overrides)

    from transformer_jax.runs import (
        train_run,  # imported here, so that --help and a mistyped option need not wait for it
    )

    train_run(experiment, arguments.workdir)
