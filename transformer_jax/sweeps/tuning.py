"""Choosing the learning rate of a variant: the factor whose run has the lowest validation loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from transformer_jax.sweeps.run import SweepRun, seconds_of
from transformer_jax.sweeps.spec import TUNING_SEED


def is_over(run: SweepRun) -> bool:
    """Whether a run has told how good its rate is. A run that failed has not: its rate may be the best."""
    return run.has_diverged() or run.is_finished()


def choice(runs: Sequence[SweepRun]) -> dict[str, Any] | None:
    """The content of tuned.json for the variant of these runs, which are over; None if all diverged."""
    tried = [(loss, run.factor) for run in runs if (loss := valid_loss(run)) is not None]
    if not tried:
        return None
    losses = {f"{run.factor:g}": valid_loss(run) for run in runs}
    return {"factor": min(tried)[1], "losses": losses, "seed": TUNING_SEED, "cost": cost(runs)}


def valid_loss(run: SweepRun) -> float | None:
    """The validation loss at the end of a tuning run; None if it diverged."""
    result = run.result()
    loss = None if result is None else result["valid"].get("loss")
    return loss if loss is not None and math.isfinite(loss) else None


def cost(runs: Sequence[SweepRun]) -> dict[str, float]:
    """What tuning runs took; of those that diverged only their number is known."""
    results = [result for run in runs if (result := run.result()) is not None]
    return {
        "runs": len(runs),
        "updates": sum(result["steps"] for result in results),
        "train_seconds": sum(map(seconds_of, results)),
        "training_flops": sum(result["training_flops"] for result in results),
    }
