"""What one training step needs, compared with flax linen's modules, from the compiled programs.

    python benchmarks/memory.py                          # base, 25k + 25k tokens in sentences of 32, 37,000 pieces
    python benchmarks/memory.py --tokens=1024 --length=64 --json FILE
    python benchmarks/memory.py --compile-for=v5e:2x4 --dtype=bfloat16     # for devices that need not be there

The compiler's memory analysis for the backend, or for each device of those given. "state" is parameters, Adam's two
moments and the batch, the inputs and outputs of the step; "temporary" is gradients, activations and logits. With
--compile-for also the memory traffic (docs/accelerators.md); nothing is run in either case.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import linen_model
import numpy as np
import side_by_side
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import ModelConfig
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.buckets import Shape
from transformer_jax.planning import CompiledMemory, Target, compile_for, here, memory, parse_target
from transformer_jax.update import sharding

sys.path.append(str(Path(__file__).parents[1]))
from tests.accelerators.traffic import Traffic

MODELS = {"base": ModelConfig.base, "big": ModelConfig.big, "tiny": ModelConfig.tiny}


def linen_step(config: ModelConfig, mesh: Mesh, shape: tuple[int, int], target: Target) -> jax.stages.Compiled:
    """The parameters everywhere, the batch divided among the devices."""
    new_state, step = linen_model.make_step(config)
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), jax.eval_shape(new_state)
    )
    tokens = jax.ShapeDtypeStruct(shape, np.int32, sharding=sharding.batch_sharding(mesh))
    traced: Any = step.trace(state, tokens, tokens, tokens)
    return traced.lower(lowering_platforms=target.platforms).compile(compiler_options=target.options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["base"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tokens", type=int, default=25_000, help="of each side")
    parser.add_argument("--length", type=int, default=32, help="tokens of a sentence")
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--compile-for", type=parse_target, metavar="DEVICES", help="as of transformer-jax inspect")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    target = arguments.compile_for or here()
    rows = arguments.tokens // arguments.length
    print(f"{side_by_side.machine()}; for {target.name}")
    print(f"{rows} x {arguments.length} tokens of each side, {arguments.vocabulary:,} pieces, {arguments.dtype}\n")
    print(
        f"{'model':<6}{'':<18}{'state':>10}{'temporary':>12}{'peak':>10}"
        + ("   traffic" if arguments.compile_for else "")
    )
    results = {}
    for name in arguments.models:
        experiment = ExperimentConfig(model=MODELS[name](arguments.vocabulary, dropout=0.1, dtype=arguments.dtype))
        ours = compile_for(experiment, target, shape=Shape(rows, arguments.length, arguments.length))
        programs = {
            "transformer_jax": ours.program,
            "flax linen": linen_step(experiment.model, ours.mesh, (rows, arguments.length), target),
        }
        found = {system: memory(program) for system, program in programs.items()}
        traffic = {
            system: sum(Traffic(str(program.as_text())).accesses().values()) if arguments.compile_for else None
            for system, program in programs.items()
        }
        for system, needed in found.items():
            cells = "".join(
                f"{size / 1e9:>{width}.2f} GB" for size, width in zip((*needed, needed.peak), (7, 9, 7), strict=True)
            )
            accessed = traffic[system]
            print(f"{name:<6}{system:<18}{cells}" + ("" if accessed is None else f"{accessed / 1e9:>7.1f} GB"))
        print(f"{'':<6}{1 - found['transformer_jax'].peak / found['flax linen'].peak:.0%} less memory\n")
        results[name] = {
            system: CompiledMemory._asdict(needed) | {"traffic": traffic[system]} for system, needed in found.items()
        }
    options = vars(arguments) | {"compile_for": arguments.compile_for and target.name}
    side_by_side.write_json(arguments.json, machine=side_by_side.machine(), memory=results, **options)


if __name__ == "__main__":
    main()
