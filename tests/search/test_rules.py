"""What every search keeps to: lengths, prefixes and special tokens; and what is refused."""

import functools
import re

import jax
import jax.export
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
    beam,
    brute_force,
    greedy,
    log_probability,
    sample,
    searched,
    slow_beam,
    start,
    step,
    tables_of,
    targets_of,
)
from transformer_jax.search.beam import beam_search
from transformer_jax.search.greedy import greedy_search
from transformer_jax.search.sampling import sample_search


def test_no_target_is_shorter_than_the_minimum():
    min_length = 4
    tables = tables_of(1) + np.eye(VOCABULARY, dtype=np.float32)[EOS] * 3
    result = beam(tables, beam_size=WIDE, alpha=0.6, min_length=min_length)
    for sentence, table in enumerate(tables):
        assert_found(result, sentence, brute_force(table, "gnmt", 0.6, min_length=min_length)[:1])
    for other in (greedy(tables, min_length=min_length), sample(tables, jax.random.key(0), min_length=min_length)):
        assert other.lengths_BN.min() == min_length


def test_each_sentence_has_its_own_shortest_and_longest_length():
    """From one token to the greatest length, in one batch; where both are equal, the length is given."""
    tables = tables_of(11) + np.eye(VOCABULARY, dtype=np.float32)[EOS] * 3
    shortest = np.arange(len(tables)) % (LENGTH + 1)
    longest = np.where(np.arange(len(tables)) % 2, np.maximum(shortest, 1), LENGTH)
    lengths = {"min_lengths": shortest, "max_lengths": longest}
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


def test_a_model_that_returns_nan_does_not_hang():
    tables = tables_of(8, 2)
    tables[0] = np.nan
    for early_stop in (True, False):
        assert_found(beam(tables, early_stop=early_stop), 1, slow_beam(tables[1], 4, "gnmt", 0.6, 1))
    greedy(tables)


def test_decoding_may_start_from_padding_or_from_the_end():
    # Marian starts with <pad>, fairseq with <eos>: neither is then kept from ending a target.
    def shifted(first):
        return lambda tokens_R, cache: step(
            jnp.where((cache["node_R"] == 0) & (tokens_R == first), BOS, tokens_R), cache
        )

    tables = tables_of(18)
    for first in (PAD, EOS):
        tables[:, :, BOS] = -50  # an ordinary token now
        options = {"batch_size": 16, "bos_id": first}
        result = jax.jit(functools.partial(searched, greedy_search, shifted(first), start(tables), **options))()
        np.testing.assert_array_equal(result.tokens_BNT, greedy(tables).tokens_BNT)


def test_a_cache_of_numbers_without_a_type_takes_that_of_the_step():
    """As jnp.full((2,), 0), which becomes float32 where a float is added."""
    tables = tables_of(0, 2)

    def counting(tokens_R, cache):
        logits_RV, states = step(tokens_R, cache["states"])
        return logits_RV, {"states": states, "count": cache["count"] + jnp.float32(1)}

    cache = {"states": start(tables), "count": jnp.full((2,), 0)}
    result = searched(greedy_search, counting, cache, batch_size=2)
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
    (greedy_search, {"min_lengths": np.ones(3, int)}, "min_lengths has shape (3,): must be (2,)"),
    (greedy_search, {"max_lengths": np.ones(3, int)}, "max_lengths has shape (3,): must be (2,)"),
    (greedy_search, {"prefix": np.ones((3, 2), int)}, "prefix has shape (3, 2): must be (2, 3)"),
    (greedy_search, {"prefix": np.ones((2, 6), int)}, "prefix has 6 positions: must be less than max_length, 6"),
    (sample_search, {"temperature": 0.0}, "temperature is 0.0: must be finite and > 0 (its limit 0 is greedy_search)"),
    (sample_search, {"top_k": 0}, "top_k is 0: must be >= 1"),
    (sample_search, {"top_p": 0.0}, "top_p is 0.0: must be in (0, 1]"),
    (sample_search, {"top_p": 1.5}, "top_p is 1.5: must be in (0, 1]"),
    (sample_search, {"keys": jax.random.split(jax.random.key(0), 3)}, "keys has shape (3,): must be (2,)"),
    (greedy_search, {"eos_id": -1}, "eos_id is -1: must be >= 0"),
    (greedy_search, {"prefix": np.array([[A], [-9]])}, "prefix has the id -9: must be >= 0"),
    (greedy_search, {"prefix": np.array([[PAD, A], [A, A]])}, "prefix has a token after <pad> or <eos>"),
    (greedy_search, {"prefix": np.array([[A, A], [EOS, A]])}, "prefix has a token after <pad> or <eos>"),
    (greedy_search, {"prefix": np.ones((2, 1))}, "prefix has values of the type float"),
    *((greedy_search, {name: VOCABULARY}, f"{name} is 5: must be between 0 and 4 (step gives 5 logits)")
      for name in IDS),
    (greedy_search, {"prefix": np.array([[A], [9]])}, "prefix has the id 9: must be between 0 and 4"),
    *((beam_search, {name: value}, f"{name} is {value}: must be an int")
      for name, value in [("max_length", 5.0), ("eos_id", None), ("bos_id", [2, 3]), ("beam_size", 4.0)]),
    (beam_search, {"max_length": jax.export.symbolic_shape("n")[0]}, "max_length is n: must be an int, not symbolic"),
    (beam_search, {"tail": 3}, "tail is 3 sentences: must be between 1 and batch_size, 2"),
    (greedy_search, {"tail": 0}, "tail is 0 sentences: must be between 1 and batch_size, 2"),
])  # fmt: skip
def test_bad_arguments_get_one_clear_line(search, options, message):
    options = {"batch_size": 2, **({"keys": jax.random.key(0)} if search is sample_search else {}), **options}
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        searched(search, step, start(tables_of(0, 2)), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("broken_step", "message"), [
    (lambda logits, cache: logits, "step returned an array: must be a tuple, (logits, cache)"),
    (lambda logits, cache: (cache, logits), "step returned (dict, an array): must be (logits, cache), in this order"),
    (lambda logits, cache: (logits, {}), "step returned a cache that lacks cache['node_R']"),
    (lambda logits, cache: (logits, cache | {"node_R": cache["node_R"][:1]}),
     "step returned cache['node_R'] with the shape (1,): must be (2,), as it was given"),
    (lambda logits, cache: (logits, cache | {"node_R": cache["node_R"] + 1.0}),
     "step returned cache['node_R'] as float32: must be int32, as it was given"),
])  # fmt: skip
def test_a_step_that_returns_something_else_gets_one_clear_line(broken_step, message):
    cache = start(tables_of(0, 2))
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        searched(greedy_search, lambda *given: broken_step(*step(*given)), cache, batch_size=2)
    assert "\n" not in str(error.value)
