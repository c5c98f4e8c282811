"""The whole model as an NNX module; examples/nnx_language_model.py trains single modules."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import bridge

from tests.support.small_models import SOURCE, TARGET, small
from transformer_jax import Transformer


def test_the_model_has_a_gradient_in_nnx_in_a_loop():
    """Traced only: what NNX does not allow it refuses while it traces."""
    model = Transformer(small(positions="relative"))

    @nnx.jit
    @nnx.grad
    def gradient(wrapped):
        def added(_, total):
            return total + jnp.sum(wrapped(SOURCE, TARGET) ** 3)

        return jax.lax.fori_loop(0, 2, added, 0.0)

    def of_new_model():
        return nnx.to_pure_dict(gradient(bridge.ToNNX(model).lazy_init(SOURCE, TARGET, rngs=nnx.Rngs(0))))

    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), SOURCE, TARGET))["params"]
    assert jax.eval_shape(of_new_model) == shapes
