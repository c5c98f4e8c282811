"""What a run goes through: the batches in their order, the validation data, where it ends; refused where it cannot."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_jax.config import ExperimentConfig, TrainConfig
from transformer_jax.data.batching import EvaluationBatches, TrainingBatches, training_batches
from transformer_jax.data.prepared import MANIFEST, Prepared
from transformer_jax.errors import BadInput
from transformer_jax.model.stacks import position_limit
from transformer_jax.update import sharding


class Course:
    """All that does not change while a run goes on, and that runs which train together share."""

    def __init__(self, config: ExperimentConfig, prepared: Prepared, watched: bool):
        self.mesh = sharding.make_mesh(config.mesh)
        self.share = sharding.batch_share(self.mesh)
        # Batches are cut into equal parts, for the devices and for accumulation; empty rows fill up.
        parts = sharding.batch_devices(self.mesh) * config.train.accumulate
        self.batches = training_batches(config.data, prepared.pairs("train"), parts)
        self.validation = validation_batches(config, prepared, self.mesh)
        self.data, self.references = prepared.fingerprint, prepared.texts_digest("valid")
        check(config, self.batches, self.validation, watched)
        self.last_step = self.last_step_of(config.train)

    def last_step_of(self, train: TrainConfig) -> int:
        """The last update of a run on this data with these options."""
        return last_step(train, self.batches.steps_per_epoch)

    def placed_batch(self, step: int) -> Any:
        """A step's batch, on the devices: what the prefetching thread makes."""
        batch = self.batches.batch(step, *self.share)
        return sharding.place_batch(batch, self.mesh)


def last_step(train: TrainConfig, steps_per_epoch: int) -> int:
    """How many updates a run has at most: what `train.steps` and `train.epochs` say of batches."""
    return train.steps if train.epochs is None else min(train.steps, math.ceil(train.epochs * steps_per_epoch))


def updates(config: ExperimentConfig, data: Callable[[], Path]) -> int | None:
    """The same before the run, from its prepared data; None where `train.epochs` needs it and it is not there yet."""
    if config.train.epochs is None:
        return config.train.steps
    if not ((directory := data()) / MANIFEST).is_file():
        return None
    batches = training_batches(config.data, Prepared.open(directory).pairs("train"))
    return last_step(config.train, batches.steps_per_epoch)


def validation_batches(config: ExperimentConfig, prepared: Prepared, mesh: Any) -> EvaluationBatches | None:
    """None where there is no validation data."""
    if "valid" not in prepared.splits or not len(prepared.pairs("valid")):
        return None
    return EvaluationBatches(
        prepared.pairs("valid"),
        tokens_per_batch=config.data.tokens_per_batch,
        num_shapes=config.data.num_shapes,
        row_multiple=sharding.batch_devices(mesh),
    )


def check(
    config: ExperimentConfig, batches: TrainingBatches, validation: EvaluationBatches | None, watched: bool
) -> None:
    """Refuses now what would fail at the first batch, or at the first validation, hours from now."""
    if (limit := position_limit(config.model)) is not None:
        shapes = [*batches.shapes, *(validation.shapes if validation else ())]
        longest = max(max(shape.source, shape.target) for shape in shapes)
        if longest > limit:
            raise BadInput(
                f"model.max_length: the model's positions end at {limit}, but the longest row of a batch has {longest} "
                "tokens: raise it (and train anew), or lower data.max_length (for training data)"
            )
    rows = max(shape.rows for shape in batches.shapes)
    if config.train.accumulate > rows:
        raise BadInput(f"train.accumulate = {config.train.accumulate} parts are more than the {rows} rows of any batch")
    name, known = config.train.best_metric, ("valid_loss", "valid_perplexity", "valid_accuracy")
    if not watched and name not in known:
        raise BadInput(f"train.best_metric = {name!r} is not among what is validated: {', '.join(known)}")
    if not watched and validation is None and config.train.patience is not None:
        raise BadInput(f"train.patience = {config.train.patience} needs validation data, and there is none")
