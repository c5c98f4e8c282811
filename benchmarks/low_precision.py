"""Are bfloat16 or int8 weights faster in decoding? The products of a base model's decoding step in each format.

python benchmarks/low_precision.py [--rounds 7]

A step multiplies few rows (the beams of all sentences) by many weights. `int8 weights` turns stored integers into
float32 first, `int8 products` multiplies integers by integers and scales the result.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from side_by_side import machine, medians, turn_by_turn

# Rows of a decoder's step: one sentence greedily and with beam 4, 64 sentences with beam 4.
ROWS = (1, 4, 256)
# A base model's feed-forward, attention and output products of one layer or vocabulary: inputs x outputs.
PRODUCTS = ((512, 2048), (2048, 512), (512, 512), (512, 37_000))
LAYERS = 6  # different weights in turn, as in a model: one alone would stay in the cache


def scaled(weights: Array) -> tuple[Array, Array]:
    """The nearest int8 weights, and the scale of each output."""
    scales = jnp.max(jnp.abs(weights), axis=0, keepdims=True) / 127
    return jnp.round(weights / scales).astype(jnp.int8), scales


def in_float32(x: Array, weights: Array) -> Array:
    return x @ weights


def in_bfloat16(x: Array, weights: Array) -> Array:
    return jnp.matmul(x.astype(jnp.bfloat16), weights, preferred_element_type=jnp.float32)


def bfloat16_weights(x: Array, weights: Array) -> Array:
    return x @ weights.astype(jnp.float32)


def int8_weights(x: Array, weights: tuple[Array, Array]) -> Array:
    integers, scales = weights
    return (x @ integers.astype(jnp.float32)) * scales


def int8_products(x: Array, weights: tuple[Array, Array]) -> Array:
    integers, scales = weights
    size = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 127
    rounded = jnp.round(x / size).astype(jnp.int8)
    sums = lax.dot_general(rounded, integers, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return sums.astype(jnp.float32) * size * scales


FORMS: dict[str, tuple[Callable[[Array], object], Callable[..., Array]]] = {
    "float32": (lambda weights: weights, in_float32),
    "bfloat16": (lambda weights: weights.astype(jnp.bfloat16), in_bfloat16),
    "bfloat16 weights": (lambda weights: weights.astype(jnp.bfloat16), bfloat16_weights),
    "int8 weights": (scaled, int8_weights),
    "int8 products": (scaled, int8_products),
}


def systems(rows: int, inner: int, outer: int) -> dict[str, Callable[[], object]]:
    """Each form's product with all layers' weights; all must agree with float32 as far as their digits go."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(rows, inner)), jnp.float32)
    matrices = [jnp.asarray(rng.normal(size=(inner, outer)), jnp.float32) for _ in range(LAYERS)]
    exact, made = x @ matrices[0], {}
    for name, (store, multiply) in FORMS.items():
        stored, product = [store(matrix) for matrix in matrices], jax.jit(multiply)
        error = float(jnp.max(jnp.abs(product(x, stored[0]) - exact)) / jnp.max(jnp.abs(exact)))
        assert error < 0.05, f"{name} is no product of these: off by {error:.0%}"
        made[name] = lambda product=product, stored=stored: jax.block_until_ready([product(x, one) for one in stored])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{machine()}\nmedians of {arguments.rounds} rounds, ms for {LAYERS} products\n")
    print(f"{'rows x inputs x outputs':<26}" + "".join(f"{name:>18}" for name in FORMS))
    for rows in ROWS:
        for inner, outer in PRODUCTS:
            middle = medians(turn_by_turn(systems(rows, inner, outer), arguments.rounds))
            cells = "".join(f"{1000 * seconds:>18.2f}" for seconds in middle.values())
            print(f"{f'{rows} x {inner} x {outer}':<26}{cells}", flush=True)


if __name__ == "__main__":
    main()
