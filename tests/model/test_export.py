"""Programs of jax.export with symbolic sizes equal the model at every size; docs/jax_export.md saves and loads them."""

import jax
import jax.numpy as jnp
import pytest
from jax import export

from tests.support.small_models import ATTENTION, SOURCE, TARGET, assert_close, built
from transformer_jax import label_smoothed_cross_entropy, padding_mask
from transformer_jax.model.positions import ENCODINGS


def sized(names, **changes):
    limits = [f"{name} <= 16" for name in names[1:]] if changes.get("positions") == "learned" else []
    return export.symbolic_shape(", ".join(names), constraints=limits)


def ids(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def assert_exports(called=False, **changes):
    """Loss and gradient with dropout for any batch and lengths, and a step of decoding: traced, and `called`, too."""
    model, variables = built(**changes)

    def loss(variables, source, target):
        rngs = {"dropout": jax.random.key(0)}
        logits = model.apply(variables, source, target[:, :-1], deterministic=False, rngs=rngs)
        return label_smoothed_cross_entropy(logits, target[:, 1:], target[:, 1:] != 0)[0]

    b, s, t = sized("bst", **changes)
    exported = export.export(jax.jit(jax.grad(loss)))(variables, ids(b, s), ids(b, t + 1))
    if called:
        expected = jax.jit(jax.grad(loss))(variables, SOURCE, TARGET)
        jax.tree.map(assert_close, exported.call(variables, SOURCE, TARGET), expected)

    def start(source, slots):
        return model.apply(variables, model.apply(variables, source, method="encode"), slots.size, method="new_cache")

    def step(token, source, slots):
        return model.apply(variables, token, start(source, slots), padding_mask(source), method="step")[0]

    b, s, slots = sized("bsl", **changes)
    (logits,) = export.export(jax.jit(step))(ids(b, 1), ids(b, s), ids(slots)).out_avals
    assert logits.shape == (b, 1, 20)


@pytest.mark.parametrize(
    "positions",
    ["relative", *(pytest.param(each, marks=pytest.mark.drill) for each in ENCODINGS if each != "relative")],
)
def test_every_position_encoding_exports_with_symbolic_batch_and_lengths(positions):
    assert_exports(called=positions == "relative", positions=positions)


def test_attention_with_all_of_its_options_exports():
    assert_exports(**ATTENTION, attention_dropout=0.1)
