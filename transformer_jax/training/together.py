"""Which runs can train together, as one program (`compiled.jit_together`): those that differ only in numbers.

These are the seed, the rates of dropout, label smoothing, the z-loss, the learning rate's schedule, and the optimizer's
numbers.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput

OPTIONS = {option.path: option for option in schema.options(ExperimentConfig)}
# The options in which runs that train together may differ: a number each, or none for all; a learning rate each.
REGULARIZATION = (
    *(f"model.{kind}" for kind in ("dropout", "attention_dropout", "activation_dropout", "layer_dropout")),
    "train.label_smoothing",
)
NUMBERS = ("seed", *REGULARIZATION, "train.z_loss", "optimizer.beta1", "optimizer.beta2", "optimizer.epsilon")
NUMBERS_OR_NONE = ("optimizer.clip_norm", "optimizer.weight_decay", "optimizer.ema")
RATES = tuple(
    f"optimizer.{name}"
    for name in ("schedule", "learning_rate", "warmup_steps", "warmup_share", "final_fraction", "decay_fraction")
)
MAY_DIFFER = (*NUMBERS, *NUMBERS_OR_NONE, *RATES)
# Options by which a run may end before others that train with it.
EARLY_ENDS = ("train.tokens", "train.patience", "train.until_flat")


def differing(configs: Sequence[ExperimentConfig]) -> dict[str, list[Any]]:
    """The options in which the configs differ, with the value of each config."""
    values = {path: [schema.value_at(config, path) for config in configs] for path in OPTIONS}
    return {path: each for path, each in values.items() if any(value != each[0] for value in each)}


def incompatible(configs: Sequence[ExperimentConfig]) -> list[str]:
    """Why these runs cannot train together, a line for each reason; none if they can."""
    if len(configs) == 1:
        return []
    problems = []
    for path, values in differing(configs).items():
        listed, option = ", ".join(dict.fromkeys(map(str, values))), OPTIONS[path]
        if option.is_path and option.affects == "environment":
            continue  # where the data is: what was prepared is compared instead
        if path not in MAY_DIFFER:
            problems.append(f"{path} = {listed}: must be the same for all")
        elif path in NUMBERS_OR_NONE and not all(values) and any(values):
            problems.append(f"{path} = {listed}: must be set for all or for none")
    for path in EARLY_ENDS:
        if (limit := schema.value_at(configs[0], path)) is not None:
            problems.append(f"{path} = {limit}: could end the runs at different steps")
    if configs[0].train.keep_latest < 2:
        problems.append("train.keep_latest = 1: must be at least 2, for a common step after a kill while they save")
    return problems


def refuse_incompatible(configs: Sequence[ExperimentConfig]) -> None:
    problems = incompatible(configs)
    if len(configs) > 1 and jax.process_count() > 1:
        problems.append(f"they need one process, not {jax.process_count()}")
    if problems:
        raise BadInput("runs that cannot train together:\n  " + "\n  ".join(problems))


def numbers_of(configs: Sequence[ExperimentConfig]) -> dict[str, np.ndarray]:
    """The numbers in which runs differ, one for each run, by option; without the seed and the learning rate."""
    return {
        path: np.asarray(values, np.float32)
        for path, values in differing(configs).items()
        if path != "seed" and path in (*NUMBERS, *NUMBERS_OR_NONE)
    }
