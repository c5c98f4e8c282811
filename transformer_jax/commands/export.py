"""Writes a run's weights as safetensors, with config and tokenizer: a folder that is complete in itself.

  transformer-jax export --workdir=runs/base --output=model
  transformer-jax export --workdir=runs/base --output=model --step=10000

Any numpy reads it: safetensors.numpy.load_file("model/model.safetensors").
"""

import argparse
from pathlib import Path

from transformer_jax.commands import configuration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", type=configuration.path, required=True, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--output", type=configuration.path, required=True, metavar="DIR", help="the folder to write; it must not exist"
    )
    parser.add_argument("--step", type=int, help="the checkpoint of this step, and not the newest")


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.training.export import SavedWeights, write_export
    from transformer_jax.training.run_folder import RunFolder

    folder = RunFolder(arguments.workdir)
    weights = SavedWeights(folder)
    step, params = weights.newest() if arguments.step is None else (arguments.step, weights.of_step(arguments.step))
    write_export(Path(arguments.output), params, [step], folder)
    print(f"{arguments.output}: the weights of step {step}")
