"""When a run ends, and why: a pure function of what has been counted so far."""

import dataclasses

from transformer_jax.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why a run ends. A run that was only stopped (not `final`) can be resumed."""

    why: str
    final: bool = True
    failed: bool = False


def ending(
    train: TrainConfig, last_step: int, step: int, target_tokens: int, validations_since_best: int
) -> Ending | None:
    """Why a run is complete after `step` updates, or None if it continues."""
    if step >= last_step:
        return Ending("finished")
    if train.tokens is not None and target_tokens >= train.tokens:
        return Ending(f"finished {target_tokens:,} target tokens")
    if train.patience is not None and validations_since_best >= train.patience:
        return Ending(f"finished: no better {train.best_metric} in {train.patience} validations")
    return None
