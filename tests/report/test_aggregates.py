"""Aggregates over tasks, by hand."""

import numpy as np
import pytest
from scipy import stats

from transformer_jax.report import aggregates
from transformer_jax.report.aggregates import (
    interquartile_mean,
    interval,
    performance_profile,
    probability_of_improvement,
)

SCORES = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]])  # four runs on two tasks


def by_task(scores_RM):
    return [scores_RM[:, task : task + 1] for task in range(scores_RM.shape[1])]


@pytest.mark.parametrize("blocks", [[SCORES], by_task(SCORES)], ids=["one block", "a block for each task"])
def test_aggregates_by_hand(blocks):
    assert interquartile_mean(blocks) == (3 + 4 + 10 + 20) / 4  # 1, 2 and 30, 40 are left out
    others = [block * 0 + 2.5 for block in blocks]
    assert probability_of_improvement(blocks, others) == (0.5 + 1) / 2
    np.testing.assert_array_equal(performance_profile(blocks, [0, 2, 10, 40]), [1, (0.5 + 1) / 2, (0 + 0.75) / 2, 0])


def test_aggregates_agree_with_scipy():
    """A 25 % trimmed mean, and the U of Mann and Whitney over the number of pairs."""
    rng = np.random.default_rng(0)
    ours, theirs = rng.integers(0, 5, (7, 3)).astype(float), rng.integers(0, 5, (4, 3)).astype(float)
    assert interquartile_mean(by_task(ours)) == pytest.approx(stats.trim_mean(ours, 0.25, axis=None))
    wins = [stats.mannwhitneyu(ours[:, task], theirs[:, task]).statistic / 28 for task in range(3)]
    assert probability_of_improvement([ours], [theirs]) == pytest.approx(np.mean(wins))


def test_ties_are_half_and_tasks_count_equally():
    """Also where they have different numbers of runs."""
    one, other = [np.array([[1.0], [1.0]]), np.array([[5.0]])], [np.array([[1.0]]), np.array([[1.0], [2.0], [3.0]])]
    assert probability_of_improvement(one, other) == (0.5 + 1) / 2
    np.testing.assert_array_equal(performance_profile(one, [2.0]), [0.5])
    assert interquartile_mean([np.arange(5.0)[:, None]]) == 2  # of five one at either end
    assert interquartile_mean([np.array([[1.0, 2.0, 6.0]])]) == 3  # of three none


def test_a_run_is_resampled_whole_inside_its_block():
    """The sum of a run's scores is always 10: whole runs leave no spread, and tasks by themselves do."""
    scores = np.array([[0.0, 10.0], [10.0, 0.0], [2.0, 8.0]])

    def mean(blocks):
        return np.concatenate([block.mean(-2) for block in blocks], axis=-1).mean(-1)

    assert interval(mean, [scores]) == (5, 5)
    low, high = interval(mean, by_task(scores))
    assert low < 5 < high
    assert interval(mean, [scores[:1]]) is None


def test_the_interval_of_the_mean_of_two_runs_has_their_range():
    """Of two runs, 0 and 1, a quarter of the resamples have 0 twice, and a quarter 1 twice."""
    low, high = interval(interquartile_mean, [np.array([[0.0], [1.0]])])
    assert (low, high) == (0, 1)
    zero = [np.zeros((2, 1))]
    assert interval(probability_of_improvement, [np.ones((2, 1))], zero) == (1, 1)
    bands = interval(lambda blocks: aggregates.performance_profile(blocks, [-1, 0.5, 2]), [np.array([[0.0], [1.0]])])
    np.testing.assert_array_equal(bands, [[1, 0, 0], [1, 1, 0]])
