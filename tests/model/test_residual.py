"""Where norms and dropout are in each kind of residual connection, and DeepNorm's scaling with depth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, assert_close, small
from transformer_jax import Transformer
from transformer_jax.config import PartsConfig
from transformer_jax.errors import BadInput
from transformer_jax.model.layers import EncoderLayer, attention_of, feed_forward_of
from transformer_jax.model.residual import Residual

X_BTD = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 8)), jnp.float32)


def standardised(x):
    """Layer normalisation before its scale and bias."""
    x = np.asarray(x, np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def test_post_norm_normalises_the_sum():
    """Section 3.1: LayerNorm(x + Sublayer(x))."""
    residual = Residual(small(norm="post"))
    variables = residual.init(jax.random.key(0), X_BTD, X_BTD, True, method="leave")
    assert_close(residual.apply(variables, X_BTD, method="enter"), X_BTD, within=0)
    assert_close(residual.apply(variables, X_BTD, X_BTD**2, True, method="leave"), standardised(X_BTD + X_BTD**2))


def test_pre_norm_normalises_what_enters_and_leaves_the_sum_alone():
    residual = Residual(small(norm="pre"))
    variables = residual.init(jax.random.key(0), X_BTD, method="enter")
    assert_close(residual.apply(variables, X_BTD, method="enter"), standardised(X_BTD))
    assert_close(residual.apply(variables, X_BTD, X_BTD**2, True, method="leave"), X_BTD + X_BTD**2, within=0)


def test_dropout_falls_on_the_sublayer_and_not_on_the_residual():
    """Section 5.4: "to the output of each sub-layer, before it is added to the sub-layer input and normalized"."""
    residual = Residual(small(norm="pre", dropout=0.5))
    variables = residual.init(jax.random.key(0), X_BTD, method="enter")
    added = residual.apply(
        variables, X_BTD, jnp.ones_like(X_BTD), False, method="leave", rngs={"dropout": jax.random.key(0)}
    )
    difference = np.unique(np.round(np.asarray(added - X_BTD), 4))
    np.testing.assert_allclose(difference, [0, 2], atol=1e-4)


def test_the_norms_epsilon_is_the_configs():
    residual = Residual(small(norm="post", norm_epsilon=1.0))
    variables = residual.init(jax.random.key(0), X_BTD, X_BTD, True, method="leave")
    x = np.asarray(X_BTD, np.float64)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1.0)
    assert_close(residual.apply(variables, X_BTD, jnp.zeros_like(X_BTD), True, method="leave"), expected)


def applied(config, stack, sublayer):
    """x through one residual connection around `sublayer`, as a new model has it."""

    def through(residual, x_BTD):
        return residual.leave(x_BTD, sublayer(residual.enter(x_BTD)), True)

    residual = Residual(config, stack)
    variables = residual.init(jax.random.key(0), X_BTD, method=through)
    return residual.apply(variables, X_BTD, method=through)


def test_sandwich_normalises_what_enters_and_what_the_sublayer_returns():
    """Ding et al. 2021: x + LN(Sublayer(LN(x))), so that no branch grows with depth."""
    x = np.float64(X_BTD)
    assert_close(applied(small(norm="sandwich"), None, jnp.exp), x + standardised(np.exp(standardised(x))))


def test_sandwich_drops_before_the_second_norm():
    """As CogView's code does: dropout is the end of the sub-layer. After the norm the mean would not be zero."""
    residual = Residual(small(norm="sandwich", dropout=0.5))
    variables = residual.init(jax.random.key(0), X_BTD, X_BTD, True, method="leave")
    rngs = {"dropout": jax.random.key(0)}
    added = residual.apply(variables, jnp.zeros_like(X_BTD), X_BTD, False, method="leave", rngs=rngs)
    np.testing.assert_allclose(added.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(added.std(-1), 1, rtol=1e-4)


# Wang et al. 2022, figure 2, for encoder-decoder models of N and M layers: alpha and beta.
N, M = 3, 5
DEEPNORM = {
    "encoder": (0.81 * (N**4 * M) ** (1 / 16), 0.87 * (N**4 * M) ** (-1 / 16)),
    "decoder": ((3 * M) ** (1 / 4), (12 * M) ** (-1 / 4)),
}


@pytest.mark.parametrize("stack", DEEPNORM)
def test_deepnorm_scales_x_in_the_sum(stack):
    config = small(norm="deepnorm", num_encoder_layers=N, num_decoder_layers=M)
    x = np.float64(X_BTD)
    assert_close(applied(config, stack, jnp.exp), standardised(DEEPNORM[stack][0] * x + np.exp(x)))


def test_deepnorm_scales_the_initial_feed_forward_value_and_output_weights():
    def initial(norm):
        model = Transformer(small(norm=norm, num_encoder_layers=N, num_decoder_layers=M))
        return jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET)["params"]

    deepnorm, post = initial("deepnorm"), initial("post")
    for stack, (_, beta) in DEEPNORM.items():
        for (path, scaled), plain in zip(
            jax.tree_util.tree_leaves_with_path(deepnorm[stack]), jax.tree.leaves(post[stack]), strict=True
        ):
            gain = beta if path[-2].key in ("value", "output", "inner", "outer") else 1.0
            np.testing.assert_allclose(scaled, gain * plain, rtol=1e-5, err_msg=str(path))


def test_deepnorm_refuses_custom_layers_that_do_not_say_where_they_are():
    class Mine(EncoderLayer):
        def make_residual(self):
            return Residual(self.config)

    config = small(norm="deepnorm", parts=PartsConfig(encoder_layer=Mine))
    told = "norm = deepnorm scales the encoder and the decoder differently: .* Residual.config, 'encoder'"
    with pytest.raises(BadInput, match=told):
        jax.eval_shape(Transformer(config).init, jax.random.key(0), SOURCE, TARGET)
    for function in (attention_of, feed_forward_of):
        with pytest.raises(BadInput, match=told):
            function(config)
