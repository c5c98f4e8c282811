"""The gain of training several runs in one program: target tokens per second of R models together, compared with one.

    python benchmarks/together.py                                        # 2.6 million parameters, R = 1 to 16
    python benchmarks/together.py --d-model=512 --d-ff=2048 --heads=8 --layers=6 --tokens=25000
    python benchmarks/together.py --runs=1,2 --d-model=16 --d-ff=32 --layers=1 --tokens=256 --steps=2 --repeats=2

Every row of a batch is full, dropout is on, and the runs differ in their seed and their rate of dropout. One run is the
ordinary program. The rows of the table are timed in turn, `--repeats` times over, so that a machine that slows down
slows all of them; the figures are medians, with the lowest and the highest beside them.
"""

import argparse
import dataclasses
import statistics
import time
from typing import Any

import jax
import numpy as np
import side_by_side

from transformer_jax.config import ExperimentConfig, ModelConfig, OptimizerConfig
from transformer_jax.data.batching import Batch
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.training.progress import count
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule


class Case:
    """This number of runs, ready to be timed."""

    def __init__(self, base: ExperimentConfig, runs: int, batch: Any, mesh: jax.sharding.Mesh):
        configs = [
            dataclasses.replace(base, seed=run, model=dataclasses.replace(base.model, dropout=0.1 + 0.2 * run / runs))
            for run in range(runs)
        ]
        schedule = make_schedule(base.optimizer, base.model.d_model, base.train.steps)
        self.programs = CompiledRuns(configs, [schedule] * runs, mesh)
        self.batch, self.runs = batch, runs
        self.state = self.programs.new_states()
        begin = time.perf_counter()
        self.seconds_a_step(2)
        self.first = time.perf_counter() - begin

    def seconds_a_step(self, steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            self.state, metrics = self.programs.advance(self.state, self.batch)
        jax.block_until_ready(metrics)
        return (time.perf_counter() - begin) / steps


def main() -> None:
    arguments = parse()
    base = experiment(arguments)
    mesh = sharding.make_mesh(base.mesh)
    parts = sharding.batch_shards(mesh)
    rows = max(arguments.tokens // arguments.length // parts, 1) * parts
    tokens = np.random.default_rng(0).integers(4, arguments.vocabulary, (rows, arguments.length), np.int32)
    batch = sharding.place_batch(Batch(tokens, tokens, tokens), mesh)

    print(side_by_side.machine())
    cases = [Case(base, runs, batch, mesh) for runs in arguments.runs]
    print(
        f"{count(cases[0].programs.abstract_state.params):,} parameters each; batches of {rows} x {arguments.length} = "
        f"{tokens.size:,} target tokens; {arguments.dtype}; medians of {arguments.repeats} times {arguments.steps} "
        "steps (lowest to highest)\n"
    )
    seconds: list[list[float]] = [[] for _ in cases]
    for _ in range(arguments.repeats):
        for case, taken in zip(cases, seconds, strict=True):
            taken.append(case.seconds_a_step(arguments.steps))
    print(f"{'runs':>4}{'ms a step':>11}{'tokens/s of all':>33}{'against one':>13}{'first steps':>13}")
    for case, taken in zip(cases, seconds, strict=True):
        middle = statistics.median(taken)
        typical, lowest, highest = (case.runs * tokens.size / s for s in (middle, max(taken), min(taken)))
        rate = f"{typical:,.0f} ({lowest:,.0f} to {highest:,.0f})"
        ratio = case.runs * statistics.median(seconds[0]) / middle
        print(f"{case.runs:>4}{middle * 1000:>11.2f}{rate:>33}{ratio:>12.2f}x{case.first:>11.1f} s")


def experiment(arguments: argparse.Namespace) -> ExperimentConfig:
    model = ModelConfig(
        vocab_size=arguments.vocabulary,
        num_encoder_layers=arguments.layers,
        num_decoder_layers=arguments.layers,
        d_model=arguments.d_model,
        d_ff=arguments.d_ff,
        num_heads=arguments.heads,
        dtype=arguments.dtype,
    )
    return ExperimentConfig(model=model, optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=1000))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: sorted({1, *map(int, text.split(","))})  # noqa: E731
    parser.add_argument("--runs", type=numbers, default=[1, 2, 4, 8, 16], help="how many together; 1 is always there")
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--d-ff", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4, help="layers of the encoder, and of the decoder")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tokens", type=int, default=4096, help="of each side in a batch")
    parser.add_argument("--length", type=int, default=32, help="tokens of a sentence")
    parser.add_argument("--steps", type=int, default=10, help="timed at once")
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
