"""Beam search: against every target there is, stopping early, and the cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.searches import (
    BATCH,
    BOS,
    EOS,
    LENGTH,
    NODES,
    PAD,
    VOCABULARY,
    WIDE,
    A,
    assert_found,
    assert_same,
    beam,
    brute_force,
    greedy,
    log_probability,
    searched,
    slow_beam,
    start,
    step,
    tables_of,
    targets_of,
)
from transformer_jax.search.beam import beam_search, gather_beams, repeat_beams

PENALTIES = [("gnmt", 0.6), ("average", 1.0), ("average", -0.7)]


@pytest.mark.parametrize(("name", "alpha"), PENALTIES)
def test_a_wide_beam_finds_the_best_targets_there_are(name, alpha):
    tables = tables_of(0, scale=3.0)
    limits = np.arange(len(tables)) % 4 + 3  # three to six: at least seven targets each
    result = beam(tables, beam_size=WIDE, length_penalty=name, alpha=alpha, n_best=5, max_lengths=limits)
    for sentence, table in enumerate(tables):
        expected = brute_force(table, name, alpha, limits[sentence])[:5]
        assert_found(result, sentence, expected)
        assert len(set(targets_of(result, sentence))) == 5
        rescored = [log_probability(table, target) for target in targets_of(result, sentence)]
        np.testing.assert_allclose(result.log_probabilities_BN[sentence], rescored, atol=1e-5)
    assert (np.diff(result.scores_BN, axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("beam_size", "n_best", "name", "alpha"),
    [(2, 1, "gnmt", 0.6), (2, 2, "none", 0.0), (3, 1, "average", 1.0), (3, 3, "average", -0.7)],
)
def test_a_narrow_beam_is_the_documented_one_and_stopping_early_changes_nothing(beam_size, n_best, name, alpha):
    """Theirs goes on to every limit."""
    options = {"beam_size": beam_size, "length_penalty": name, "alpha": alpha, "n_best": n_best}
    for seed in range(16):
        tables = tables_of(seed, scale=0.5 + seed % 8)
        tables[:, :, [PAD, BOS]] = -20  # or they take so much that no late hypothesis ever wins
        limits = np.random.default_rng(seed).integers(1, LENGTH + 1, BATCH)
        result = beam(tables, max_lengths=limits, **options)
        for sentence, (table, limit) in enumerate(zip(tables, limits, strict=True)):
            assert_found(result, sentence, slow_beam(table, beam_size, name, alpha, n_best, limit))


def test_equals_rank_by_parent_then_by_token():
    tables = np.zeros((3, NODES, VOCABULARY), np.float32)  # all continuations are equally probable everywhere
    result = beam(tables, beam_size=3, length_penalty="average", alpha=1.0, n_best=3)
    # Every score is log 1/5. The first step ranks <eos>, A, B; the second A<eos>, AA, AB and ends one more; the third
    # continues AA and AB before B.
    assert targets_of(result, 1) == [(EOS,), (A, EOS), (A, A, EOS)]


def chain(*steps):
    """A table whose only continuation worth having is A; steps: probabilities of <eos> at each position."""
    table = np.full((NODES, VOCABULARY), -20, np.float32)
    for position, ends in enumerate(steps):
        table[2**position, [EOS, A]] = np.log([ends, 1 - ends])
    return table


def test_a_hypothesis_that_wins_late_is_waited_for():
    # <eos> at once scores log 0.7 = -0.36, the live hypothesis -1.20 at its present length and at most -0.60 with its
    # next token: it looks beaten. But every later token is certain, so its mean rises to -1.21 / 6 = -0.20.
    table = chain(0.7, 0.001, 0.001, 0.001, 0.001, 0.999)
    result = beam(table[None], beam_size=2, length_penalty="average", alpha=1.0)
    assert targets_of(result, 0) == [(A, A, A, A, A, EOS)]


def test_a_negative_alpha_is_bounded_by_the_shortest_end():
    # log P * sqrt(n): <eos> at once scores -0.92, the live hypothesis -0.72 if it ends next and -1.25 at the limit.
    # Here the *next* end is the most favourable, and a bound taken at the limit would stop before it.
    table = chain(0.4, 0.95, 0.999, 0.999, 0.999, 0.999)
    options = {"beam_size": 2, "length_penalty": "average", "alpha": -0.5}
    expected = brute_force(table, "average", -0.5)[0]
    assert expected[1] == (A, EOS)
    assert_found(beam(table[None], **options), 0, [expected])


def test_the_batch_ends_with_its_last_sentence():
    taken = []

    def counting_step(tokens_R, cache):
        jax.debug.callback(lambda: taken.append(1))
        return step(tokens_R, cache)

    @jax.jit
    def search(tables, limits):
        return searched(beam_search, counting_step, start(tables, 2), batch_size=2, beam_size=2, max_lengths=limits)

    def steps_taken(tables, limits=(LENGTH, LENGTH)):
        taken.clear()
        jax.block_until_ready(search(np.stack(tables), jnp.asarray(limits)))
        jax.effects_barrier()
        return len(taken)

    short, longer = chain(0.999), chain(0.001, 0.001, 0.999)
    assert steps_taken([short, short]) == 1
    assert steps_taken([short, longer]) == 3
    assert steps_taken([short, longer], limits=(2, 2)) == 2


def test_a_beam_of_one_is_greedy_search():
    tables = tables_of(10)
    options = {"length_penalty": "average", "alpha": 1.0}
    one = beam(tables, beam_size=1, **options)
    assert_same(one, greedy(tables, **options))
    # Not a matter of course: a beam that went on after its <eos> would find better targets than the greedy ones.
    assert (beam(tables, beam_size=3, **options).scores_BN > one.scores_BN + 1e-5).any()


# The cache.


def test_gathering_moves_the_rows_where_they_are_said_to_be():
    rows = jnp.arange(12).reshape(6, 2)
    cache = {"rows": rows, "layers": rows.T, "sentences": jnp.arange(2), "position": jnp.int32(7)}
    axes = {"rows": 0, "layers": 1, "sentences": None, "position": 0}
    parents_BK = jnp.asarray([[2, 2, 0], [1, 0, 1]])
    moved = jax.jit(lambda: gather_beams(cache, parents_BK, axes))()
    np.testing.assert_array_equal(moved["rows"][:, 0], [4, 4, 0, 8, 6, 8])
    np.testing.assert_array_equal(moved["layers"], moved["rows"].T)
    np.testing.assert_array_equal(moved["sentences"], [0, 1])
    assert moved["position"] == 7
    on_host = jax.tree.map(np.asarray, cache)
    np.testing.assert_array_equal(gather_beams(on_host, parents_BK, axes)["layers"], moved["layers"])
    with pytest.raises(ValueError, match="6 rows"):
        gather_beams(cache, parents_BK)
    two = {"rows": jnp.arange(2)[:, None], "layers": jnp.arange(2)[None]}
    repeated = jax.jit(lambda: repeat_beams(two, 3, {"rows": 0, "layers": 1}))()
    np.testing.assert_array_equal(repeated["rows"][:, 0], [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(repeated["layers"][0], [0, 0, 0, 1, 1, 1])
