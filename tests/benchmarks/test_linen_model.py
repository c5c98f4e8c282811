"""The model that ours is timed beside is the same model: one value and one gradient, however differently computed.

So it holds our fast paths to plain ones: products over rows, the loss without logits, attention of our own.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.places import ROOT
from tests.support.small_runs import batch_of, objective_of, sentences, trainer
from transformer_jax.update.loss import LogitLimits
from transformer_jax.update.step import batch_sums

sys.path.append(str(ROOT / "benchmarks"))
import linen_model


def worst(ours, theirs):
    """The largest difference of any leaf, in units of the leaf's largest number."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(jnp.max(jnp.abs(one - other)) / jnp.max(jnp.abs(other))) for one, other in pairs)


def test_value_and_gradient_are_those_of_linens_own_modules():
    run = trainer(train__label_smoothing=0.1)
    config, params = run.config, jax.device_get(run.new().params)
    batch = batch_of(sentences(6))
    plain = linen_model.LinenTransformer(config.model)

    def ours(params):
        sums = batch_sums(config, objective_of(config, False), params, batch, limits=LogitLimits(100))
        return sums.loss / sums.weight

    def theirs(params):
        named = {"params": linen_model.like_ours(params, config.model)}
        return linen_model.smoothed_loss(plain.apply(named, batch.source, batch.target_input), batch.target_output)

    both = jax.jit(lambda params: [jax.value_and_grad(loss)(params) for loss in (ours, theirs)])
    (our_value, our_gradient), (value, gradient) = both(params)
    np.testing.assert_allclose(our_value, value, rtol=1e-6)
    assert worst(our_gradient, gradient) < 1e-5
