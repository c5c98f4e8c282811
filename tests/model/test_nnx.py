"""The modules as NNX modules, as in docs/nnx.md: the same results in nnx.jit, nnx.grad and the loop of a search."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from flax.errors import TraceContextError
from flax.nnx import bridge

from tests.support.small_models import SOURCE, TARGET, assert_close, small
from transformer_jax import Context, Embedding, MultiHeadAttention, SearchRules, Transformer, greedy_search
from transformer_jax.model import build

CONFIG, CONTEXT = small(positions="relative"), Context()
X = jax.random.normal(jax.random.key(0), (2, 4, 8))
MODULES = {
    "MultiHeadAttention": (MultiHeadAttention(2), X, X),
    "DecoderLayer": (build.decoder_layer(CONFIG), X, X, CONTEXT, CONTEXT),
    "Transformer": (Transformer(CONFIG), SOURCE, TARGET),
}


def value_and_gradient(module, *inputs):
    """Of two calls in a loop, in NNX."""

    @nnx.jit
    @nnx.value_and_grad
    def total(wrapped):
        def added(_, total):
            return total + jnp.sum(jax.tree.leaves(wrapped(*inputs))[0] ** 3)

        return jax.lax.fori_loop(0, 2, added, 0.0)

    value, gradients = total(bridge.ToNNX(module).lazy_init(*inputs, rngs=nnx.Rngs(0)))
    return value, nnx.to_pure_dict(gradients)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_gradient_in_nnx_in_a_loop(name):
    """Traced only: what NNX does not allow it refuses while it traces."""
    module, *inputs = MODULES[name]
    _, gradients = jax.eval_shape(lambda: value_and_gradient(module, *inputs))
    assert gradients == jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs))["params"]


def test_the_value_and_the_gradient_are_those_of_linen():
    module, wrapped = MultiHeadAttention(2), bridge.ToNNX(MultiHeadAttention(2)).lazy_init(X, X, rngs=nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.state(wrapped))
    expected = jax.value_and_grad(lambda params: 2 * jnp.sum(module.apply({"params": params}, X, X) ** 3))(params)
    jax.tree.map(assert_close, value_and_gradient(module, X, X), expected)


def test_a_search_needs_a_module_without_random_state():
    model = bridge.ToNNX(Embedding(20, 8), rngs=nnx.Rngs(0)).lazy_init(TARGET)

    def search(**options):
        def step(tokens_B, cache):
            return model.logits(model(tokens_B[:, None], **options), **options)[:, 0], cache

        return greedy_search(step, {}, SearchRules(2, 4, bos_id=1, eos_id=2, pad_id=0))

    with pytest.raises(TraceContextError):
        search()
    assert search(rngs=nnx.Rngs()).tokens_BNT.shape == (2, 1, 4)
