"""Search over hand-written models: every prefix has its own row of logits, so that all targets can be enumerated."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.search.largest import largest_entries
from transformer_jax.search.search import beam_search, gather_beams, greedy_search, repeat_beams, sample_search
from transformer_jax.search.stages import Stage, Tail

PAD, BOS, EOS, A, B = range(5)
VOCABULARY = 5
LENGTH = 6  # at most five of A and B, then <eos>: 63 targets
NODES = 2**LENGTH
IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}
WIDE = 64
BATCH = 16  # one shape for nearly all tests: compiling is what takes their time
PENALTIES = [("none", 0.6), ("gnmt", 0.0), ("gnmt", 0.6), ("average", 1.0), ("average", -0.7)]


# The model: a prefix of As and Bs is a node of a binary tree (the root is 1), a sentence is a table of node -> logits.


def step(tokens_R, cache):
    """The cache: each row's node, and each sentence's table once, however many rows the sentence has."""
    table_BNV, node_R = cache["table_BNV"], cache["node_R"]
    node_R = jnp.where(tokens_R == BOS, 1, jnp.clip(2 * node_R + tokens_R - A, 0, NODES - 1))
    sentence_R = jnp.arange(tokens_R.size) // (tokens_R.size // table_BNV.shape[0])
    return table_BNV[sentence_R, node_R], {"table_BNV": table_BNV, "node_R": node_R}


def start(tables, rows_each=1):
    return {"table_BNV": jnp.asarray(tables), "node_R": jnp.zeros(len(tables) * rows_each, jnp.int32)}


def tables_of(seed, count=BATCH, scale=2.0):
    return np.random.default_rng(seed).normal(0, scale, (count, NODES, VOCABULARY)).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("search", "options"))
def compiled(search, tables, traced, options):
    options = dict(options)
    cache = start(tables, options.get("beam_size", 1))
    return search(step, cache, batch_size=BATCH, max_length=LENGTH, **IDS, **traced, **options)


def run(search, tables, key=None, max_lengths=LENGTH, prefix=None, sentence_ids=None, **options):
    """The search, compiled once for each set of options, on any number of tables up to BATCH."""
    count = len(tables)
    assert count <= BATCH

    def filled(rows):
        rows = np.asarray(rows)
        return np.concatenate([rows, np.broadcast_to(rows[:1], (BATCH - count, *rows.shape[1:]))])

    traced = {"max_lengths": filled(np.broadcast_to(max_lengths, count)), "key": key}
    traced |= {"prefix": None if prefix is None else filled(prefix)}
    traced |= {"sentence_ids": None if sentence_ids is None else filled(sentence_ids)}
    traced = {name: value for name, value in traced.items() if value is not None}
    result = compiled(search, filled(tables), traced, tuple(sorted(options.items())))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], result)


def beam(tables, beam_size=4, **options):
    return run(beam_search, tables, beam_size=beam_size, **options)


def greedy(tables, **options):
    return run(greedy_search, tables, **options)


def sample(tables, key, **options):
    return run(sample_search, tables, key, **options)


# The same, written again slowly: in float64, one sentence and one hypothesis at a time.


def penalty(name, alpha, n):
    return {"gnmt": ((5 + n) / 6) ** alpha, "average": n**alpha, "none": 1.0}[name]


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def node_of(target):
    return functools.reduce(lambda node, token: 2 * node + token - A, target, 1)


def log_probability(table, target):
    return sum(log_softmax(table[node_of(target[:t])])[token] for t, token in enumerate(target))


def every_target(limit, min_length=0, prefix=()):
    for n in range(max(1, min_length), limit + 1):
        for ordinary in itertools.product([A, B], repeat=n - 1):
            if ordinary[: len(prefix)] == tuple(prefix):
                yield (*ordinary, EOS)


def brute_force(table, name, alpha, limit=LENGTH, **options):
    scored = [(log_probability(table, y) / penalty(name, alpha, len(y)), y) for y in every_target(limit, **options)]
    return sorted(scored, reverse=True)


def slow_beam(table, beam_size, name, alpha, n_best):
    """Beam search as docs/decoding.md states it, run to the end."""
    live, found = [(0.0, ())], []
    for n in range(1, LENGTH + 1):
        candidates = []
        for parent, (total, target) in enumerate(live):
            gains = log_softmax(table[node_of(target)])
            for token in [EOS] if n == LENGTH else [EOS, A, B]:
                candidates.append((total + gains[token], -parent, -token, (*target, token)))
        candidates.sort(reverse=True)
        found += [(c[0] / penalty(name, alpha, n), c[3]) for c in candidates[:beam_size] if c[3][-1] == EOS]
        live = [(c[0], c[3]) for c in candidates if c[3][-1] != EOS][:beam_size]
    return sorted(found, key=lambda hypothesis: -hypothesis[0])[:n_best]


def targets_of(result, sentence):
    """The n-best of one sentence as tuples of tokens; checks that what follows each is padding."""
    tokens_NT, lengths_N = result.tokens_BNT[sentence], result.lengths_BN[sentence]
    for tokens_T, length in zip(tokens_NT, lengths_N, strict=True):
        assert (tokens_T[length:] == PAD).all()
    return [tuple(tokens_T[:length].tolist()) for tokens_T, length in zip(tokens_NT, lengths_N, strict=True)]


def assert_same(one, other):
    for name, left, right in zip(one._fields, one, other, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


def assert_found(result, sentence, expected):
    """The result's n-best of a sentence are `expected`, a sorted list of (score, target)."""
    assert targets_of(result, sentence) == [target for _, target in expected]
    np.testing.assert_allclose(result.scores_BN[sentence], [score for score, _ in expected], atol=1e-5)
    assert result.finished_BN[sentence].all()


