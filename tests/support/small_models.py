"""What the tests of the model share: small models, and two sentence pairs of always the same shapes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import ModelConfig, Transformer
from transformer_jax.model.positions import ENCODINGS

VOCABULARY = 20
# Each token stands in one place only, so that the gradient of its embedding is that of its place. 0 is padding.
SOURCE = np.array([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]])
TARGET = np.array([[11, 12, 13, 14], [15, 16, 17, 0]])


# One encoding added to the embeddings, two inside of attention; ATTENTION has rotary. The others are the long form.
FEW_ENCODINGS = ("sinusoidal", "relative", "transformer_xl")


def with_drills(encodings, *values):
    return pytest.param(*values, marks=() if set(FEW_ENCODINGS) & {*encodings} else pytest.mark.drill)


every_encoding = pytest.mark.parametrize("positions", [with_drills([each], each) for each in ENCODINGS])
NORMS = ["post", "pre", "sandwich", "deepnorm"]
every_norm = pytest.mark.parametrize("norm", NORMS)
# All of attention's options at once, with an encoding that acts after the norm of queries and keys.
ATTENTION = {"num_key_value_heads": 1, "qk_norm": True, "attention_softcap": 2.0, "positions": "rotary"}
# Neither depends on the other: each encoding has one of the norms.
every_architecture = pytest.mark.parametrize(
    "changes",
    [
        *(
            with_drills([positions], {"positions": positions, "norm": norm})
            for positions, norm in zip(ENCODINGS, itertools.cycle(NORMS), strict=False)
        ),
        {**ATTENTION, "norm": "pre"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)


def small(**changes):
    """A layer each of width 8; d_k and d_v are neither equal nor d_model / num_heads."""
    size = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "d_ff": 12, "num_heads": 2}
    return ModelConfig(**{"vocab_size": VOCABULARY, **size, "d_k": 6, "d_v": 4, "max_length": 16, **changes})


@functools.cache
def built(**changes):
    """A model and its variables."""
    model = Transformer(small(**changes))
    return model, numbers_for(jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET))


@functools.partial(jax.jit, static_argnames=("module", "method", "mutable"))
def applied(module, variables, *inputs, method=None, mutable=False, **options):
    """`module.apply`, compiled: a fifth of the time of its operations one by one."""
    return module.apply(variables, *inputs, method=method, mutable=mutable, **options)


def numbers_for(shapes):
    """Random variables, all away from their initial values, so that no bias, scale or table is idle."""
    random = np.random.default_rng(0)

    def of(path, leaf):
        neutral = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(neutral + 0.4 * random.normal(size=leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(of, shapes)


def variables_of(module, *inputs):
    return numbers_for(jax.eval_shape(lambda key: module.init(key, *inputs), jax.random.key(0)))


def assert_close(ours, theirs, within=1e-5):
    """Equal but for rounding: max|a - b| at most so much of max|b|."""
    ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= within * max(np.abs(theirs).max(), 1e-30)
