"""Length penalties; test_beam.py compares the searches that use them with every target there is."""

import jax
import numpy as np

from tests.support.searches import beam, searched, start, step, tables_of
from transformer_jax.search.beam import beam_search


def test_the_exponent_of_the_penalty_may_be_traced():
    tables = tables_of(20)
    traced = jax.jit(lambda alpha: searched(beam_search, step, start(tables, 4), batch_size=16, n_best=4, alpha=alpha))
    for alpha in (0.6, -0.7):
        found, known = traced(alpha), beam(tables, n_best=4, alpha=alpha)
        np.testing.assert_array_equal(found.tokens_BNT, known.tokens_BNT)
        np.testing.assert_allclose(found.scores_BN, known.scores_BN, rtol=1e-6)
    assert traced._cache_size() == 1
    assert np.isnan(traced(np.nan).scores_BN).all()
