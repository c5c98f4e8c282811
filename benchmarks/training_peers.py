"""One training step compared with flax linen's modules and torch's nn.Transformer: the same work, in turn.

    pip install -e '.[peers]' && python benchmarks/training_peers.py [--rounds 5] [--json FILE]
    python benchmarks/training_peers.py --models=tiny --systems=ours,linen,torch
    python benchmarks/training_peers.py --models=base,big --rows=390        # a GPU: 25k + 25k tokens; never run there

Forward, backward and Adam's update over a batch of full rows, dropout and label smoothing on. A system's time is the
median of the rounds; "limit" is the share of the measured rate of matrix products (of the same library and type) at
which it computes what the model needs (model/size.py; 3 x forward). Without torch its systems are left out.
"""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import linen_model
import numpy as np
import side_by_side

from transformer_jax import ModelConfig
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch
from transformer_jax.model.size import training_flops
from transformer_jax.processes.hardware import keep_freed_memory
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

Step = Callable[[], object]


class Work(NamedTuple):
    """A model and its batch. `changed` by what the command line says."""

    model: ModelConfig
    rows: int
    length: int

    def changed(self, vocabulary: int | None, rows: int | None, length: int | None) -> "Work":
        model = dataclasses.replace(self.model, vocab_size=vocabulary or self.model.vocab_size)
        return Work(model, rows or self.rows, length or self.length)

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    def batch(self) -> Batch:
        shape = (self.rows, self.length)
        tokens = np.random.default_rng(0).integers(4, self.model.vocab_size, shape, np.int32)
        return Batch(tokens, np.roll(tokens, 1, axis=1), tokens)


WORKS = {
    "base": Work(ModelConfig.base(37_000), rows=16, length=64),
    "big": Work(ModelConfig.big(37_000), rows=16, length=64),
    "tiny": Work(
        ModelConfig.tiny(10_000), rows=512, length=16
    ),  # the recipe of Multi30k: short sentences, 8,192 tokens
}


class System(NamedTuple):
    """How a system is called, and which rate of matrix products is its limit."""

    name: str
    limit: str
    build: Callable[[ModelConfig, Batch], Step]


def ours(config: ModelConfig, batch: Batch) -> Step:
    experiment = ExperimentConfig(model=config)
    mesh = sharding.make_mesh(experiment.mesh)
    programs = CompiledRuns([experiment], [make_schedule(experiment.optimizer, config.d_model, 100_000)], mesh)
    return repeated(programs.advance, programs.new_states(), (sharding.place_batch(batch, mesh),))


def linen(config: ModelConfig, batch: Batch) -> Step:
    new_state, step = linen_model.make_step(config)
    return repeated(step, new_state(), tuple(jax.device_put((batch.source, batch.target_input, batch.target_output))))


def repeated(step: Callable[..., Any], state: Any, batch: tuple[Any, ...]) -> Step:
    """A call takes one step on from where the last one ended, and waits for it."""
    held = [state]

    def once() -> None:
        held[0], loss = step(held[0], *batch)
        jax.block_until_ready((held[0], loss))

    return once


def products(config: ModelConfig, batch: Batch) -> Step:
    """The matrix products of a step and nothing else: a bound for what any other change of the step could save.

    The products inside attention, a few percent, are left out.
    """
    width, encoder, decoder = config.d_model, config.num_encoder_layers, config.num_decoder_layers
    counts = {
        (width, width): 4 * encoder + 8 * decoder,
        (width, config.d_ff): encoder + decoder,
        (config.d_ff, width): encoder + decoder,
        (width, config.vocab_size): 1,
    }
    forward = jax.jit(lambda x, w, dy: x @ w)
    input_gradient = jax.jit(lambda x, w, dy: jnp.einsum("mn,kn->mk", dy, w))
    weight_gradient = jax.jit(lambda x, w, dy: jnp.einsum("mk,mn->kn", x, dy))

    def arrays(rows: int, of_in: int, of_out: int) -> list[jax.Array]:
        random = np.random.default_rng(0)
        sizes = (rows, of_in), (of_in, of_out), (rows, of_out)
        return [jnp.asarray(random.normal(size=size), np.float32) for size in sizes]

    made = {shape: arrays(batch.source.size, *shape) for shape in counts}

    def once() -> None:
        for shape, count in counts.items():
            for product in (forward, input_gradient, weight_gradient) * count:
                jax.block_until_ready(product(*made[shape]))

    return once


