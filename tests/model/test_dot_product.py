"""Equation 1 against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import scaled_dot_product_attention

B, T, S, H, K, V = 2, 3, 4, 4, 6, 5


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


Q_BTHK, K_BSHK, V_BSHV = drawn(B, T, H, K), drawn(B, S, H, K), drawn(B, S, H, V)
MASK = jnp.asarray(np.random.default_rng(1).random((B, H, T, S)) < 0.6).at[..., 0].set(True)


def by_loop(mask=None, bias=None, scale=K**-0.5, softcap=None, groups=H):
    """Equation 1, one query of one head of one sentence at a time, in float64. `groups`: heads of keys."""
    q, k, v = (np.asarray(array, np.float64) for array in (Q_BTHK, K_BSHK, V_BSHV))
    output, weights = np.zeros((B, T, H, V)), np.zeros((B, H, T, S))
    for b, h, t in np.ndindex(B, H, T):
        g = h // (H // groups)
        scores = np.array([q[b, t, h] @ k[b, s, g] * scale for s in range(S)])
        scores = scores if bias is None else scores + np.asarray(bias)[b, h, t]
        scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
        powers = np.exp(scores) * (1 if mask is None else np.asarray(mask)[b, h, t])
        weights[b, h, t] = powers / powers.sum()
        output[b, t, h] = sum(weights[b, h, t, s] * v[b, s, g] for s in range(S))
    return output, weights


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": MASK},
        {"bias": drawn(B, H, T, S, seed=2)},
        {"scale": 1.0},
        {"mask": MASK, "scale": 0.2},
        {"mask": MASK, "bias": drawn(B, H, T, S, seed=2), "softcap": 0.5},
        {"mask": MASK, "groups": 2},
        {"groups": 1},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_the_formula_equals_a_loop(options):
    given = dict(options)
    shared = slice(given.pop("groups", H))
    ours = scaled_dot_product_attention(Q_BTHK, K_BSHK[:, :, shared], V_BSHV[:, :, shared], **given)
    expected = by_loop(**options)
    for array, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("given", [MASK.astype(int), np.asarray(MASK), MASK[:1, :1], MASK[:, :, :1, :1]])
def test_a_mask_may_be_ones_and_zeros_or_the_same_for_all_of_an_axis(given):
    told = jnp.broadcast_to(given, MASK.shape).astype(bool)
    for ours, wanted in zip(
        *(scaled_dot_product_attention(Q_BTHK, K_BSHK, V_BSHV, m) for m in (given, told)), strict=True
    ):
        np.testing.assert_array_equal(ours, wanted)


def test_the_formula_refuses_an_unfit_mask_as_well():
    with pytest.raises(ValueError, match=r"mask has the shape \(3, 4\): must be .* = \(2, 4, 3, 4\)"):
        scaled_dot_product_attention(Q_BTHK, K_BSHK, V_BSHV, MASK[0, 0])


def test_the_formula_refuses_heads_that_cannot_be_shared_evenly():
    with pytest.raises(ValueError, match="3 heads of keys and values must divide the 4 heads of the queries"):
        scaled_dot_product_attention(Q_BTHK, K_BSHK[:, :, :3], V_BSHV[:, :, :3])


def test_weights_are_exactly_zero_where_masked():
    _, weights = scaled_dot_product_attention(Q_BTHK, K_BSHK, V_BSHV, MASK)
    assert (np.asarray(weights)[~np.asarray(MASK)] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_that_may_attend_to_nothing_gives_zeros_and_finite_gradients(dtype):
    mask = MASK.at[0, :, 1].set(False)
    inputs = tuple(array.astype(dtype) for array in (Q_BTHK, K_BSHK, V_BSHV))
    output, weights = scaled_dot_product_attention(*inputs, mask)
    assert (output[0, 1] == 0).all() and (weights[0, :, 1] == 0).all()
    gradients = jax.grad(lambda inputs: scaled_dot_product_attention(*inputs, mask)[0].sum())(inputs)
    assert all(np.isfinite(gradient.astype("float32")).all() for gradient in gradients)
    assert (gradients[0][0, 1] == 0).all(), "what gives nothing has no gradient"


def test_the_softmax_is_in_float32():
    """In bfloat16 a score of 200 and one of 200.4 would be the same."""
    q, k = jnp.full((1, 1, 1, 1), 1.0, jnp.bfloat16), jnp.array([200.0, 201.0], jnp.bfloat16)[None, :, None, None]
    _, weights = scaled_dot_product_attention(q, k, k, scale=0.4)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.ravel(), jax.nn.softmax(jnp.array([80.0, 80.4])), rtol=1e-5)


def test_scores_of_any_size_stay_finite():
    output, _ = scaled_dot_product_attention(Q_BTHK * 1e4, K_BSHK * 1e4, V_BSHV, MASK)
    assert np.isfinite(output).all()
