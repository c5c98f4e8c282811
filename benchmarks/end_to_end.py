"""The overhead of data loading, logging and the loop: `train_run` compared with the bare training step.

    python benchmarks/end_to_end.py [--model base] [--steps 6] [--rounds 3] [--json FILE]

Each round continues a training for --steps updates by `train_run`, all of `transformer-jax train`, and then runs as
many bare steps with the same batches, already on the device. The first updates compile and do not
count. The seconds in metrics.jsonl exclude validation and saving.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import made_corpus
import side_by_side

from transformer_jax import ModelConfig
from transformer_jax.commands import configuration
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prepared import Prepared
from transformer_jax.experiment import train_run
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.training.setup import RunSetup
from transformer_jax.update.optimizer import make_schedule

MODELS = {"base": ModelConfig.base(37_000), "tiny": ModelConfig.tiny(10_000)}
TOKENS = {"base": 1024, "tiny": 8192}


def experiment_of(model: str, directory: Path, steps: int) -> ExperimentConfig:
    given = dict(
        option.removeprefix("--config.").split("=", 1)
        for option in made_corpus.write(directory, MODELS[model].vocab_size, longest=63)
    )
    experiment = configuration.load("preset:text", list(given.items()))
    data = dataclasses.replace(
        experiment.data, tokens_per_batch=TOKENS[model], max_length=64, num_shapes=2, valid_size=16
    )
    train = dataclasses.replace(
        experiment.train, log_every=steps, eval_every=10**6, checkpoint_every=10**6, keep_best=0, tensorboard=True
    )
    train = dataclasses.replace(train, compile_cache=str(directory / "compiled"))
    model_config = dataclasses.replace(MODELS[model], vocab_size=experiment.model.vocab_size)
    optimizer = dataclasses.replace(experiment.optimizer, warmup_steps=1)
    return dataclasses.replace(experiment, model=model_config, data=data, optimizer=optimizer, train=train)


def whole(experiment: ExperimentConfig, workdir: Path, last_step: int) -> tuple[float, float]:
    """Trains until this step; seconds of the last line of metrics, and the share that it waited for data."""
    train_run(dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, steps=last_step)), workdir)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "seconds" in line][-1]
    assert last["step"] == last_step
    return last["seconds"], last["data_wait"]


class Bare:
    """The step alone, over batches of the run."""

    def __init__(self, workdir: Path):
        folder = RunFolder(workdir)
        config = folder.load_config()
        self.inputs = RunSetup([config], Prepared.open(folder.data(config)), is_evaluated=False)
        schedule = make_schedule(config.optimizer, config.model.d_model, config.train.steps)
        self.programs = CompiledRuns([config], [schedule], self.inputs.mesh)
        self.state: Any = self.programs.new_states()

    def seconds(self, first: int, last: int) -> float:
        batches = [self.inputs.placed_batch(step) for step in range(first, last)]
        for batch in batches:  # every shape is compiled
            self.state, _ = self.programs.advance(self.state, batch)
        jax.block_until_ready(self.state)
        start = time.perf_counter()
        for batch in batches:
            self.state, _ = self.programs.advance(self.state, batch)
        jax.block_until_ready(self.state)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="base")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    steps, shares, results = arguments.steps, [], []
    with tempfile.TemporaryDirectory() as name:
        workdir = Path(name) / "run"
        experiment, bare = experiment_of(arguments.model, Path(name), steps), None
        for number in range(arguments.rounds):
            last = (2 * number + 2) * steps  # the first half of a training compiles
            with_all, waited = whole(experiment, workdir, last)
            bare = bare or Bare(workdir)
            alone = bare.seconds(last - steps, last)
            results.append({"whole": with_all, "bare": alone, "data_wait": waited})
            shares.append(alone / with_all)
            print(f"{steps} updates: {with_all:.2f} s, {waited:.1%} waiting for data; bare {alone:.2f} s", flush=True)
    print(f"{side_by_side.machine()}\n{arguments.model}: {statistics.median(shares):.1%} of the bare step's rate")
    side_by_side.write_json(arguments.json, machine=side_by_side.machine(), model=arguments.model, rounds=results)


if __name__ == "__main__":
    main()
