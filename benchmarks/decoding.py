"""Sentences decoded per second by a base-size model with random weights, which always decodes to the limit.

python benchmarks/decoding.py [--tokens 24] [--vocabulary 11600] [--quick]

Every sentence has exactly as many output tokens as --tokens says, as long a source, and the usual room for 50 more.
CPU seconds are printed next to wall-clock seconds: on a shared machine they vary less.
"""

import argparse
import functools
import time
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax import ModelConfig, Transformer
from transformer_jax.config import DecodeConfig
from transformer_jax.translation.translate import Rows, search

EXTRA_LENGTH, REPEATS = 50, 3


class Case(NamedTuple):
    """A batch to decode."""

    sentences: int
    beam: int
    tokens: int


def seconds(model: ModelConfig, params: object, case: Case) -> tuple[float, float]:
    """Wall and CPU seconds of the fastest of some runs; compilation is not among them."""
    source_BS = np.random.default_rng(0).integers(4, model.vocab_size, (case.sentences, case.tokens))
    run = functools.partial(
        jax.jit(search, static_argnames=("model", "decode", "max_length")),
        params,
        Rows(source_BS.astype(np.int32), np.full(case.sentences, case.tokens, np.int32), np.arange(case.sentences)),
        model=model,
        decode=DecodeConfig(beam=case.beam, min_length=case.tokens),
        max_length=case.tokens + EXTRA_LENGTH,
    )
    found = jax.block_until_ready(run())
    assert (found.lengths_BN == case.tokens).all()
    walls, cpus = [], []
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(run())
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=11_600)
    parser.add_argument("--quick", action="store_true", help="beam 4 on 64 sentences, and nothing else")
    arguments = parser.parse_args()
    model = ModelConfig.base(vocab_size=arguments.vocabulary)
    tokens = np.ones((1, 2), np.int32)
    params = jax.jit(Transformer(model).init)(jax.random.key(0), tokens, tokens)["params"]
    usual = Case(sentences=64, beam=4, tokens=arguments.tokens)
    cases = {"beam 4": usual}
    if not arguments.quick:
        cases |= {"greedy": usual._replace(beam=1), "one sentence, beam 4": usual._replace(sentences=1)}
        cases |= {"one sentence, greedy": usual._replace(sentences=1, beam=1)}
        cases |= {f"beam {beam}": usual._replace(beam=beam) for beam in (2, 8, 16)}
        cases |= {f"{n} sentences": usual._replace(sentences=n) for n in (8, 16, 32, 128, 256)}
        cases |= {f"{n} tokens": usual._replace(tokens=n) for n in (12, 48, 96)}
    print(f"{'case':<24}{'sentences/s':>12}{'tokens/s':>10}{'seconds':>9}{'CPU s':>8}")
    for name, case in cases.items():
        wall, cpu = seconds(model, params, case)
        rate = case.sentences / wall
        print(f"{name:<24}{rate:>12.1f}{rate * case.tokens:>10,.0f}{wall:>9.2f}{cpu:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
