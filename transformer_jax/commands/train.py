"""Trains a model, or goes on training one: the same command again takes a stopped or killed run up where it was saved.

  transformer-jax train --config=configs/demo.py --workdir=runs/demo
  transformer-jax train --config=configs/text.py --workdir=runs/mine --config.data.source=a.en --config.data.target=a.de
  transformer-jax train --config=configs/text.py --workdir=runs/finer --init-from=runs/mine ...

With --init-from the model begins with another run's weights: its architecture (model.*) and its tokenizers are then
that run's, whatever the config file says; options given on the command line still count.

Everything about the run is in its folder: config.json, versions.json, metrics.jsonl, tensorboard/, checkpoints/.
SIGTERM or Ctrl-C saves and ends; a second one ends at once.
"""

import argparse
from typing import Any

from transformer_jax import schema
from transformer_jax.commands import configuration
from transformer_jax.config import ExperimentConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser)
    parser.add_argument(
        "--workdir",
        type=configuration.path,
        required=True,
        metavar="RUN",
        help="the run's folder, made if there is none",
    )
    parser.add_argument(
        "--init-from",
        type=configuration.path,
        metavar="OTHER",
        help="a run, or an exported or imported folder, whose weights, model and tokenizers a new run begins with",
    )
    parser.add_argument(
        "--init-weights",
        default="latest",
        metavar="WHICH",
        help="of OTHER: latest (the default) or best checkpoint, averaged, or an exported folder",
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.init_from is None:
        experiment, params = configuration.load(arguments.config, arguments.overrides), None
    else:
        experiment, params = initialised(arguments)

    from transformer_jax.runs import (
        train_run,  # imported here, so that --help and a mistyped option need not wait for it
    )

    train_run(experiment, arguments.workdir, params)


def initialised(arguments: argparse.Namespace) -> tuple[ExperimentConfig, Any]:
    """The experiment with another run's model and tokenizers, and that run's parameters."""
    from transformer_jax.decoding.run import read_weights

    configuration.load(arguments.config, arguments.overrides)  # what is wrong with it is told before anything loads
    found = read_weights(arguments.init_from, arguments.init_weights)
    files = {side: str(path.absolute()) for side, path in found.tokenizers.items()}
    in_place = {
        "model": schema.to_dict(found.config.model),
        "data": {"tokenizer_file": files["source"], "target_tokenizer_file": files.get("target")},
    }
    return configuration.load(arguments.config, arguments.overrides, in_place), found.params
