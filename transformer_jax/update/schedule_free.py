"""Schedule-free optimizers (Defazio et al. 2024): gradients are taken at y, between z, which steps, and its average x.

A train state has y as its parameters, and z beside the moments. What is evaluated, translated with or exported is x.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax

from transformer_jax.errors import BadInput
from transformer_jax.optimizer_config import OptimizerConfig, changed

# The argument of the average: its weights are the greatest learning rate so far to this power.
POWER = "weight_lr_power="


def _adamw(learning_rate: Any, b2: Any, eps: Any, weight_decay: Any = 0.0, mask: Any = None) -> Any:
    return optax.chain(
        optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def _sgd(learning_rate: Any, weight_decay: Any = 0.0, mask: Any = None) -> Any:
    return optax.chain(optax.add_decayed_weights(weight_decay, mask), optax.scale_by_learning_rate(learning_rate))


# The steps of z, by optax's names: without momentum, in whose place beta1 interpolates.
STEPS: dict[str, Callable[..., Any]] = {"schedule_free_adamw": _adamw, "schedule_free_sgd": _sgd}


def check_schedule_free(config: OptimizerConfig) -> None:
    """Refuses what the average does not go with."""
    if config.name not in STEPS:
        return
    if config.schedule != "constant":
        raise BadInput(
            f"optimizer.schedule = {config.schedule}: {config.name} averages in place of a schedule and needs "
            "optimizer.schedule = constant (after optimizer.warmup_steps)"
        )
    if config.beta1 == 0:
        raise BadInput(f"optimizer.beta1 = 0: {config.name} takes gradients at beta1 x + (1 - beta1) z: 0.9 is usual")


def of_steps(config: OptimizerConfig) -> OptimizerConfig:
    """The config of the steps of z: without what belongs to the average."""
    arguments = tuple(text for text in config.arguments if not text.startswith(POWER))
    return changed(config, beta1=OptimizerConfig().beta1, arguments=arguments)


def averaged(
    steps: optax.GradientTransformation, config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """The schedule-free form of an optimizer that steps without momentum."""
    powers = [text.removeprefix(POWER) for text in config.arguments if text.startswith(POWER)] or ["2"]
    try:
        power = float(powers[-1])
    except ValueError:
        raise BadInput(f"optimizer.arguments: {POWER}{powers[-1]}: must be a number") from None
    # optax counts updates from 1 here, and from 0 in the steps.
    return optax.contrib.schedule_free(steps, lambda count: schedule(count - 1), config.beta1, power)


def evaluated(params: Any, optimizer: Any) -> Any:
    """The parameters to evaluate, of those trained and the optimizer's state: x if it is schedule-free, or the same."""

    def is_average(node: Any) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    found = [node for node in jax.tree.leaves(optimizer, is_leaf=is_average) if is_average(node)]
    return optax.contrib.schedule_free_eval_params(found[0], params) if found else params
