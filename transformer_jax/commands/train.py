"""Trains a model, or goes on training one: the same command again takes a stopped or killed run up where it was saved.

  transformer-jax train --config=configs/demo.py --workdir=runs/demo
  transformer-jax train --config=configs/text.py --workdir=runs/mine --config.data.source=a.en --config.data.target=a.de

Everything about the run is in its folder: config.json, versions.json, metrics.jsonl, tensorboard/, checkpoints/.
SIGTERM or Ctrl-C saves and ends; a second one ends at once.
"""

import argparse
import dataclasses

from transformer_jax.commands import configuration
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prepared import Prepared


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

    # Imported here, so that --help and a mistyped option need not wait for them.
    from transformer_jax.data.prepare import prepare
    from transformer_jax.training.compilation import use_cache
    from transformer_jax.training.hardware import keep_freed_memory
    from transformer_jax.training.loop import train
    from transformer_jax.training.run_folder import RunFolder

    keep_freed_memory()
    use_cache(experiment.train.compile_cache)
    folder = RunFolder(arguments.workdir)
    with folder.held():
        prepared = prepare(experiment, folder.data(experiment))
        prepared.verify()
        experiment = with_vocabulary(experiment, prepared)
        evaluators = []
        if experiment.decode.bleu_sentences:
            from transformer_jax.evaluation import bleu_evaluator

            evaluators.append(bleu_evaluator(experiment, prepared))
        train(experiment, prepared, folder, evaluators)


def with_vocabulary(experiment: ExperimentConfig, prepared: Prepared) -> ExperimentConfig:
    """The experiment with the sizes of the vocabularies there really are, in place of those asked for."""
    model = dataclasses.replace(
        experiment.model, vocab_size=prepared.vocab_size, target_vocab_size=prepared.target_vocab_size
    )
    return dataclasses.replace(experiment, model=model)
