"""What a run trains on: its batches, its validation data and its last step. Refuses what could not be trained."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from transformer_jax.config import ExperimentConfig, TrainConfig
from transformer_jax.data.batching import EvaluationBatches, training_batches
from transformer_jax.data.prepared import MANIFEST, Prepared
from transformer_jax.errors import BadInput
from transformer_jax.model.build import position_limit
from transformer_jax.processes.compilation import CompileWatch
from transformer_jax.schema import is_address
from transformer_jax.update import sharding
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.optimizer import ends_with_the_run, make_schedule

# float32 counts exactly up to here, and int32 is far from its end.
EXACT = 2**24


class RunSetup:
    """All that is fixed before a run starts. Runs that train together share one."""

    def __init__(self, config: ExperimentConfig, prepared: Prepared, has_evaluators: bool):
        self.config = config
        self.mesh = sharding.make_mesh(config.mesh)
        self.share = sharding.batch_share(self.mesh)
        # Batches are cut into equal parts, for the devices and for accumulation; empty rows fill up.
        parts = sharding.batch_devices(self.mesh) * config.train.accumulate
        self.batches = training_batches(config.data, prepared.pairs("train"), parts)
        self.validation: EvaluationBatches | None = None
        if "valid" in prepared.splits and len(pairs := prepared.pairs("valid")):
            self.validation = EvaluationBatches(
                pairs,
                tokens_per_batch=config.data.tokens_per_batch,
                num_shapes=config.data.num_shapes,
                row_multiple=sharding.batch_devices(self.mesh),
            )
        self.left_out = prepared.left_out("train")
        self.data, self.references = prepared.fingerprint, prepared.texts_digest("valid")
        self.compilations = CompileWatch()
        self._check(has_evaluators)
        self.last_step = self.last_step_of(config.train)
        shapes = self.batches.shapes
        self.most_tokens = max(shape.rows * shape.target for shape in shapes)  # in a batch
        # The devices' sums are collected at least this often, so that they stay exact.
        self.collect_every = max(1, EXACT // max(shape.rows * max(shape.source, shape.target) for shape in shapes))

    def _check(self, has_evaluators: bool) -> None:
        """Refuses now what would otherwise fail at the first batch or at the first validation, hours later."""
        train, validation = self.config.train, self.validation
        if (limit := position_limit(self.config.model)) is not None:
            shapes = [*self.batches.shapes, *(validation.shapes if validation else ())]
            longest = max(max(shape.source, shape.target) for shape in shapes)
            if longest > limit:
                raise BadInput(
                    f"model.max_length: the model's positions end at {limit}, but the longest row of a batch has "
                    f"{longest} tokens: raise it (and train anew), or lower data.max_length (for training data)"
                )
        rows = max(shape.rows for shape in self.batches.shapes)
        if train.accumulate > rows:
            raise BadInput(f"train.accumulate = {train.accumulate} parts are more than the {rows} rows of any batch")
        if not has_evaluators:
            refuse_unmeasured(train)
        if not has_evaluators and validation is None and train.patience is not None:
            raise BadInput(f"train.patience = {train.patience} needs validation data, and there is none")
        if validation is None and train.until_flat is not None:
            raise BadInput(f"train.until_flat = {train.until_flat:g} needs validation data, and there is none")
        if train.until_flat is not None and ends_with_the_run(self.config.optimizer):
            raise BadInput(
                f"train.until_flat = {train.until_flat:g} and optimizer.schedule = {self.config.optimizer.schedule}: "
                "the schedule takes `steps`, so it ends with the run, and every loss is flat there"
            )

    def last_step_of(self, train: TrainConfig) -> int:
        """The last update of a run on this data with these options."""
        return last_step(train, self.batches.steps_per_epoch)

    def schedule(self, config: ExperimentConfig) -> optax.Schedule:
        """The learning rate of a run on this data."""
        optimizer = config.optimizer
        if optimizer.warmup_steps > self.last_step and not is_address(optimizer.schedule):
            raise BadInput(
                f"optimizer.warmup_steps = {optimizer.warmup_steps} lies beyond the run of {self.last_step:,} updates "
                f"(train.epochs = {config.train.epochs}): the learning rate would never reach its peak"
            )
        return make_schedule(config.optimizer, config.model.base_d_model, self.last_step)

    def placed_batch(self, step: int) -> Any:
        """The batch of a step, on the devices. The prefetching thread calls this."""
        return sharding.place_batch(self.batches.batch(step, *self.share), self.mesh)

    def validation_sums(self, evaluate: Callable[[Any, Any], TokenSums], params: Any) -> TokenSums | None:
        """Sums over every validation sentence once, in float64; None without validation data."""
        if self.validation is None:
            return None
        totals: Any = [np.float64(0)] * len(TokenSums._fields)
        for number in range(len(self.validation)):
            batch = sharding.place_batch(self.validation.batch(number, *self.share), self.mesh)
            sums = jax.device_get(evaluate(params, batch))
            totals = [total + np.asarray(more, np.float64) for total, more in zip(totals, sums, strict=True)]
        return TokenSums(*totals)


def refuse_unmeasured(train: TrainConfig) -> None:
    """Refuses a `train.best_metric` that no validation measures without translating."""
    name, known = train.best_metric, ("valid_loss", "valid_perplexity", "valid_accuracy")
    if name not in known:
        raise BadInput(
            f"train.best_metric = {name!r} is not among the validation metrics: {', '.join(known)}; bleu, exact_match "
            "and custom metrics need decode.bleu_sentences above 0"
        )


def last_step(train: TrainConfig, steps_per_epoch: int) -> int:
    """The number of updates of a run: the lower of `train.steps` and `train.epochs`."""
    return train.steps if train.epochs is None else min(train.steps, math.ceil(train.epochs * steps_per_epoch))


def updates(config: ExperimentConfig, data: Callable[[], Path | None]) -> int | None:
    """The number of updates of a run that has not started; None if `train.epochs` needs data that is not prepared."""
    if config.train.epochs is None:
        return config.train.steps
    if (directory := data()) is None or not (directory / MANIFEST).is_file():
        return None
    batches = training_batches(config.data, Prepared.open(directory).pairs("train"))
    return last_step(config.train, batches.steps_per_epoch)
