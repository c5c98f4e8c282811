"""What every search keeps to: lengths, prefixes and special tokens; and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.searches import (
    BOS,
    EOS,
    IDS,
    LENGTH,
    PAD,
    VOCABULARY,
    WIDE,
    A,
    B,
    assert_found,
    assert_same,
    beam,
    brute_force,
    every_target,
    greedy,
    log_probability,
    sample,
    searched,
    start,
    step,
    tables_of,
    targets_of,
)
from transformer_jax.search.beam import beam_search, gather_beams
from transformer_jax.search.sampling import greedy_search, sample_search
from transformer_jax.search.targets import SearchRules


def test_each_sentence_has_its_own_shortest_and_longest_length():
    """From one token to the greatest length, in one batch; where both are equal, the length is given."""
    tables = tables_of(11) + np.eye(VOCABULARY, dtype=np.float32)[EOS] * 3
    shortest = np.arange(len(tables)) % (LENGTH + 1)
    longest = np.where(np.arange(len(tables)) % 2, np.maximum(shortest, 1), LENGTH)
    lengths = {"min_length": shortest, "max_lengths": longest}
    wide = beam(tables, beam_size=WIDE, alpha=0.6, **lengths)
    for sentence, (table, least, limit) in enumerate(zip(tables, shortest, longest, strict=True)):
        assert_found(wide, sentence, brute_force(table, "gnmt", 0.6, limit=limit, min_length=least)[:1])
    for other in (greedy(tables, **lengths), sample(tables, jax.random.key(0), **lengths)):
        assert (other.lengths_BN[:, 0] >= shortest).all() and (other.lengths_BN[1::2, 0] == longest[1::2]).all()


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


@pytest.mark.parametrize("search", [greedy_search, sample_search, beam_search])
@pytest.mark.parametrize("ids", [(0, 1, 2), (0, 1, 0)], ids=["three", "two"])  # <bos>, <eos>, <pad>
def test_without_an_ordinary_token_no_target_of_two_is_finished(search, ids):
    rules = SearchRules(1, 3, *ids, min_length=2)
    options = {beam_search: {"reorder": gather_beams}, sample_search: {"keys": jax.random.key(0)}}.get(search, {})
    step_R = lambda tokens_R, cache: (jnp.zeros((tokens_R.size, len(set(ids)))), cache)  # noqa: E731
    assert not search(step_R, {}, rules, **options).finished_BN.any()


SEARCHES = {
    "beam": beam,
    "greedy": greedy,
    "sample": lambda tables, **options: sample(tables, jax.random.key(0), **options),
    "nucleus": lambda tables, **options: sample(tables, jax.random.key(0), top_p=0.9, **options),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_nan_among_the_logits_makes_the_score_nan_and_the_target_unfinished(search):
    """All logits, one, that of <pad>, or some from the third position on, as of a cache without room for it."""
    tables = tables_of(8, 8) - 20 * np.eye(VOCABULARY, dtype=np.float32)[EOS]
    usual = SEARCHES[search](tables)
    places = [(slice(None), slice(None)), (slice(None), B), (slice(None), PAD), (slice(4, None), A)]
    for sentence, where in enumerate(places):
        tables[sentence][where] = np.nan
    found = SEARCHES[search](tables)
    for sentence in range(len(places)):
        scores = found.scores_BN[sentence], found.log_probabilities_BN[sentence]
        assert np.isnan(scores).all() and not found.finished_BN[sentence].any()
        (target,) = targets_of(found, sentence)
        assert target.index(EOS) == len(target) - 1 and not {PAD, BOS} & set(target)
    assert_same(*(jax.tree.map(lambda leaf: leaf[len(places) :], result) for result in (found, usual)))


@pytest.mark.parametrize("search", [greedy_search, beam_search])
@pytest.mark.parametrize("token", [-2, VOCABULARY])
def test_a_traced_prefix_beyond_the_vocabulary_makes_the_score_nan(search, token):
    tables = tables_of(8, 2)

    @jax.jit
    def run(prefix):
        cache = start(tables, 4 if search is beam_search else 1)
        return searched(search, step, cache, batch_size=2, prefix=prefix)

    found = run(jnp.asarray([[token], [A]]))
    np.testing.assert_array_equal(np.isnan(found.scores_BN[:, 0]), [True, False])
    assert not found.finished_BN[0, 0]


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_padding_may_be_the_end(search):
    """As in GPT-2, where <bos> is the same token, too."""
    tables, options = tables_of(18), {"beam_size": 3, "n_best": 3} if search is beam_search else {}
    tables[:, :, [PAD, BOS]] = -50
    cache = start(tables, options.get("beam_size", 1))

    def step_from_eos(tokens_R, cache):
        return step(jnp.where(cache["node_R"] == 0, BOS, tokens_R), cache)

    same = {"bos_id": EOS, "eos_id": EOS, "pad_id": EOS}
    prefix = np.where(np.arange(16)[:, None] % 2, [[A, B]], [[EOS, EOS]])
    usual_prefix = np.where(prefix == EOS, PAD, prefix)
    found = jax.jit(lambda: searched(search, step_from_eos, cache, batch_size=16, prefix=prefix, **same, **options))()
    usual = jax.jit(lambda: searched(search, step, cache, batch_size=16, prefix=usual_prefix, **options))()
    np.testing.assert_array_equal(found.tokens_BNT, np.where(usual.tokens_BNT == PAD, EOS, usual.tokens_BNT))
    for ours, theirs in zip(found[1:], usual[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_exponent_of_the_penalty_may_be_traced():
    tables = tables_of(20)
    traced = jax.jit(lambda alpha: searched(beam_search, step, start(tables, 4), batch_size=16, n_best=4, alpha=alpha))
    for alpha in (0.6, -0.7):
        found, known = traced(alpha), beam(tables, n_best=4, alpha=alpha)
        np.testing.assert_array_equal(found.tokens_BNT, known.tokens_BNT)
        np.testing.assert_allclose(found.scores_BN, known.scores_BN, rtol=1e-6)
    assert traced._cache_size() == 1
    assert np.isnan(traced(np.nan).scores_BN).all()


def test_a_penalty_beyond_float32_is_no_score():
    tables = tables_of(20)
    traced = jax.jit(lambda alpha: searched(beam_search, step, start(tables, 4), batch_size=16, n_best=4, alpha=alpha))
    assert np.isnan(traced(1e4).scores_BN).all() and np.isnan(traced(-1e4).scores_BN).all()


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16])
def test_lengths_may_be_of_any_integer_type(kind):
    given = {"min_length": np.array([1, 100], kind), "max_lengths": np.array([20, 120], kind)}
    rules = SearchRules(batch_size=2, max_length=40_000, bos_id=BOS, eos_id=EOS, pad_id=PAD, **given)
    assert rules.constraints()["limits_B"].tolist() == [20, 120]


def has_repeat(target, size):
    grams = [target[i : i + size] for i in range(len(target) - size + 1)]
    return len(grams) > len(set(grams))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_occurs_twice(size):
    """The best of all targets without one, by enumeration; the log-probabilities stay those of the model."""
    tables, options = tables_of(21), {"no_repeat_ngram_size": size, "min_length": 3}
    tables[:, :, A] += 2  # without the rule most targets are As
    tables[0, :, B] = -np.inf
    wide = beam(tables, beam_size=WIDE, n_best=2, **options)
    for sentence, table in enumerate(tables[1:], start=1):
        allowed = [each for each in brute_force(table, "gnmt", 0.6, min_length=3) if not has_repeat(each[1], size)]
        assert_found(wide, sentence, allowed[:2])
    assert wide.finished_BN[0].any() == (size > 1)  # only As, at least two
    for found in (greedy(tables, **options), sample(tables, jax.random.key(0), **options)):
        for sentence, (target,) in enumerate(targets_of(found, sentence) for sentence in range(len(tables))):
            assert found.finished_BN[sentence, 0] == (not has_repeat(target, size) and (sentence > 0 or size > 1))
    longest = beam(tables, min_length=LENGTH)
    assert any(has_repeat(targets_of(longest, sentence)[0], size) for sentence in range(len(tables)))


def test_a_prefix_may_repeat_itself_and_is_not_repeated():
    tables = tables_of(22, 2)
    found = beam(tables, beam_size=WIDE, prefix=[[A, A, A], [A, B, A]], no_repeat_ngram_size=2, n_best=9)
    targets = [targets_of(found, sentence) for sentence in range(2)]
    expected = {(A, A, A, *more, EOS) for more in ((), (B,), (B, A), (B, B))}
    assert {target for target in targets[0] if target} == expected
    assert {target for target in targets[1] if target} == {(A, B, A, EOS), (A, B, A, A, EOS)}


@pytest.mark.parametrize("search", [greedy_search, beam_search, sample_search])
def test_a_search_starts_after_a_prompt_that_is_in_the_cache(search):
    """With first tokens of <bos> nothing changes; with others the first step reads them."""
    tables, keys = tables_of(23), (jax.random.key(0),) if search is sample_search else ()
    options = {"beam_size": WIDE} if search is beam_search else {}
    cache = start(tables, options.get("beam_size", 1))

    @jax.jit
    def found(node, first_tokens):
        given = {**cache, "node_R": jnp.full_like(cache["node_R"], node)}
        rules = {"batch_size": len(tables), "max_length": 4, "length_penalty": "none", "first_tokens": first_tokens}
        return searched(search, step, given, *keys, **rules, **options)

    usual = jax.jit(
        lambda: searched(search, step, cache, *keys, batch_size=16, max_length=4, length_penalty="none", **options)
    )
    assert_same(found(0, np.full(16, BOS)), usual())
    prompts = np.where(np.arange(16) % 2, A, B)
    continued = found(1, prompts)
    for sentence, table in enumerate(tables):
        prompt = (int(prompts[sentence]),)
        ((target,), shift) = targets_of(continued, sentence), log_probability(table, prompt)
        expected = log_probability(table, prompt + target) - shift
        np.testing.assert_allclose(continued.log_probabilities_BN[sentence, 0], expected, atol=1e-5)
        if search is beam_search:
            best = max(log_probability(table, prompt + other) - shift for other in every_target(4))
            np.testing.assert_allclose(expected, best, atol=1e-5)


# What is refused.


@pytest.mark.parametrize(("search", "options", "name"), [
    (beam_search, {"n_best": 5}, "n_best"),
    (greedy_search, {"min_length": 7}, "min_length"),
    (greedy_search, {"max_length": 0}, "max_length"),
    (greedy_search, {"length_penalty": "gmnt"}, "length_penalty = 'gmnt': must be one of gnmt"),
    (greedy_search, {"min_length": np.ones(3, int)}, "min_length"),
    (greedy_search, {"prefix": np.ones((3, 2), int)}, "prefix"),
    (greedy_search, {"prefix": np.ones((2, 6), int)}, "prefix"),
    (greedy_search, {"prefix": np.array([[A], [-9]])}, "prefix"),
    (greedy_search, {"prefix": np.array([[PAD, A], [A, A]])}, "prefix has a token after"),
    (greedy_search, {"prefix": np.array([[BOS, A], [A, A]])}, "prefix has <bos>"),
    (beam_search, {"alpha": np.array([0.6, 1.0])}, r"must be one finite number for all sentences"),
    (greedy_search, {"alpha": np.inf}, "alpha = inf: must be one finite number"),
    (greedy_search, {"alpha": 1e4}, "alpha = 10000.0: the penalty of 6 tokens is inf in float32"),
    (greedy_search, {"alpha": "0.6"}, "alpha = '0.6': must be one finite number"),
    (greedy_search, {"prefix": np.array([[4.5], [3.0]])}, "prefix is float64: must be whole numbers"),
    (greedy_search, {"first_tokens": np.ones(2)}, "first_tokens is float64: must be whole numbers"),
    (greedy_search, {"first_tokens": np.array([1, 2, 3])}, r"first_tokens has the shape \(3,\): must be \(2,\)"),
    (greedy_search, {"first_tokens": np.array([1, 9])}, "first_tokens is .* ids must be between 0 and 4"),
    (greedy_search, {"no_repeat_ngram_size": 0}, "no_repeat_ngram_size = 0: must be a whole number, at least 1"),
    (greedy_search, {"max_length": 2.5}, "max_length = 2.5: must be a whole number"),
    (sample_search, {"temperature": 0.0}, "temperature"),
    (sample_search, {"top_k": 0}, "top_k"),
    (sample_search, {"top_p": 1.5}, "top_p"),
    (sample_search, {"keys": 0}, "keys is 0: must be a key"),
    (sample_search, {"keys": jax.random.split(jax.random.key(0), 3)}, "keys"),
    *((greedy_search, {name: VOCABULARY}, name) for name in IDS),
    (greedy_search, {"pad_id": None}, "pad_id = None: must be the id of one token"),
    (beam_search, {"eos_id": [2, 3]}, r"eos_id = \[2, 3\]: must be the id of one token"),
])  # fmt: skip
def test_bad_arguments_are_named(search, options, name):
    options = {"batch_size": 2, **({"keys": jax.random.key(0)} if search is sample_search else {}), **options}
    with pytest.raises(ValueError, match=name):
        searched(search, step, start(tables_of(0, 2)), **options)


@pytest.mark.parametrize("search", SEARCHES)
def test_ids_of_numpy_are_ids_with_64_bits_too(search):
    tables, ids = tables_of(0, 2), {name: np.int64(token) for name, token in IDS.items()}
    usual = SEARCHES[search](tables)
    with jax.enable_x64(True):
        found = SEARCHES[search](tables, **ids)
    assert np.array_equal(found.tokens_BNT, usual.tokens_BNT)


@pytest.mark.parametrize(("search", "name"), [
    (beam_search, "beam_size"), (beam_search, "n_best"), (greedy_search, "max_length"), (sample_search, "top_k"),
])  # fmt: skip
def test_what_a_program_is_compiled_for_is_not_traced(search, name):
    keys = (jax.random.key(0),) if search is sample_search else ()
    with pytest.raises(ValueError, match=f"{name} is traced: must be known when the search is compiled"):
        jax.jit(lambda size: searched(search, step, start(tables_of(0, 2)), *keys, batch_size=2, **{name: size}))(2)


def test_logits_need_a_row_for_each_token():
    """One row would be broadcast, and every sentence would get the same target."""

    def one_row(tokens_R, cache):
        return cache["table_BNV"][:1, 0], cache

    with pytest.raises(ValueError, match="logits"):
        searched(greedy_search, one_row, start(tables_of(0, 2)), batch_size=2)
