"""Aggregate scores over several tasks, as in Agarwal et al. 2021, "Deep reinforcement learning at the edge of the
statistical precipice": interquartile mean, probability of improvement, performance profiles, bootstrap intervals.

Scores are given in blocks of R runs and M tasks. A run's scores on the tasks of its block are dependent, so its row is
resampled whole; runs of different blocks are independent. The paper's stratified bootstrap, where every task has other
runs, is that of blocks with one task each.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CONFIDENCE, SAMPLES = 0.95, 2000

Blocks = Sequence[np.ndarray]  # each [R, M], or [S, R, M] when resampled


def interquartile_mean(blocks: Blocks) -> Any:
    """The mean of the middle half of all scores: a quarter of them, rounded down, is left out at either end."""
    scores = np.sort(np.concatenate([block.reshape(*block.shape[:-2], -1) for block in blocks], axis=-1))
    cut = scores.shape[-1] // 4
    return scores[..., cut : scores.shape[-1] - cut].mean(-1)


def probability_of_improvement(blocks: Blocks, others: Blocks) -> Any:
    """The probability that a run scores better than one of the others on a task, the mean over tasks; a tie is half."""
    of_tasks = []
    for block, other in zip(blocks, others, strict=True):
        differences = block[..., :, None, :] - other[..., None, :, :]
        of_tasks.append((np.sign(differences) / 2 + 0.5).mean((-3, -2)))
    return np.concatenate(of_tasks, axis=-1).mean(-1)


def performance_profile(blocks: Blocks, thresholds: Sequence[float] | np.ndarray) -> Any:
    """For each threshold the share of runs that score above it, the mean over tasks."""
    above = [(block[..., None] > np.asarray(thresholds)).mean(-3) for block in blocks]
    return np.concatenate(above, axis=-2).mean(-2)


def interval(statistic: Callable[..., Any], *systems: Blocks) -> tuple[Any, Any] | None:
    """The percentile bootstrap interval of a statistic of one or more systems, whose runs are resampled independently.

    None if a block has a single run, of which no other can be drawn.
    """
    if any(len(block) < 2 for blocks in systems for block in blocks):
        return None
    rng = np.random.default_rng(0)
    drawn = statistic(
        *([block[rng.integers(len(block), size=(SAMPLES, len(block)))] for block in blocks] for blocks in systems)
    )
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, (tail, 1 - tail), axis=0)
    return low, high
