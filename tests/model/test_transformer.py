"""The promises of the whole model, for every kind of position and both norms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.support.small_models import (
    ATTENTION,
    SOURCE,
    TARGET,
    applied,
    assert_close,
    built,
    every_architecture,
    every_encoding,
    small,
    with_drills,
)
from transformer_jax import Transformer, causal_mask, combine_masks, padding_mask
from transformer_jax.model.masks import segment_mask
from transformer_jax.model.transformer import AttentionInputs

PAD = 0
TWO_LAYERS = {"num_encoder_layers": 2, "num_decoder_layers": 2}


@every_architecture
def test_no_look_ahead_and_no_glance_at_another_sentence(changes):
    """Exactly zero gradient from what follows t, from the other sentence, from padding; and not from what may be seen.

    Every token stands in one place only and no table is shared, so a row of an embedding's gradient is a place's.
    """
    model, variables = built(**changes, tie_embeddings="none")

    @jax.jit
    def pull_back(cotangent):
        return jax.vjp(lambda variables: model.apply(variables, SOURCE, TARGET), variables)[1](cotangent)[0]["params"]

    for sentence, t in [(0, 0), (0, 2), (1, 1)]:
        cotangent = np.zeros((*TARGET.shape, model.config.vocab_size), np.float32)
        cotangent[sentence, t] = np.random.default_rng(t).normal(size=cotangent.shape[-1])
        gradients = pull_back(cotangent)
        of_source, of_target = (
            np.flatnonzero(np.abs(gradients[f"{side}_embedding"]["table"]).max(axis=-1)).tolist()
            for side in ("source", "target")
        )
        assert of_target == TARGET[sentence, : t + 1].tolist()
        assert of_source == [token for token in SOURCE[sentence] if token != PAD]


@pytest.mark.parametrize("changes", [{"positions": "transformer_xl"}, {**ATTENTION, "norm": "pre"}], ids=str)
def test_step_by_step_with_a_cache_equals_the_full_forward_pass(changes):
    """Two layers; the first tokens come together (a prefix), and the cache is longer than what is decoded.

    tests/translation/test_beam_cache.py has the other encodings.
    """
    model, variables = built(**changes, num_decoder_layers=2)
    target = np.where(TARGET == PAD, 18, TARGET)

    @jax.jit
    def both():
        memory, seen = model.apply(variables, SOURCE, method="encode"), padding_mask(SOURCE)
        full = model.apply(variables, target, memory, seen, method="decode")
        cache = model.apply(variables, memory, 5, method="new_cache")
        stepped = []
        for tokens in (target[:, :2], target[:, 2:3], target[:, 3:]):
            logits, cache = model.apply(variables, tokens, cache, seen, method="step")
            stepped.append(logits)
        return jnp.concatenate(stepped, axis=1), full

    assert_close(*both())


@pytest.mark.parametrize("changes", [{"positions": "transformer_xl"}, {**ATTENTION, "norm": "pre"}], ids=str)
def test_bfloat16_stays_near_float32_and_its_parameters_are_float32(changes):
    """Within 5 % of the largest logit, by a mantissa of 8 bits; 2 % is the most that was seen, in four layers."""
    model, variables = built(**changes)
    half = Transformer(small(**changes, dtype="bfloat16"))
    logits, whole = (applied(each, variables, SOURCE, TARGET) for each in (half, model))
    assert logits.dtype == jnp.float32
    assert_close(logits, whole, within=0.05)
    assert not np.array_equal(logits, whole), "bfloat16 was really used"
    shapes = jax.eval_shape(half.init, jax.random.key(0), SOURCE, TARGET)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


@every_encoding
def test_packed_sentences_equal_separate_ones(positions):
    """Two pairs in one row, told apart by segment ids, each with positions from 0."""
    model, variables = built(positions=positions)
    sources, targets = np.array([[3, 4, 5, 0, 0], [8, 9, 0, 0, 0]]), np.array([[11, 12, 0, 0], [15, 0, 0, 0]])
    apart = applied(model, variables, sources, targets)
    # A second, empty row: all shapes are those of the separate ones.
    pairs = np.array([[3, 4, 5, 8, 9], [0] * 5]), np.array([[11, 12, 15, 0], [0] * 4])
    of_source, of_target = np.array([[1, 1, 1, 2, 2], [0] * 5]), np.array([[1, 1, 2, 0], [0] * 4])
    segments = AttentionInputs(source_segments=of_source, target_segments=of_target)
    positioned = segments._replace(
        source_positions=np.array([[0, 1, 2, 0, 1], [0] * 5]), target_positions=np.array([[0, 1, 0, 0], [0] * 4])
    )
    for inputs in (segments, positioned):  # positions count within segments by default
        packed = applied(model, variables, *pairs, inputs)
        assert_close(packed[0, :2], apart[0, :2])
        assert_close(packed[0, 2], apart[1, 0])


ENCODINGS_OF_SCORES = ("relative", "transformer_xl", "t5", "alibi")


@pytest.mark.parametrize(
    ("changes", "is_packed"),
    [
        ({**ATTENTION, "window": 3}, True),
        ({"window": 8}, False),
        *(with_drills([each], {"positions": each, "window": 3}, True) for each in ENCODINGS_OF_SCORES),
    ],
    ids=["blocks", "one block", *ENCODINGS_OF_SCORES],
)
def test_a_window_equals_its_mask_also_step_by_step(changes, is_packed):
    """Values, gradients and cached decoding; 11 is no multiple of a block."""
    length = 11
    model, variables = built(**changes)
    whole = Transformer(dataclasses.replace(model.config, window=None))
    tokens = np.arange(2 * length).reshape(2, length) % 19 + 1
    tokens[1, 8:] = PAD
    segments = np.where(tokens == PAD, PAD, 1 + (np.arange(length) > 4))
    inputs = AttentionInputs(source_segments=segments, target_segments=segments) if is_packed else AttentionInputs()
    places = np.arange(length)
    near = jnp.asarray(np.abs(places[:, None] - places) <= changes["window"])[None, None]
    alike = segment_mask(segments, segments) if is_packed else padding_mask(tokens)
    explicit = inputs._replace(
        source_mask=combine_masks(near, alike), target_mask=combine_masks(near, alike, causal_mask(length))
    )

    @jax.jit
    def compared(variables):
        def loss(model, inputs, variables):
            logits = model.apply(variables, tokens, tokens, inputs)
            return jnp.sum(jnp.sin(logits) * (tokens != PAD)[..., None]), logits

        def decoded(cache, token_B):
            logits, cache = model.apply(variables, token_B[:, None], cache, padding_mask(tokens), method="step")
            return cache, logits[:, 0]

        memory = model.apply(variables, tokens, method="encode")
        cache = model.apply(variables, memory, length, method="new_cache")
        teacher_forced = model.apply(variables, tokens, memory, padding_mask(tokens), method="decode")
        stepped = jnp.moveaxis(jax.lax.scan(decoded, cache, jnp.asarray(tokens.T))[1], 0, 1)
        results = [
            jax.value_and_grad(functools.partial(loss, model, inputs), has_aux=True)(variables)
            for model, inputs in ((model, inputs), (whole, explicit))
        ]
        return *results, teacher_forced[0], stepped[0]

    ours, theirs, teacher_forced, stepped = compared(variables)
    jax.tree.map(functools.partial(assert_close, within=2e-5), ours, theirs)
    assert_close(stepped, teacher_forced)


def test_explicit_masks_replace_the_default_ones():
    model, variables = built()
    default = applied(model, variables, SOURCE, TARGET)
    of_source, of_target = padding_mask(SOURCE), combine_masks(causal_mask(4), padding_mask(TARGET))
    given = {"source_mask": of_source, "target_mask": of_target, "cross_mask": of_source}
    assert_close(applied(model, variables, SOURCE, TARGET, AttentionInputs(**given)), default, within=1e-6)
    for mask in given:
        inputs = AttentionInputs(**{**given, mask: jnp.ones_like(given[mask])})
        assert np.abs(applied(model, variables, SOURCE, TARGET, inputs) - default).max() > 1e-3, f"{mask} does nothing"


def test_an_empty_sentence_leaves_value_and_gradient_finite():
    model, variables = built(positions="transformer_xl")
    source = np.array([[3, 4, 5, 6, 7], [0, 0, 0, 0, 0]])
    target = np.array([[11, 12, 13, 14], [0, 0, 0, 0]])

    @jax.jit
    def run(variables):
        logits, pull_back = jax.vjp(lambda variables: model.apply(variables, source, target), variables)
        return logits, pull_back(jnp.ones_like(logits))

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run(variables)))


def test_masking_a_head_equals_zeroing_its_rows_of_the_output_matrix():
    model, variables = built(**TWO_LAYERS)
    ones, flat = np.ones((2, 2), np.float32), traverse_util.flatten_dict(variables, sep="/")
    whole = dict.fromkeys(("encoder", "decoder", "cross"), ones)
    untouched = applied(model, variables, SOURCE, TARGET, head_masks=whole)
    assert_close(untouched, applied(model, variables, SOURCE, TARGET), within=1e-6)
    places = ("encoder", "encoder", "self"), ("decoder", "decoder", "self"), ("cross", "decoder", "cross")
    for where, stack, attention in places:
        heads_NH = np.array([[1, 1], [0, 1]], np.float32)  # second layer, first head: the first d_v = 4 rows of W^O
        masked = applied(model, variables, SOURCE, TARGET, head_masks={**whole, where: heads_NH})
        name = f"params/{stack}/layers_1/{attention}_attention/output/kernel"
        zeroed = traverse_util.unflatten_dict(flat | {name: flat[name].at[:4].set(0.0)}, sep="/")
        assert_close(masked, applied(model, zeroed, SOURCE, TARGET))
        assert np.abs(masked - untouched).max() > 1e-3


def test_heads_are_masked_step_by_step_as_in_the_whole():
    model, variables = built()
    head_masks = {"decoder": np.array([[0.5, 0.0]]), "cross": np.array([[0.0, 2.0]])}
    memory_BSD = applied(model, variables, SOURCE, method="encode")
    whole = applied(model, variables, TARGET, memory_BSD, padding_mask(SOURCE), head_masks=head_masks, method="decode")

    @jax.jit
    def stepped(variables):
        cache = model.apply(variables, memory_BSD, 4, method="new_cache")
        return model.apply(variables, TARGET, cache, padding_mask(SOURCE), head_masks=head_masks, method="step")[0]

    is_token_BT = TARGET != 0  # in steps, padding also sees itself
    assert_close(stepped(variables)[is_token_BT], whole[is_token_BT])


def test_attention_weights_come_on_request_and_only_then():
    model, variables = built(**TWO_LAYERS)
    assert set(jax.eval_shape(lambda: model.init(jax.random.key(0), SOURCE, TARGET))) == {"params"}
    assert isinstance(applied(model, variables, SOURCE, TARGET), jax.Array)

    _, shown = applied(model, variables, SOURCE, TARGET, mutable="intermediates")
    weights = traverse_util.flatten_dict(shown["intermediates"], sep="/")
    attentions = ("encoder", "self"), ("decoder", "self"), ("decoder", "cross")
    assert set(weights) == {
        f"{stack}/layers_{layer}/{name}_attention/weights" for stack, name in attentions for layer in range(2)
    }
    for name, (weights_BHTS,) in weights.items():
        keys = TARGET if name.startswith("decoder") and "self" in name else SOURCE
        queries = SOURCE if name.startswith("encoder") else TARGET
        assert weights_BHTS.shape == (2, 2, queries.shape[1], keys.shape[1])
        np.testing.assert_allclose(weights_BHTS.sum(-1), 1, rtol=1e-6)
        assert (np.moveaxis(np.asarray(weights_BHTS), -1, 1)[keys == PAD] == 0).all(), "padding has a column of zeros"


def test_logits_are_products_with_the_tied_table():
    """One table three times: scaled by sqrt(d_model) going in, as it is going out."""
    for is_scaled, factor in ((False, 1.0), (True, np.sqrt(8))):
        model, variables = built(scale_embeddings=is_scaled)
        table_ND = variables["params"]["source_embedding"]["table"]
        embedded = model.apply(variables, TARGET, method=lambda model, tokens: model.source_embedding(tokens))
        np.testing.assert_allclose(embedded, table_ND[TARGET] * factor, rtol=1e-6)
    x_BTD = np.random.default_rng(2).normal(size=(2, 4, 8)).astype(np.float32)
    logits = model.apply(variables, x_BTD, method=lambda model, x: model._output_embedding.logits(x))
    np.testing.assert_allclose(logits, x_BTD @ table_ND.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout", "layer_dropout"])
def test_each_dropout_acts_alone_follows_its_key_and_is_off_by_default(rate):
    model, variables = built(**{"dropout": 0.0, rate: 0.5})
    without = applied(built()[0], variables, SOURCE, TARGET)
    np.testing.assert_array_equal(applied(model, variables, SOURCE, TARGET), without)

    @jax.jit
    def dropped(seed):
        rngs = {"dropout": jax.random.key(seed)}
        return model.apply(variables, SOURCE, TARGET, deterministic=False, rngs=rngs)

    np.testing.assert_array_equal(dropped(0), dropped(0))
    assert np.abs(dropped(0) - without).max() > 0.01
    assert np.abs(dropped(0) - dropped(1)).max() > 0.01


def test_ids_beyond_the_vocabulary_are_nan_where_they_are_not_known():
    model, variables = built()
    for wrong in (20, -1):
        logits = applied(model, variables, SOURCE, np.where(TARGET == 15, wrong, TARGET))
        assert np.isfinite(logits[0]).all() and np.isnan(logits[1]).all()