# Beam search against every target there is.


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


NARROW = pytest.mark.parametrize(
    ("beam_size", "n_best", "name", "alpha"),
    [(2, 1, "gnmt", 0.6), (2, 2, "none", 0.0), (3, 1, "average", 1.0), (3, 3, "average", -0.7)],
)


@NARROW
def test_a_narrow_beam_is_the_documented_one(beam_size, n_best, name, alpha):
    options = {"beam_size": beam_size, "length_penalty": name, "alpha": alpha, "n_best": n_best}
    for seed in range(12):
        tables = tables_of(seed)
        result = beam(tables, **options)
        for sentence, table in enumerate(tables):
            expected = slow_beam(table, beam_size, name, alpha, n_best)
            assert_found(result, sentence, expected)


def test_equals_rank_by_parent_then_by_token():
    tables = np.zeros((3, NODES, VOCABULARY), np.float32)  # all continuations are equally probable everywhere
    result = beam(tables, beam_size=3, length_penalty="average", alpha=1.0, n_best=3)
    # Every score is log 1/5. The first step ranks <eos>, A, B; the second A<eos>, AA, AB and ends one more; the third
    # continues AA and AB before B.
    assert targets_of(result, 1) == [(EOS,), (A, EOS), (A, A, EOS)]


# Stopping early changes nothing.


