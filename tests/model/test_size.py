"""Parameter counts and FLOPs: the closed formulas against the model as it is built and compiled."""

import jax
import jax.numpy as jnp
import pytest

from tests.support.small_models import small
from transformer_jax import ModelConfig, Transformer
from transformer_jax.model.size import forward_flops, parameter_counts, training_flops

TOKENS = jnp.ones((1, 2), jnp.int32)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_encoder_layers": 3, "positions": "relative", "norm": "pre", "output_bias": True},
        {"num_encoder_layers": 3, "positions": "t5", "share_layers": True, "tie_embeddings": "none"},
    ],
    ids=str,
)
def test_parameter_counts_are_those_of_the_built_model(changes):
    config = small(**changes, num_decoder_layers=2)
    params = jax.eval_shape(Transformer(config).init, jax.random.key(0), TOKENS, TOKENS)["params"]
    counts = dict.fromkeys(("embeddings", "encoder", "decoder", "positions"), 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [key.key for key in path]
        group = "embeddings" if names[0].endswith(("embedding", "output_bias")) else names[0]
        counts["positions" if "positions_" in "/".join(names) else group] += leaf.size
    assert parameter_counts(config) == counts


def test_base_has_the_parameters_of_table_3():
    counts = parameter_counts(ModelConfig.base())
    layer = 4 * 512 * 512  # of one attention
    feed_forward, norm = 2 * 512 * 2048 + 2048 + 512, 2 * 512
    assert counts == {
        "embeddings": 37_000 * 512,
        "encoder": 6 * (layer + feed_forward + 2 * norm),
        "decoder": 6 * (2 * layer + feed_forward + 3 * norm),
        "positions": 0,
    }


SIZE = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4, "d_k": 48}


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "relative", "activation": "swiglu", "gated_width": "two_thirds"},
        {"num_key_value_heads": 1, "positions": "transformer_xl"},
        {"positions": "relative", "window": 4},
        {"positions": "transformer_xl", "window": 4},
    ],
    ids=str,
)
def test_flops_are_those_of_the_compiled_model_and_its_gradient(changes):
    """Within 4 and 6 %: XLA also counts norms, softmax and sums, which the formula leaves out."""
    config = ModelConfig(vocab_size=1000, **SIZE, **changes)
    source, target = jnp.ones((4, 24), jnp.int32), jnp.ones((4, 16), jnp.int32)
    model = Transformer(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS, TOKENS)

    def operations(function):
        return jax.jit(function).lower(shapes).compile().cost_analysis()["flops"]

    def forward(variables):
        return model.apply(variables, source, target)

    formulas = [flops(config, 24, 16).of(source.size, target.size) for flops in (forward_flops, training_flops)]
    assert 1.0 <= operations(forward) / formulas[0] < 1.04
    assert 0.96 < operations(jax.grad(lambda variables: (forward(variables) ** 2).sum())) / formulas[1] < 1.06
