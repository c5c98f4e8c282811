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
from transformer_jax.commands.arguments import add_accept_changed_code, path
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser)
    parser.add_argument(
        "--workdir",
        type=path,
        required=True,
        metavar="RUN",
        help="the run's folder, made if there is none",
    )
    parser.add_argument(
        "--init-from",
        type=path,
        metavar="OTHER",
        help="a run, or an exported or imported folder, whose weights, model and tokenizers a new run begins with",
    )
    parser.add_argument(
        "--init-weights",
        type=path,
        metavar="WHICH",
        help="of OTHER: latest (the default) or best checkpoint, averaged, or an exported folder",
    )
    add_accept_changed_code(parser, "resume the run")

    looking = parser.add_argument_group("looking into it", "docs/performance.md")
    looking.add_argument(
        "--profile",
        type=span,
        metavar="START:STEPS",
        help="trace so many updates from update START on, counted from 1, into RUN/profile (TensorBoard, Perfetto)",
    )
    looking.add_argument(
        "--debug-nans",
        action="store_true",
        help="end at the first gradient that is not finite, and name the line of code that it comes from",
    )

    processes = parser.add_argument_group(
        "several processes",
        "found by themselves on SLURM, TPU pods and Kubernetes; elsewhere each is told (docs/scaling.md)",
    )
    processes.add_argument(
        "--coordinator", metavar="HOST:PORT", help="where process 0 runs, and a port that is free there"
    )
    processes.add_argument(
        "--processes", type=int, metavar="N", help="how many there are; 1 = whatever is found, alone"
    )
    processes.add_argument("--process-id", type=int, metavar="I", help="which of them this is, from 0")


def run(arguments: argparse.Namespace) -> None:
    if arguments.init_weights is not None and arguments.init_from is None:
        raise BadInput(f"--init-weights={arguments.init_weights}: has no effect without --init-from")
    experiment, params = configuration.load(arguments.config, arguments.overrides), None

    # Imported here, so that --help and a mistyped option need not wait for it.
    from transformer_jax.experiment import train_run
    from transformer_jax.processes.distributed import joined
    from transformer_jax.processes.watch import Limits
    from transformer_jax.training.probes import Probes, Span

    limits = Limits(experiment.mesh.start_within, experiment.mesh.lost_after)
    with joined(arguments.coordinator, arguments.processes, arguments.process_id, limits):
        if arguments.init_from is not None:
            experiment, params = initialised(arguments)
        profile = None if arguments.profile is None else Span(*arguments.profile)
        probes = Probes(profile, arguments.debug_nans)
        train_run(experiment, arguments.workdir, params, probes, arguments.accept_changed_code)


def span(text: str) -> tuple[int, int]:
    """START:STEPS, both at least 1."""
    start, _, count = text.partition(":")
    if not (start.isdecimal() and count.isdecimal() and int(start) and int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not START:STEPS, two numbers from 1 on, as in 20:5")
    return int(start), int(count)


def initialised(arguments: argparse.Namespace) -> tuple[ExperimentConfig, Any]:
    """The experiment with another run's model and tokenizers, and that run's parameters."""
    from transformer_jax.translation.load import read_weights

    found = read_weights(arguments.init_from, arguments.init_weights or "latest")
    files = {side: str(path.absolute()) for side, path in found.tokenizers.items()}
    in_place = {
        "model": schema.to_dict(found.config.model),
        "data": {"tokenizer_file": files["source"], "target_tokenizer_file": files.get("target")},
    }
    return configuration.load(arguments.config, arguments.overrides, in_place), found.params
