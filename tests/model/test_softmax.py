"""The softmax of masked scores, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.model.softmax import masked_softmax

SHAPE_BHTS = (2, 2, 3, 4)
MASK = jnp.asarray(np.random.default_rng(1).random(SHAPE_BHTS) < 0.6).at[..., 0].set(True)


def test_the_softmax_has_the_gradient_of_its_formula_in_either_mode():
    """A row that is masked whole included: as the formula is written, with no rule for its derivative."""
    mask = MASK.at[0, 0, 1].set(False)

    def formula(scores):
        powers = jnp.where(mask, jnp.exp(scores), 0.0)
        total = powers.sum(-1, keepdims=True)
        return powers / jnp.where(total > 0, total, 1.0)

    scores, change = (jax.random.normal(jax.random.key(seed), SHAPE_BHTS) for seed in range(2))
    value, tangent = jax.jvp(lambda scores: masked_softmax(scores, mask), (scores,), (change,))
    expected_value, expected_tangent = jax.jvp(formula, (scores,), (change,))
    np.testing.assert_allclose(value, expected_value, atol=1e-6)
    np.testing.assert_allclose(tangent, expected_tangent, atol=1e-6)
    gradient, expected = (
        jax.grad(lambda scores, softmax=softmax: jnp.sum(softmax(scores) * change))(scores)
        for softmax in (lambda scores: masked_softmax(scores, mask), formula)
    )
    np.testing.assert_allclose(gradient, expected, atol=1e-6)
