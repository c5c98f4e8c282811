"""Which position encoding is best, and which work on sentences longer than any in training?

    transformer-jax sweep experiments/positions.py --scale=demo --workdir=runs/positions --jobs=2 --together=3
    transformer-jax report runs/positions

The library's eight position encodings, and two that readers of the paper ask about: sinusoids concatenated with
the embedding instead of added to it, and the position as one number between 0 and 1. Both are classes in this
file, used as custom modules (docs/parts.md).

At demo scale each run is measured on three sets: `test`, sentences as long as in training (at most 24 words);
`test_long`, of 25 to 60 words; `test_compositional`, words in constructions in which they do not occur in
training. Expected: little difference on `test`, a large one on `test_long`, where encodings of the *distance* between
two words see mostly known distances, and encodings of the absolute *position* see positions never trained.

At demo scale 27 runs (9 variants, all but transformer_xl; three seeds) took 37 minutes on two busy CPU cores,
with --jobs=2 --together=3.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.extension import load_module
from transformer_jax.model.positions import ENCODINGS, Positions, sinusoid
from transformer_jax.model_config import ModelConfig
from transformer_jax.sweeps import Sweep, Variant

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.SCALES
REMARKS = {
    "learned": "its table is long enough, but rows beyond the longest training sentence are never trained",
    "none": "the decoder still sees an order: each word attends to those before it only",
    "relative": "distances beyond 16 are all the same to it",
    "transformer_xl": "sinusoids of the distance, which has no limit",
    "t5": "distances share ever wider buckets",
    "alibi": "no parameters: attention falls with distance",
}


class Concatenated(Positions):
    """Sinusoids concatenated with the embedding: the last quarter of the vector encodes the position, and nothing else.

    (A layer that mixed both halves down to d_model again would be a sum of two matrix products: the paper's sum, with
    the positions multiplied by a matrix first.)
    """

    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        width = x_BTD.shape[-1] // 8 * 2  # even: sines and cosines come in pairs
        encoding_BTP = sinusoid(positions_BT, width).astype(x_BTD.dtype)
        encoding_BTP = jnp.broadcast_to(encoding_BTP, (*x_BTD.shape[:2], width))
        return jnp.concatenate([x_BTD[..., :-width], encoding_BTP], axis=-1)


class Fraction(Positions):
    """The position as one number from 0 to 1, position / max_length, along one trained direction."""

    max_length: int

    @classmethod
    def from_config(cls, config: ModelConfig, causal: bool) -> Positions:
        return cls(config.max_length)

    @nn.compact
    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        direction_D = self.param("direction", nn.initializers.normal(1.0), (x_BTD.shape[-1],))
        fraction_BT1 = (positions_BT / self.max_length)[..., None]
        return x_BTD + (fraction_BT1 * direction_D[None, None]).astype(x_BTD.dtype)


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    if scale == "demo":
        base.train.steps = (
            600  # a third longer than elsewhere: a model that fails on `test` says nothing about `test_long`
        )
    return Sweep(
        name="positions",
        question="Which position encoding is best, and which work on sentences longer than in training?",
        base=base,
        variants=[
            *(
                Variant(kind, {"model.positions": kind} if kind != "sinusoidal" else {}, note=REMARKS.get(kind, ""))
                for kind in ENCODINGS
            ),
            Variant(
                "concatenated",
                {"model.parts.positions": bases.own(__file__, "Concatenated")},
                note="sinusoids in the last quarter of the vector, in place of being added to all of it",
            ),
            Variant(
                "fraction",
                {"model.parts.positions": bases.own(__file__, "Fraction")},
                note=f"position / {base.model.max_length} along one trained direction: neighbours differ by little",
            ),
        ],
        baseline="sinusoidal",
        tests=("test", "test_long", "test_compositional") if scale == "demo" else ("test",),
        notes=(
            f"learned has a table of {base.model.max_length} rows, long enough for every test, but its far rows are as "
            "they were at the start: training has no sentence that would move them.",
            "concatenated and fraction are custom modules in experiments/positions.py, not part of the library.",
        ),
    )
