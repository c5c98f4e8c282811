"""When a run ends, and why: a pure function of what has been counted so far."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from transformer_jax.config import TrainConfig

# The fewest validations whose trend counts.
FEWEST = 5


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why a run ends. A run that was only stopped (not `final`) can be resumed."""

    why: str
    final: bool = True
    diverged: bool = False


@dataclasses.dataclass(frozen=True)
class Validations:
    """What a run's validations have come to so far."""

    since_best: int = 0
    improvement: float | None = None  # `improvement_at_the_end` of their losses


def ending(
    train: TrainConfig, last_step: int, step: int, target_tokens: int, validations: Validations
) -> Ending | None:
    """Why a run is complete after `step` updates, or None if it continues."""
    if step >= last_step:
        return Ending("finished")
    if train.tokens is not None and target_tokens >= train.tokens:
        return Ending(f"finished {target_tokens:,} target tokens")
    if train.patience is not None and validations.since_best >= train.patience:
        return Ending(
            f"finished: no better {train.best_metric} in {train.patience} validations "
            "(a higher train.patience trains on)"
        )
    improvement = validations.improvement
    if train.until_flat is not None and improvement is not None and improvement < train.until_flat:
        return Ending(
            f"finished: the validation loss improved by {100 * improvement:.2g} % over the last fifth of the updates "
            "(a lower train.until_flat trains on)"
        )
    return None


def improvement_at_the_end(losses: Mapping[int, float], warmup_steps: int) -> float | None:
    """By which fraction validation losses, by step, fell over the last fifth of the updates; None if it is unknown.

    It is the slope of a straight line through all validations of that fifth, so that it does not depend on the luck of
    one. The fifth must not reach back into the warmup, when many runs pause at the entropy of single words.
    """
    last = max(losses, default=0)
    steps = [step for step in losses if 5 * step >= 4 * last]
    if len(steps) < FEWEST or 4 * last < 5 * warmup_steps:
        return None
    values = [losses[step] for step in steps]
    return float(-np.polyfit(steps, values, 1)[0] * last / 5 / np.mean(values))
