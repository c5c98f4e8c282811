"""Programs of jax.export with symbolic sizes equal the model at every size; docs/jax_export.md saves and loads them."""

import jax
import jax.numpy as jnp
import pytest
from jax import export

from tests.support.small_models import ATTENTION, SOURCE, TARGET, assert_close, built
from transformer_jax import (
    SearchRules,
    beam_search,
    greedy_search,
    label_smoothed_cross_entropy,
    padding_mask,
    sample_search,
)
from transformer_jax.model.positions import ENCODINGS
from transformer_jax.search.beam import gather_beams, repeat_beams


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


@pytest.mark.parametrize("search", [greedy_search, sample_search, beam_search], ids=lambda search: search.__name__)
def test_searches_export_with_a_symbolic_batch(search):
    model, variables = built()
    options = {"keys": jax.random.key(0)} if search is sample_search else {}
    options |= {"reorder": gather_beams} if search is beam_search else {}

    def found(source):
        memory, rules = model.apply(variables, source, method="encode"), rules_for(source.shape[0])
        cache = model.apply(variables, memory, rules.max_length, method="new_cache")
        mask = padding_mask(source)
        if search is beam_search:
            cache, mask = repeat_beams((cache, mask), 4)

        def step(tokens, cache):
            logits, cache = model.apply(variables, tokens[:, None], cache, mask, method="step")
            return logits[:, 0], cache

        return search(step, cache, rules, **options)

    batch, length = export.symbolic_shape("batch, length")
    exported = export.export(jax.jit(found))(ids(batch, length))
    assert str(exported.out_avals[0].shape[0]) == "batch"


def rules_for(batch_size):
    return SearchRules(batch_size=batch_size, max_length=6, bos_id=1, eos_id=2, pad_id=0)


def test_a_window_exports():
    assert_exports(window=2)


def test_attention_with_all_of_its_options_exports():
    assert_exports(**ATTENTION, attention_dropout=0.1)
