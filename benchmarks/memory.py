"""Peak memory of one training step, compared with flax linen's modules, from the compiled programs.

    python benchmarks/memory.py                          # base, 25k + 25k tokens in sentences of 32, 37,000 pieces
    python benchmarks/memory.py --tokens=1024 --length=64 --json FILE

The compiler's memory analysis for the available backend. "state" is parameters, Adam's two moments and the batch, the
inputs and outputs of the step; "temporary" is gradients, activations and logits. Compiling needs no more memory for
larger batches; the analysis differs between backends.
"""

import argparse
from pathlib import Path

import jax
import linen_model
import numpy as np
import side_by_side

from transformer_jax import ModelConfig
from transformer_jax.config import ExperimentConfig
from transformer_jax.planning.compiled import CompiledMemory, compiled_step, memory

MODELS = {"base": ModelConfig.base, "big": ModelConfig.big, "tiny": ModelConfig.tiny}


def linen_step(config: ModelConfig, rows: int, length: int) -> jax.stages.Compiled:
    new_state, step = linen_model.make_step(config)
    tokens = jax.ShapeDtypeStruct((rows, length), np.int32)
    return step.lower(jax.eval_shape(new_state), tokens, tokens, tokens).compile()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["base"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tokens", type=int, default=25_000, help="of each side")
    parser.add_argument("--length", type=int, default=32, help="tokens of a sentence")
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    rows = arguments.tokens // arguments.length
    print(f"{side_by_side.machine()}; by the compiler of the backend {jax.default_backend()!r}")
    print(f"{rows} x {arguments.length} tokens of each side, {arguments.vocabulary:,} pieces, {arguments.dtype}\n")
    print(f"{'model':<6}{'':<18}{'state':>10}{'temporary':>12}{'peak':>10}")
    results = {}
    for name in arguments.models:
        config = MODELS[name](arguments.vocabulary, dropout=0.1, dtype=arguments.dtype)
        experiment = ExperimentConfig(model=config)
        found = {
            "transformer_jax": memory(compiled_step(experiment, rows, arguments.length, arguments.length)),
            "flax linen": memory(linen_step(config, rows, arguments.length)),
        }
        for system, needed in found.items():
            cells = "".join(
                f"{size / 1e9:>{width}.2f} GB" for size, width in zip((*needed, needed.peak), (7, 9, 7), strict=True)
            )
            print(f"{name:<6}{system:<18}{cells}")
        print(f"{'':<6}{1 - found['transformer_jax'].peak / found['flax linen'].peak:.0%} less\n")
        results[name] = {system: CompiledMemory._asdict(needed) for system, needed in found.items()}
    side_by_side.write_json(arguments.json, machine=side_by_side.machine(), memory=results, **vars(arguments))


if __name__ == "__main__":
    main()
