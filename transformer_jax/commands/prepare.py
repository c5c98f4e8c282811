"""Prepares data: turns text into token arrays on disk, which training maps into memory.

  transformer-jax prepare --config=configs/base.py --workdir=RUN
  transformer-jax prepare --config=configs/text.py --workdir=RUN --config.data.source=a.en --config.data.target=a.de

If the data is prepared already, it says what has changed since.
"""

import argparse

from transformer_jax.commands import configuration
from transformer_jax.commands.arguments import add_run
from transformer_jax.data.prepare import prepare
from transformer_jax.runs.folder import RunFolder, refuse_foreign


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser)
    add_run(parser, "the run's folder; the data is written to RUN/data")


def run(arguments: argparse.Namespace) -> None:
    experiment = configuration.load(arguments.config, arguments.overrides)
    folder = RunFolder(arguments.workdir)
    if experiment.data.directory is None:
        refuse_foreign(folder.path)
    prepared = prepare(experiment, folder.data(experiment))
    prepared.verify()
    print(prepared.summary())
