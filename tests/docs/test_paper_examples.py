"""The worked examples that textbooks print, each from the library's own public functions."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import (
    ModelConfig,
    Transformer,
    causal_mask,
    scaled_dot_product_attention,
    sinusoidal_positions,
)


def shown_weights(module, *arguments, **options):
    """A module's output and the attention weights it asks for, at its initial parameters."""
    variables = module.init(jax.random.key(0), *arguments, **options)
    output, shown = module.apply(variables, *arguments, **options, mutable=["intermediates"])
    return output, shown["intermediates"]


def test_i_am_a_student():
    """A query against four words, dot product without scaling: scores .4 .2 .3 .3, weights .28 .23 .25 .25."""
    query = jnp.array([0.1, 0.2, 0.3])[None, None, None]
    words = jnp.array([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]], jnp.float32)[None, :, None]
    context, weights = scaled_dot_product_attention(query, words, words, scale=1.0)
    rounded = np.round(np.asarray(weights[0, 0, 0], np.float64), 2)
    np.testing.assert_array_equal(rounded, [0.28, 0.23, 0.25, 0.25])
    np.testing.assert_allclose(context[0, 0, 0], [0.525, 0.475, 0.525], atol=5e-4)
    np.testing.assert_allclose(rounded @ words[0, :, 0], [0.53, 0.48, 0.53], atol=1e-6)
    scores = np.log(weights[0, 0, 0] / weights[0, 0, 0, 1]) + 0.2
    np.testing.assert_allclose(scores, [0.4, 0.2, 0.3, 0.3], rtol=1e-5)


def test_three_attentions_and_their_masks():
    """Encoder self: padding. Decoder self: look-ahead and padding. Encoder-decoder: padding of the *source*."""
    source, target = jnp.array([[5, 6, 7, 0, 0]]), jnp.array([[1, 8, 9, 0]])
    config = ModelConfig(vocab_size=10, num_encoder_layers=1, num_decoder_layers=1, d_model=8, d_ff=8, num_heads=2)
    _, shown = shown_weights(Transformer(config), source, target)
    encoder, decoder = shown["encoder"]["layers_0"], shown["decoder"]["layers_0"]
    real_source = jnp.array([True, True, True, False, False])
    expected = {
        "encoder self": (encoder["self_attention"], jnp.broadcast_to(real_source, (5, 5))),
        "decoder self": (decoder["self_attention"], causal_mask(4)[0, 0] & (target != 0)),
        "encoder-decoder": (decoder["cross_attention"], jnp.broadcast_to(real_source, (4, 5))),
    }
    for name, (attention, seen_TS) in expected.items():
        np.testing.assert_array_equal(attention["weights"][0][0, 0] > 0, seen_TS, err_msg=name)


def test_fifty_positions_of_128_dimensions():
    """The heat map's array: sine 0 and cosine 1 at the start, first columns fast, last ones slow."""
    table = np.asarray(sinusoidal_positions(50, 128))
    assert table.shape == (50, 128)
    np.testing.assert_array_equal(table[0], [0, 1] * 64)
    np.testing.assert_allclose(table[1, :2], [np.sin(1), np.cos(1)], rtol=1e-6)
    turns = (np.diff(np.sign(table), axis=0) != 0).sum(axis=0)
    assert turns[0] == 16 and turns[-1] == 0, "sin(pos) changes sign every pi positions"
