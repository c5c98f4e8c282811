"""Greedy search, written again slowly; sampling has the promised distribution, and follows the key."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.support.searches import (
    EOS,
    LENGTH,
    A,
    B,
    assert_found,
    assert_same,
    every_target,
    greedy,
    log_probability,
    log_softmax,
    node_of,
    sample,
    searched,
    start,
    step,
    tables_of,
    targets_of,
)
from transformer_jax.search.sampling import sample_search


def test_greedy_takes_the_most_probable_token_until_the_end():
    tables = tables_of(9)
    result = greedy(tables, length_penalty="average", alpha=1.0)
    for sentence, table in enumerate(tables):
        target = ()
        while EOS not in target:
            logits = table[node_of(target)]
            target += (
                EOS if len(target) == LENGTH - 1 else max((EOS, A, B), key=lambda token, row=logits: row[token]),
            )
        assert_found(result, sentence, [(log_probability(table, target) / len(target), target)])


def frequencies(result):
    tokens_BT = np.asarray(result.tokens_BNT)[:, 0]
    targets, counts = np.unique(tokens_BT, axis=0, return_counts=True)
    return {tuple(y[: list(y).index(EOS) + 1].tolist()): count for y, count in zip(targets, counts, strict=True)}


def filtered(logits, temperature, top_k, top_p):
    """The distribution over <eos>, A, B that sampling promises, as a dictionary without what cannot be drawn."""
    probabilities = np.exp(log_softmax(logits[[EOS, A, B]] / temperature))
    ranked = sorted(zip(probabilities, [EOS, A, B], strict=True), reverse=True)[:top_k]
    total, mass, kept = sum(p for p, _ in ranked), 0.0, {}
    for p, token in ranked:
        if mass < top_p:
            kept[token] = p
        mass += p / total
    return {token: p / sum(kept.values()) for token, p in kept.items()}


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [
    (1.0, None, 1.0), (1.7, 2, 1.0), (1.3, 3, 0.8),
])  # fmt: skip
def test_samples_have_the_promised_frequencies(temperature, top_k, top_p):
    table, draws = tables_of(14, 1, scale=1.0)[0], 4096
    limit = 3
    tables = jnp.broadcast_to(table[None], (draws, *table.shape))
    options = {"batch_size": draws, "max_length": limit, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    result = jax.jit(lambda key: searched(sample_search, step, start(tables), key, **options))(jax.random.key(1))
    result = jax.tree.map(np.asarray, result)
    expected = {}
    for target in every_target(limit):
        steps = [
            filtered(table[node_of(target[:t])], temperature, top_k, top_p) for t in range(min(len(target), limit - 1))
        ]
        probability = math.prod(step.get(token, 0.0) for step, token in zip(steps, target, strict=False))
        if probability:
            expected[target] = probability
    assert math.isclose(sum(expected.values()), 1)
    seen = frequencies(result)
    assert set(seen) <= set(expected)
    statistic = sum((seen.get(y, 0) - draws * p) ** 2 / (draws * p) for y, p in expected.items())
    assert scipy.stats.chi2.sf(statistic, max(len(expected) - 1, 1)) > 1e-3
    # Whatever was filtered, the log-probability is the model's own.
    for row in range(0, draws, 512):
        rescored = log_probability(table, targets_of(result, row)[0])
        np.testing.assert_allclose(result.log_probabilities_BN[row, 0], rescored, atol=1e-5)


def test_a_sample_follows_its_seed_and_its_sentence():
    tables, order = tables_of(15, 16, scale=0.5), np.random.default_rng(0).permutation(16)
    result = sample(tables, jax.random.key(0))
    assert_same(result, sample(tables, jax.random.key(0)))
    assert_same(result, sample(tables, jax.random.PRNGKey(0)))
    assert (result.tokens_BNT != sample(tables, jax.random.key(1)).tokens_BNT).any()
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), order)
    moved = sample(tables[order], keys_B)
    assert_same(jax.tree.map(lambda leaf: leaf[order], result), moved)
    # Also with keys of the kind that TPUs draw fastest with, which JAX would draw from the first one of a batch.
    keys_B = jax.vmap(lambda seed: jax.random.key(seed, impl="rbg"))(np.arange(16))
    assert_same(jax.tree.map(lambda leaf: leaf[order], sample(tables, keys_B)), sample(tables[order], keys_B[order]))
    # Two sentences of one distribution are drawn independently.
    alike = sample(np.broadcast_to(tables[:1], tables.shape), jax.random.key(0))
    assert len(frequencies(alike)) > 4


def test_a_tiny_temperature_is_greedy():
    tables = tables_of(16)
    assert_same(sample(tables, jax.random.key(0), temperature=1e-30), greedy(tables))


@pytest.mark.parametrize("top_k", [None, 4])
def test_what_is_forbidden_is_not_drawn_at_any_temperature(top_k):
    """1e9 asks for equal probabilities of all others."""
    tables = np.zeros_like(tables_of(16))
    tables[..., -1] = -np.inf
    found = sample(tables, jax.random.key(0), temperature=1e9, top_k=top_k)
    assert (found.tokens_BNT != tables.shape[-1] - 1).all() and found.finished_BN.all()


def test_temperature_and_top_p_may_be_traced_and_each_sentence_may_have_its_own():
    tables, key = tables_of(19), jax.random.key(4)

    @jax.jit
    def traced(temperature, top_p):
        options = {"batch_size": 16, "temperature": temperature, "top_p": top_p}
        return searched(sample_search, step, start(tables), key, **options)

    found = [traced(temperature, top_p) for temperature, top_p in ((0.7, 0.8), (1.5, 1.0))]
    for one, options in zip(found, ({"temperature": 0.7, "top_p": 0.8}, {"temperature": 1.5, "top_k": 5}), strict=True):
        assert_same(jax.tree.map(np.asarray, one), sample(tables, key, **options))
    assert traced._cache_size() == 1
    is_hot_B = np.arange(16) % 2 == 1
    mixed = traced(np.where(is_hot_B, 1.5, 0.7), np.where(is_hot_B, 1.0, 0.8))
    np.testing.assert_array_equal(
        mixed.tokens_BNT, np.where(is_hot_B[:, None, None], found[1].tokens_BNT, found[0].tokens_BNT)
    )


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (np.nan, 1.0), (1.0, 1.1)])
def test_a_traced_number_out_of_range_makes_the_score_nan(temperature, top_p):
    @jax.jit
    def search(temperature, top_p):
        options = {"batch_size": 16, "temperature": temperature, "top_p": top_p}
        return searched(sample_search, step, start(tables_of(19)), jax.random.key(4), **options)

    found = search(temperature, top_p)
    assert np.isnan(found.scores_BN).all() and not found.finished_BN.any()
    assert all(targets_of(jax.tree.map(np.asarray, found), sentence)[0][-1] == EOS for sentence in range(16))
