"""Stages and the tail change no result, and the tail computes only the rows of unfinished sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.searches import (
    BATCH,
    EOS,
    LENGTH,
    PAD,
    VOCABULARY,
    A,
    assert_same,
    beam,
    greedy,
    sample,
    searched,
    start,
    step,
    tables_of,
)
from transformer_jax.search.beam import beam_search
from transformer_jax.search.loop import Stage

IN_TURNS = (Stage(2, lambda cache: cache),)
KEY = jax.random.key(5)
SEARCHES = {
    "greedy": greedy,
    "sample": lambda tables, **options: sample(tables, KEY, top_k=3, **options),
    "beam": lambda tables, **options: beam(tables, n_best=4, **options),
}


@pytest.mark.parametrize(
    ("search", "tail", "stages"),
    [("greedy", 1, IN_TURNS), ("sample", 4, IN_TURNS), ("beam", 4, IN_TURNS), ("beam", 11, ())],
)
def test_the_tail_changes_nothing(search, tail, stages):
    """After two positions most sentences are still live: with that stage they take turns."""
    tables = tables_of(13) - 3 * (np.arange(VOCABULARY) == EOS).astype(np.float32)
    limits = np.random.default_rng(13).integers(1, LENGTH + 1, BATCH)
    prefix = np.where(np.arange(BATCH)[:, None] % 3 == 0, [A], [PAD])
    search = SEARCHES[search]
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
    options |= {"batch_size": BATCH, "max_lengths": limits, "beam_size": beam_size}
    found = jax.jit(lambda: searched(beam_search, watched_step, start(tables, beam_size), **options))()
    jax.effects_barrier()
    np.testing.assert_array_equal(found.lengths_BN[:, 0], limits)
    return rows


def test_the_tail_begins_when_few_are_live():
    """After the third position 4 of 16 are live, and only their rows are computed."""
    limits = jnp.asarray([1, 1, 1, 1, 2, 2, 2, 4, 3, 3, 3, 5, 3, 3, 6, 6])
    assert rows_computed(limits, 4, tail=4) == [BATCH * 4] * 3 + [4 * 4] * 3


def test_sentences_that_had_a_turn_delay_no_others():
    """Two positions together, then the 6 live ones in turns of 4; beside the last two are two finished, longer ones."""
    limits = jnp.asarray([6, 6, 6, 6, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 4])
    stages = IN_TURNS
    assert rows_computed(limits, 1, tail=4, stages=stages) == [16] * 2 + [4] * 4 + [4] * 2