def torch_step(autocast: bool, compiled: bool) -> Callable[[ModelConfig, Batch], Step]:
    def build(config: ModelConfig, batch: Batch) -> Step:
        import torch_model

        return torch_model.make_step(
            config, (batch.source, batch.target_input, batch.target_output), autocast=autocast, compiled=compiled
        )

    return build


def in_bfloat16(build: Callable[[ModelConfig, Batch], Step]) -> Callable[[ModelConfig, Batch], Step]:
    return lambda config, batch: build(dataclasses.replace(config, dtype="bfloat16"), batch)


SYSTEMS = {
    "ours": System("transformer_jax", "jax float32", ours),
    "linen": System("flax linen", "jax float32", linen),
    "products": System("only its matrix products", "jax float32", products),
    "torch": System("torch eager", "torch float32", torch_step(autocast=False, compiled=False)),
    "torch-compiled": System("torch compiled", "torch float32", torch_step(autocast=False, compiled=True)),
    "ours-bf16": System("transformer_jax bfloat16", "jax bfloat16", in_bfloat16(ours)),
    "linen-bf16": System("flax linen bfloat16", "jax bfloat16", in_bfloat16(linen)),
    "torch-bf16": System("torch autocast", "torch bfloat16", torch_step(autocast=True, compiled=False)),
    "torch-compiled-bf16": System(
        "torch compiled autocast", "torch bfloat16", torch_step(autocast=True, compiled=True)
    ),
}


def main() -> None:
    arguments = parse()
    chosen = {key: SYSTEMS[key] for key in arguments.systems}
    if side_by_side.version_of("torch") is None and any(key.startswith("torch") for key in chosen):
        print("torch is not installed (pip install -e '.[peers]'): its systems are left out")
        chosen = {key: system for key, system in chosen.items() if not key.startswith("torch")}
    keep_freed_memory()  # as `transformer-jax train` does; it is the whole process's, so torch has it too
    # Only those that are used: without bfloat16 instructions a product of torch's in that type takes a minute.
    limits = side_by_side.limits(system.limit for system in chosen.values())
    print(f"{side_by_side.machine()}\n{limits}\n")
    print(f"{'model':<6}{'':<26}{'ms a step':>10}{'target tokens/s':>17}{'times ours':>12}{'limit':>8}")
    results = {}
    for name in arguments.models:
        work = WORKS[name].changed(arguments.vocabulary, arguments.rows, arguments.length)
        batch = work.batch()
        steps = {key: system.build(work.model, batch) for key, system in chosen.items()}
        results[name] = seconds = side_by_side.turn_by_turn(steps, arguments.rounds)
        show(name, work, seconds, limits)
    side_by_side.write_json(
        arguments.json, machine=side_by_side.machine(), limits=limits._asdict(), seconds=results, **vars(arguments)
    )


def show(name: str, work: Work, seconds: dict[str, list[float]], limits: side_by_side.Limits) -> None:
    """The table's lines of one model."""
    flops = training_flops(work.model, work.length, work.length).of(work.tokens, work.tokens)
    typical = side_by_side.medians(seconds)
    first = next(iter(typical.values()))
    for key, value in typical.items():
        share = flops / (value * limits.products[SYSTEMS[key].limit])
        print(
            f"{name:<6}{SYSTEMS[key].name:<26}{value * 1000:>10,.1f}{work.tokens / value:>17,.0f}{value / first:>12.2f}"
            f"{share:>8.0%}",
            flush=True,
        )
    print(f"{'':<6}{work.rows} x {work.length} tokens of each side\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names_among(WORKS), default=["base", "tiny"], metavar="base,big,tiny")
    parser.add_argument("--systems", type=names_among(SYSTEMS), default=list(SYSTEMS), metavar=",".join(SYSTEMS))
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def names_among(known: dict[str, Any]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(known)}")
        return text.split(",")

    return names


if __name__ == "__main__":
    main()
