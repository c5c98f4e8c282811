"""The model against torch's own layers: logits and every gradient, as golden values (tests/golden says how made)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.support.places import GOLDEN
from transformer_jax import ModelConfig, MultiHeadAttention, Transformer

WITHIN = 1e-5  # of max|a - b| / max|b|, each tensor for itself
CASES = {
    "post_relu": {},  # the paper's
    "post_gelu_bias": {"activation": "gelu", "attention_bias": True},
    "pre_relu_bias": {"norm": "pre", "attention_bias": True},
    "pre_gelu": {"norm": "pre", "activation": "gelu"},
}


def golden(name):
    """The stored arrays, with the weights nested as flax wants them and the gradients by name."""
    with np.load(GOLDEN / f"torch_{name}.npz") as file:
        stored = {key: jnp.asarray(file[key]) for key in file.files}
    weights, gradients = (
        {key.removeprefix(kind): array for key, array in stored.items() if key.startswith(kind)}
        for kind in ("weights/", "gradients/")
    )
    return stored, traverse_util.unflatten_dict(weights, sep="/"), gradients


def difference(ours, theirs):
    assert ours.shape == theirs.shape
    return float(jnp.abs(ours - theirs).max() / jnp.abs(theirs).max())


def worst(ours, theirs):
    """The largest difference of all gradients, tensor by tensor.

    A bias of the keys moves all scores of a row alike, which the softmax undoes: its gradient is zero but for rounding,
    and is held to be nothing beside that of the queries' bias.
    """
    assert ours.keys() == theirs.keys()
    differences = {}
    for name, array in theirs.items():
        if name.endswith("key/bias"):
            beside = jnp.abs(theirs[name.replace("key", "query")]).max()
            differences[name] = float(jnp.abs(ours[name]).max() / beside)
        else:
            differences[name] = difference(ours[name], array)
    return max((value, name) for name, value in differences.items())


@pytest.mark.parametrize("name", CASES)
def test_encoder_and_decoder_equal_torchs(name):
    stored, weights, theirs = golden(name)
    size = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 4}
    model = Transformer(ModelConfig(vocab_size=17, **size, **CASES[name]))

    @jax.jit
    def run(weights):
        logits, pull_back = jax.vjp(lambda weights: model.apply(weights, stored["source"], stored["target"]), weights)
        return logits, pull_back(stored["cotangent"])[0]

    logits, gradients = run({"params": weights})
    ours = traverse_util.flatten_dict(gradients["params"], sep="/")
    assert difference(logits, stored["logits"]) < WITHIN
    assert worst(ours, theirs) < (WITHIN,)


def test_attention_alone_equals_torchs():
    stored, weights, theirs = golden("attention")
    attention = MultiHeadAttention(num_heads=4, use_bias=True)

    def run(weights):
        variables, query, memory = {"params": weights["module"]}, weights["query"], weights["memory"]
        return attention.apply(variables, query, memory, stored["mask"], mutable=["intermediates"])

    output, pull_back, shown = jax.vjp(run, weights, has_aux=True)
    ours = traverse_util.flatten_dict(pull_back(stored["cotangent"])[0], sep="/")
    assert difference(output, stored["output"]) < WITHIN
    assert difference(shown["intermediates"]["weights"][0], stored["attention"]) < WITHIN
    assert worst(ours, theirs) < (WITHIN,)