@NARROW
def test_stopping_early_changes_nothing(beam_size, n_best, name, alpha):
    options = {"beam_size": beam_size, "length_penalty": name, "alpha": alpha, "n_best": n_best}
    for seed in range(40):
        tables = tables_of(seed, scale=0.5 + seed % 8)
        tables[:, :, [PAD, BOS]] = -20  # or they take so much that no late hypothesis ever wins
        options["max_lengths"] = np.random.default_rng(seed).integers(1, LENGTH + 1, BATCH)
        assert_same(beam(tables, **options), beam(tables, early_stop=False, **options))


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

    @functools.partial(jax.jit, static_argnames="early_stop")
    def search(tables, limits, early_stop):
        options = {"batch_size": 2, "max_length": LENGTH, "beam_size": 2, "max_lengths": limits, **IDS}
        return beam_search(counting_step, start(tables, 2), early_stop=early_stop, **options)

    def steps_taken(tables, limits=(LENGTH, LENGTH), early_stop=True):
        taken.clear()
        jax.block_until_ready(search(np.stack(tables), jnp.asarray(limits), early_stop))
        jax.effects_barrier()
        return len(taken)

    short, longer = chain(0.999), chain(0.001, 0.001, 0.999)
    assert steps_taken([short, short]) == 1
    assert steps_taken([short, longer]) == 3
    assert steps_taken([short, longer], early_stop=False) == LENGTH
    assert steps_taken([short, longer], limits=(2, 4), early_stop=False) == 4


# Rules: lengths, prefixes, special tokens.


def test_no_target_is_shorter_than_the_minimum():
    min_length = 4
    tables = tables_of(1) + np.eye(VOCABULARY, dtype=np.float32)[EOS] * 3
    result = beam(tables, beam_size=WIDE, alpha=0.6, min_length=min_length)
    for sentence, table in enumerate(tables):
        assert_found(result, sentence, brute_force(table, "gnmt", 0.6, min_length=min_length)[:1])
    for other in (greedy(tables, min_length=min_length), sample(tables, jax.random.key(0), min_length=min_length)):
        assert other.lengths_BN.min() == min_length


def test_prefixes_of_different_lengths_are_continued():
    tables = tables_of(2, 8)
    prefixes = [(), (A,), (B, B), (B, A, B), (A, A, A), (B,), (A, B), ()]
    padded = np.asarray([[*prefix, *[PAD] * (3 - len(prefix))] for prefix in prefixes])
    wide = beam(tables, beam_size=WIDE, n_best=2, prefix=padded)
    for sentence, (table, prefix) in enumerate(zip(tables, prefixes, strict=True)):
        assert_found(wide, sentence, brute_force(table, "gnmt", 0.6, prefix=prefix)[:2])
    for result in (greedy(tables, prefix=padded), sample(tables, jax.random.key(0), prefix=padded)):
        for sentence, prefix in enumerate(prefixes):
            target = targets_of(result, sentence)[0]
            assert target[: len(prefix)] == prefix
            rescored = log_probability(tables[sentence], target)
            np.testing.assert_allclose(result.log_probabilities_BN[sentence, 0], rescored, atol=1e-5)


def test_a_whole_target_as_prefix_is_scored():
    tables = tables_of(3, 2)
    targets = [(A, B, EOS), (EOS,)]
    padded = np.asarray([[A, B, EOS], [EOS, PAD, PAD]])
    for result in (greedy(tables, prefix=padded), beam(tables, prefix=padded, min_length=5, alpha=-0.7)):
        assert [targets_of(result, sentence)[0] for sentence in range(2)] == targets
        rescored = [log_probability(table, target) for table, target in zip(tables, targets, strict=True)]
        np.testing.assert_allclose(result.log_probabilities_BN[:, 0], rescored, atol=1e-5)


def test_a_limit_too_short_for_minimum_or_prefix_is_raised_to_hold_them():
    tables = tables_of(4, 3)
    prefix, limits = np.asarray([[A, A, A], [B, PAD, PAD], [PAD, PAD, PAD]]), np.asarray([2, 0, 100])
    lengths = beam(tables, prefix=prefix, max_lengths=limits, min_length=3).lengths_BN[:, 0]
    assert lengths[0] == 4 and lengths[1] == 3 and 3 <= lengths[2] <= LENGTH


def test_padding_and_beginning_are_never_generated():
    tables = tables_of(5)
    tables[:, :, [PAD, BOS]] += 30
    for result in (greedy(tables), beam(tables, n_best=4), sample(tables, jax.random.key(0))):
        for sentence in range(len(tables)):
            for target in targets_of(result, sentence):
                assert not {PAD, BOS} & set(target)
                assert target.index(EOS) == len(target) - 1


