"""Parameter counts and FLOPs: the closed formulas against the model as it is built and compiled."""

import jax
import jax.numpy as jnp
import pytest

from tests.support.small_models import every_encoding, small
from transformer_jax import ModelConfig, Transformer
from transformer_jax.model.size import Flops, forward_flops, parameter_counts, training_flops

TOKENS = jnp.ones((1, 2), jnp.int32)


def built_counts(config):
    """The same groups, from the shapes of the model itself."""
    params = jax.eval_shape(Transformer(config).init, jax.random.key(0), TOKENS, TOKENS)["params"]
    groups = dict.fromkeys(("embeddings", "encoder", "decoder", "positions"), 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [key.key for key in path]
        group = "embeddings" if names[0].endswith(("embedding", "output_bias")) else names[0]
        groups["positions" if names[-2:][0].startswith("positions") else group] += leaf.size
    return groups


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"norm": "sandwich", "norm_kind": "rms"},
        {"norm": "deepnorm"},
        {"share_layers": True, "num_encoder_layers": 3, "num_decoder_layers": 2, "norm": "pre"},
        {"share_layers": True, "num_encoder_layers": 3, "positions": "relative"},
        {"activation": "swiglu"},
        {"activation": "geglu", "ffn_bias": False},
        {"activation": "glu", "gated_width": "two_thirds", "d_ff": 20},
        {"attention_bias": True},
        {"attention_bias": True, "num_key_value_heads": 1, "qk_norm": True, "norm_kind": "rms"},
        {"output_bias": True},
        {"output_bias": True, "tie_embeddings": "target", "target_vocab_size": 31},
        {"tie_embeddings": "target", "target_vocab_size": 31},
        {"tie_embeddings": "none", "target_vocab_size": 31},
        {"num_encoder_layers": 3, "num_decoder_layers": 1},
    ],
    ids=str,
)
def test_parameter_counts_are_those_of_the_built_model(changes):
    assert parameter_counts(small(**changes)) == built_counts(small(**changes))


def test_a_gated_layer_of_two_thirds_has_the_weights_of_one_without_a_gate():
    plain, gated = (
        sum(parameter_counts(ModelConfig.base(d_ff=3072, ffn_bias=False, **changes)).values())
        for changes in ({}, {"activation": "swiglu", "gated_width": "two_thirds"})
    )
    assert plain == gated
    assert [small(d_ff=d_ff, activation="glu", gated_width="two_thirds").inner_width for d_ff in (1, 4, 5)] == [1, 3, 3]
    assert small(d_ff=6, gated_width="two_thirds").inner_width == 6  # without a gate it has no effect


@every_encoding
def test_parameters_of_positions_are_counted(positions):
    assert parameter_counts(small(positions=positions)) == built_counts(small(positions=positions))


SIZE = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4, "d_k": 48}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "relative", "activation": "swiglu", "gated_width": "two_thirds"},
        {"num_key_value_heads": 1, "positions": "transformer_xl"},
        {"num_key_value_heads": 2, "norm": "sandwich", "norm_kind": "rms"},
    ],
    ids=str,
)
def test_forward_flops_are_those_of_the_compiled_model(changes):
    """Within 4 %: XLA also counts norms, softmax and sums, which the formula leaves out."""
    config = ModelConfig(vocab_size=1000, **SIZE, **changes)
    source, target = jnp.ones((4, 24), jnp.int32), jnp.ones((4, 16), jnp.int32)
    model = Transformer(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS, TOKENS)
    compiled = jax.jit(model.apply).lower(shapes, source, target).compile()
    formula = forward_flops(config, 24, 16).of(source.size, target.size)
    assert 1.0 <= compiled.cost_analysis()["flops"] / formula < 1.04


def test_training_is_three_forward_passes():
    """The backward pass of a compiled model, held to the formula as above."""
    config = ModelConfig(vocab_size=1000, **SIZE)
    source, target = jnp.ones((4, 24), jnp.int32), jnp.ones((4, 16), jnp.int32)
    model = Transformer(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS, TOKENS)
    step = jax.jit(jax.grad(lambda variables: (model.apply(variables, source, target) ** 2).sum()))
    flops = step.lower(shapes).compile().cost_analysis()["flops"]
    formula = training_flops(config, 24, 16).of(source.size, target.size)
    assert 0.96 < flops / formula < 1.06


def test_base_costs_about_two_operations_a_parameter_and_token():
    """A rule of thumb that others quote: 2 x parameters, a little more for attention's scores."""
    config = ModelConfig.base()
    flops, counts = forward_flops(config, 32, 32), parameter_counts(config)
    pair = flops.of(1, 1) / 2 / sum(counts.values())
    assert 0.95 < pair < 1.1
    assert Flops(2.0, 3.0).of(10, 100) == 320
