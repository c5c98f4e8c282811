"""The learning rate: the warmup schedule of equation 3 (section 5.3), others, and custom ones."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from transformer_jax.extension import CustomFunction, load_function
from transformer_jax.model.shapes import check_positive
from transformer_jax.optimizer_config import ENDING_WITH_THE_RUN, OptimizerConfig
from transformer_jax.schema import is_address

# The arguments that a custom schedule may take.
OPTIONAL = ("peak", "warmup_steps", "steps", "final_fraction", "d_model")
# Devices count updates in int32. No run gets there, but a larger train.steps may mean "without end".
MOST_UPDATES = 2**31 - 1


def inverse_sqrt_schedule(d_model: int, warmup_steps: int = 4000, scale: float = 1.0) -> optax.Schedule:
    """Equation 3: scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), with step = count + 1."""
    check_positive(d_model=d_model, warmup_steps=warmup_steps)
    peak = scale * (d_model * warmup_steps) ** -0.5
    return _warmed_up(peak, warmup_steps, lambda step: peak * (warmup_steps / step) ** 0.5)


def peak_rate(config: OptimizerConfig, d_model: int) -> float:
    """The learning rate after warmup: by default that of equation 3 of the paper."""
    return config.learning_rate or (d_model * max(config.warmup_steps, 1)) ** -0.5


def make_schedule(config: OptimizerConfig, d_model: int, steps: int) -> optax.Schedule:
    """The learning rate by number of updates made: a linear warmup to the peak, then the schedule of the config."""
    warmup, steps = config.warmup_steps, min(steps, MOST_UPDATES)
    peak = peak_rate(config, d_model)
    if is_address(config.schedule):
        return _custom_schedule(config, peak, d_model, steps)
    after = max(steps - warmup, 1)
    decaying = config.decaying(after)
    if config.schedule == "inverse_sqrt":
        return _warmed_up(peak, warmup, lambda step: peak * (warmup / step) ** 0.5)
    if config.schedule == "constant":
        return _warmed_up(peak, warmup, lambda step: peak + 0.0 * step)
    if config.schedule == "cosine":
        decay = optax.schedules.cosine_decay_schedule(peak, after, alpha=config.final_fraction)
    else:
        decay = optax.schedules.linear_schedule(peak, peak * config.final_fraction, decaying, after - decaying)
    return _warmed_up(peak, warmup, lambda step: decay(step - warmup))


def ends_with_the_run(config: OptimizerConfig) -> bool:
    """Whether the schedule depends on the total number of updates, so that a longer run has different rates."""
    if is_address(config.schedule):
        return "steps" in _custom(config).optional
    return config.schedule in ENDING_WITH_THE_RUN


def refuse_without_peak(config: OptimizerConfig) -> None:
    """Refuses a custom schedule that factors of the learning rate would not change."""
    if is_address(config.schedule) and "peak" not in (custom := _custom(config)).optional:
        raise custom.refusal("takes no `peak`, the learning rate that tune multiplies")


def _custom(config: OptimizerConfig) -> CustomFunction:
    """The custom schedule, before it is called."""
    return load_function("optimizer.schedule", config.schedule, optional=OPTIONAL)


def _custom_schedule(config: OptimizerConfig, peak: float, d_model: int, steps: int) -> optax.Schedule:
    """The schedule that a custom function returns, tried on a few updates."""
    custom = _custom(config)
    values = (peak, config.warmup_steps, steps, config.final_fraction, d_model)
    rate_at = custom(**dict(zip(OPTIONAL, values, strict=True)))
    if not callable(rate_at):
        raise custom.refusal(f"returned {type(rate_at).__name__}; a function of the updates made would be right")

    def schedule(count: Any) -> Any:
        with custom.running():
            return rate_at(jax.numpy.asarray(count, "int32"))

    jax.eval_shape(schedule, jax.ShapeDtypeStruct((), "int32"))  # it must be traceable
    for count in dict.fromkeys((0, steps // 2, steps - 1)):
        rate = np.asarray(schedule(count))
        if rate.shape != () or not np.isfinite(rate) or rate < 0:
            raise custom.refusal(f"is {rate} at update {count}; one finite number, zero or more, would be right")
    return schedule


def _warmed_up(peak: float, warmup: int, after: Callable[[Any], Any]) -> optax.Schedule:
    def schedule(count: Any) -> Any:
        step = count + 1
        rising = peak * step / max(warmup, 1)
        return jax.numpy.where(step < warmup, rising, after(step))

    return schedule