def test_a_beam_larger_than_the_number_of_targets_leaves_slots_empty():
    tables = tables_of(6, 2)
    result = beam(tables, beam_size=WIDE, n_best=WIDE, max_lengths=[1, LENGTH], length_penalty="none")
    np.testing.assert_array_equal(result.finished_BN.sum(axis=1), [1, 63])
    np.testing.assert_array_equal(result.lengths_BN[0, 1:], 0)
    assert (result.tokens_BNT[0, 1:] == PAD).all() and (result.scores_BN[0, 1:] == -np.inf).all()
    assert targets_of(result, 1)[:63] == [target for _, target in brute_force(tables[1], "none", 0)]


@pytest.mark.parametrize("search", [greedy, beam, lambda tables: sample(tables, jax.random.key(0))])
def test_what_the_model_rules_out_is_returned_only_for_want_of_better_and_marked(search):
    table = tables_of(7, 1)[0]
    never_b = table.copy()
    never_b[:, B] = -np.inf
    never_ends = table.copy()
    never_ends[:, EOS] = -np.inf
    nothing = np.full_like(table, -np.inf)
    result = search(np.stack([table, never_b, never_ends, nothing]))
    np.testing.assert_array_equal(result.finished_BN[:, 0], [True, True, False, False])
    assert all(np.isfinite(leaf).all() for leaf in result)
    assert B not in targets_of(result, 1)[0]
    assert all(target[-1] == EOS for sentence in range(4) for target in targets_of(result, sentence))


def test_a_model_that_returns_nan_does_not_hang():
    tables = tables_of(8, 2)
    tables[0] = np.nan
    for early_stop in (True, False):
        assert_found(beam(tables, early_stop=early_stop), 1, slow_beam(tables[1], 4, "gnmt", 0.6, 1))
    greedy(tables)


# Greedy search.


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


def test_a_beam_of_one_is_greedy_search():
    tables = tables_of(10)
    options = {"length_penalty": "average", "alpha": 1.0}
    one = beam(tables, beam_size=1, **options)
    assert_same(one, greedy(tables, **options))
    # Not a matter of course: a beam that went on after its <eos> would find better targets than the greedy ones.
    assert (beam(tables, beam_size=3, **options).scores_BN > one.scores_BN + 1e-5).any()


# Sentences do not know each other.


@pytest.mark.parametrize("search", [greedy, beam, lambda tables: beam(tables, n_best=4)])
def test_batch_companions_change_nothing(search):
    tables, others = tables_of(11, 16), tables_of(12, 16, scale=5.0)
    order = np.random.default_rng(0).permutation(16)
    alone = search(tables)
    mixed = search(np.where((np.arange(16) < 8)[:, None, None], tables, others)[order])
    for row, sentence in enumerate(order):
        if sentence < 8:
            assert_same(
                *(jax.tree.map(lambda leaf, i=i: leaf[i], found) for found, i in ((alone, sentence), (mixed, row)))
            )


# Sentences that go on are searched to the end without those that are over.


KEY = jax.random.key(5)
SEARCHES = {
    "greedy": greedy,
    "sample": lambda tables, **options: sample(tables, KEY, top_k=3, **options),
    "beam": lambda tables, **options: beam(tables, n_best=4, **options),
    "beam, alpha < 0": lambda tables, **options: beam(tables, length_penalty="average", alpha=-0.1, **options),
    "beam to every limit": lambda tables, **options: beam(tables, early_stop=False, **options),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("tail", [Tail(1), Tail(4), Tail(11)])
@pytest.mark.parametrize("stages", [(), (Stage(2, lambda cache: cache),)], ids=["once few", "also in turns"])
def test_the_tail_changes_nothing(search, tail, stages):
    """After two positions most sentences still go on: with that stage they take turns."""
    tables = tables_of(13) - 3 * (np.arange(VOCABULARY) == EOS).astype(np.float32)
    limits = np.random.default_rng(13).integers(1, LENGTH + 1, BATCH)
    prefix = np.where(np.arange(BATCH)[:, None] % 3 == 0, [A], [PAD])
    whole = search(tables, max_lengths=limits, prefix=prefix)
    assert len(set(whole.lengths_BN[:, 0].tolist())) > 3
    assert_same(search(tables, max_lengths=limits, prefix=prefix, tail=tail, stages=stages), whole)


def rows_computed(limits, beam_size, **options):
    """How many at each step, where every sentence ends at its limit."""
    rows = []

    def watched_step(tokens_R, cache):
        jax.debug.callback(lambda: rows.append(tokens_R.size), ordered=True)
        return step(tokens_R, cache)

    tables = np.where(np.arange(VOCABULARY) == EOS, -99.0, tables_of(14)).astype(np.float32)
    options |= {"batch_size": BATCH, "max_length": LENGTH, "max_lengths": limits, "beam_size": beam_size, **IDS}
    found = jax.jit(lambda: beam_search(watched_step, start(tables, beam_size), **options))()
    jax.effects_barrier()
    np.testing.assert_array_equal(found.lengths_BN[:, 0], limits)
    return rows


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_tail_begins_when_few_go_on(beam_size):
    """After the third position 4 of 16 go on, and only their rows are computed."""
    limits = jnp.asarray([1, 1, 1, 1, 2, 2, 2, 4, 3, 3, 3, 5, 3, 3, 6, 6])
    assert rows_computed(limits, beam_size, tail=Tail(4)) == [BATCH * beam_size] * 3 + [4 * beam_size] * 3


def test_who_had_a_turn_keeps_no_one_waiting():
    """Two positions together, the 6 that go on in turns of 4; with the last two are two that were first, and longer."""
    limits = jnp.asarray([6, 6, 6, 6, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 4])
    stages = [Stage(2, lambda cache: cache)]
    assert rows_computed(limits, 1, tail=Tail(4), stages=stages) == [16] * 2 + [4] * 4 + [4] * 2


def test_new_data_compiles_nothing():
    key, traced = jax.random.key(0), []

    @jax.jit
    def search(tables, limits, prefix, key):
        traced.append(1)
        options = {"batch_size": 4, "max_length": LENGTH, "max_lengths": limits, "prefix": prefix, **IDS}
        beams = beam_search(step, start(tables, 4), **options)
        return beams, greedy_search(step, start(tables), **options), sample_search(step, start(tables), key, **options)

    for seed in range(3):
        search(tables_of(seed, 4), jnp.asarray([seed, 3, 4, 5]), jnp.asarray([[PAD], [A], [B], [PAD]]), key)
    assert len(traced) == 1


# The cache.


def test_default_reorder_moves_rows_and_leaves_the_rest():
    cache = {"rows": jnp.arange(12).reshape(6, 2), "sentences": jnp.arange(2), "position": jnp.int32(7)}
    moved = gather_beams(cache, jnp.asarray([[2, 2, 0], [1, 0, 1]]))
    np.testing.assert_array_equal(moved["rows"][:, 0], [4, 4, 0, 8, 6, 8])
    np.testing.assert_array_equal(moved["sentences"], [0, 1])
    assert moved["position"] == 7


def test_a_repeated_cache_keeps_a_sentence_together():
    repeated = repeat_beams({"rows": jnp.asarray([[1], [2]]), "position": jnp.int32(7)}, 3)
    np.testing.assert_array_equal(repeated["rows"][:, 0], [1, 1, 1, 2, 2, 2])
    assert repeated["position"] == 7


def test_a_model_may_reorder_its_cache_its_own_way():
    # Rows keep their own history and are never moved; a table of ancestors says whose history a row continues.
    def own_step(tokens_R, cache):
        position, rows = cache["position"], jnp.arange(tokens_R.size)
        written_RT = cache["tokens_RT"].at[:, position].set(tokens_R)
        ancestors_RT = cache["ancestors_RT"].at[:, position].set(rows)
        history_RT = written_RT[ancestors_RT, jnp.arange(LENGTH)[None, :]]
        is_past_T = (jnp.arange(LENGTH) <= position) & (jnp.arange(LENGTH) > 0)
        node_R = jnp.ones_like(tokens_R)
        for t in range(LENGTH):
            node_R = jnp.where(is_past_T[t], jnp.clip(2 * node_R + history_RT[:, t] - A, 0, NODES - 1), node_R)
        logits_RV = cache["table_BNV"][rows // 3, node_R]
        return logits_RV, cache | {"position": position + 1, "tokens_RT": written_RT, "ancestors_RT": ancestors_RT}

    def own_reorder(cache, parents_BK):
        return cache | {"ancestors_RT": gather_beams(cache["ancestors_RT"], parents_BK)}

    tables = tables_of(13, 8)
    empty = jnp.zeros((24, LENGTH), jnp.int32)
    cache = {"table_BNV": jnp.asarray(tables), "position": jnp.int32(0), "tokens_RT": empty, "ancestors_RT": empty}
    options = {"batch_size": 8, "max_length": LENGTH, "beam_size": 3, "n_best": 3, **IDS}
    assert_same(
        jax.jit(lambda: beam_search(own_step, cache, reorder=own_reorder, **options))(),
        beam(tables, beam_size=3, n_best=3),
    )


# Sampling.


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
    options = {
        "batch_size": draws,
        "max_length": limit,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        **IDS,
    }
    result = jax.jit(lambda key: sample_search(step, start(tables), key, **options))(jax.random.key(1))
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
    assert (result.tokens_BNT != sample(tables, jax.random.key(1)).tokens_BNT).any()
    moved = sample(tables[order], jax.random.key(0), sentence_ids=order)
    assert_same(jax.tree.map(lambda leaf: leaf[order], result), moved)
    # Two sentences of one distribution are drawn independently.
    alike = sample(np.broadcast_to(tables[:1], tables.shape), jax.random.key(0))
    assert len(frequencies(alike)) > 4


def test_a_tiny_temperature_is_greedy():
    tables = tables_of(16)
    assert_same(sample(tables, jax.random.key(0), temperature=1e-30), greedy(tables))


# Candidates.


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 5, 256, 257, 1000]), st.sampled_from([1, 4]), st.integers(0, 2**32 - 1))
def test_largest_entries_are_those_of_a_stable_sort(width, count, seed):
    # Rounded, so that there are ties among the largest, also between a block whose maximum is larger and one before it.
    values = np.round(np.random.default_rng(seed).normal(0, 2, (8, width))).astype(np.float32) + 0  # no -0.0
    values[values < -3] = -np.inf
    expected = np.argsort(-values, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(largest_entries(jnp.asarray(values), count), expected)


def test_a_large_vocabulary_is_searched_like_a_small_one():
    # The same tables behind a vocabulary of a thousand, its possible tokens far apart, in several blocks.
    tables, places = tables_of(17), np.array([0, 1, 70, 500, 999])
    ids = {"bos_id": 1, "eos_id": 70, "pad_id": 0}

    def large_step(tokens_R, cache):
        small_R = jnp.argmax(tokens_R[:, None] == jnp.asarray(places)[None, :], axis=1)
        logits_RV, cache = step(small_R, cache)
        return jnp.full((tokens_R.size, 1000), -jnp.inf).at[:, places].set(logits_RV), cache

    options = {"batch_size": 16, "max_length": LENGTH, **ids}
    large_beam = jax.jit(lambda: beam_search(large_step, start(tables, 3), beam_size=3, n_best=2, **options))()
    large_greedy = jax.jit(lambda: greedy_search(large_step, start(tables), **options))()
    for large, small in ((large_beam, beam(tables, beam_size=3, n_best=2)), (large_greedy, greedy(tables))):
        np.testing.assert_array_equal(large.tokens_BNT, places[np.asarray(small.tokens_BNT)])
        np.testing.assert_allclose(large.scores_BN, small.scores_BN, atol=1e-5)


def test_decoding_may_start_from_padding_or_from_the_end():
    # Marian starts with <pad>, fairseq with <eos>: neither is then kept from ending a target.
    def shifted(first):
        return lambda tokens_R, cache: step(
            jnp.where((cache["node_R"] == 0) & (tokens_R == first), BOS, tokens_R), cache
        )

    tables = tables_of(18)
    for first in (PAD, EOS):
        options = {"batch_size": 16, "max_length": LENGTH, "bos_id": first, "eos_id": EOS, "pad_id": PAD}
        tables[:, :, BOS] = -50  # an ordinary token now
        result = jax.jit(lambda first=first, options=options: greedy_search(shifted(first), start(tables), **options))()
        np.testing.assert_array_equal(result.tokens_BNT, greedy(tables).tokens_BNT)


# What is refused.


@pytest.mark.parametrize(("search", "options", "message"), [
    (beam_search, {"length_penalty": "wu"}, "length_penalty is 'wu': must be one of gnmt, average, none"),
    (beam_search, {"alpha": float("nan")}, "alpha is nan: must be a finite number"),
    (beam_search, {"length_penalty": "average", "alpha": 50.0}, "alpha is 50.0: the average penalty of 4 tokens is"),
    (beam_search, {"beam_size": 0}, "beam_size is 0: must be >= 1"),
    (beam_search, {"n_best": 5}, "n_best is 5: must be between 1 and beam_size, which is 4"),
    (beam_search, {"n_best": 0}, "n_best is 0: must be between 1 and beam_size, which is 4"),
    (beam_search, {"beam_size": 1, "n_best": 2}, "n_best is 2: must be between 1 and beam_size, which is 1"),
    (greedy_search, {"min_length": 7}, "min_length is 7: must be between 0 and max_length, which is 6"),
    (greedy_search, {"max_length": 0}, "batch_size is 2 and max_length 0: both must be >= 1"),
    (greedy_search, {"pad_id": EOS}, "pad_id and eos_id are both 2"),
    (greedy_search, {"max_lengths": np.ones(3, int)}, "max_lengths has shape (3,): must be (2,)"),
    (greedy_search, {"prefix": np.ones((3, 2), int)}, "prefix has shape (3, 2): must be (2, 3)"),
    (greedy_search, {"prefix": np.ones((2, 6), int)}, "prefix has 6 positions: must be less than max_length, 6"),
    (sample_search, {"temperature": 0.0}, "temperature is 0.0: must be finite and > 0 (its limit 0 is greedy_search)"),
    (sample_search, {"top_k": 0}, "top_k is 0: must be >= 1"),
    (sample_search, {"top_p": 0.0}, "top_p is 0.0: must be in (0, 1]"),
    (sample_search, {"top_p": 1.5}, "top_p is 1.5: must be in (0, 1]"),
    (sample_search, {"sentence_ids": np.ones(3, int)}, "sentence_ids has shape (3,): must be (2,)"),
    (beam_search, {"tail": Tail(3)}, "tail has 3 sentences: must be between 1 and the batch's 2"),
    (greedy_search, {"tail": Tail(0)}, "tail has 0 sentences: must be between 1 and the batch's 2"),
])  # fmt: skip
def test_bad_arguments_get_one_clear_line(search, options, message):
    key = {"key": jax.random.key(0)} if search is sample_search else {}
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        search(step, start(tables_of(0, 2)), **{"batch_size": 2, "max_length": LENGTH, **IDS, **key, **options})
    assert "\n" not in str(error.value)
