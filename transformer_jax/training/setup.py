"""What is fixed before runs start, and checks of it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig, TrainConfig
from transformer_jax.data.batching import EvaluationBatches, training_batches
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import ConfigError
from transformer_jax.model.build import position_limit
from transformer_jax.processes import watchdog
from transformer_jax.processes.compilation import CompileWatch
from transformer_jax.schema import is_address
from transformer_jax.update import sharding
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.optimizer import make_schedule

# Devices count the tokens between two lines of metrics in int32.
MOST_COUNTED = 2**31 - 1


class RunSetup:
    """All that is fixed before runs start: mesh, batches, validation data, last step, learning rates."""

    def __init__(self, configs: Sequence[ExperimentConfig], prepared: Prepared, is_evaluated: bool):
        self.configs, config = configs, configs[0]
        self.mesh = sharding.make_mesh(config.mesh)
        self.share = sharding.batch_share(self.mesh)
        # Batches are cut into equal shards for devices and into microbatches; empty rows fill up.
        shards = sharding.batch_shards(self.mesh)
        self.batches = training_batches(config.data, prepared.pairs("train"), shards * config.train.accumulate)
        self.validation: EvaluationBatches | None = None
        if "valid" in prepared.splits and len(pairs := prepared.pairs("valid")):
            self.validation = EvaluationBatches(
                pairs, tokens_per_batch=config.data.tokens_per_batch, row_multiple=shards
            )
        self.left_out = prepared.left_out("train")
        self.data, self.references = prepared.fingerprint, prepared.texts_digest("valid")
        self.compilations = CompileWatch()
        self.last_step = self.last_step_of(config.train)
        self.most_tokens = max(shape.rows * max(shape.source, shape.target) for shape in self.batches.shapes)
        if problems := list(self._problems(is_evaluated)):
            raise ConfigError(problems)
        self.schedules = [make_schedule(each.optimizer, each.model.base_d_model, self.last_step) for each in configs]

    def _problems(self, is_evaluated: bool) -> Iterator[str]:
        """Checks that would otherwise fail at the first batch or at the first validation, hours later."""
        model, train = self.configs[0].model, self.configs[0].train
        shapes = [*self.batches.shapes, *(self.validation.shapes if self.validation else ())]
        limit, longest = position_limit(model), max(max(shape.source, shape.target) for shape in shapes)
        if limit is not None and longest > limit:
            yield (
                f"model.max_length: the model's positions end at {limit}, but the longest row of a batch has {longest} "
                "tokens: raise it (and train anew), or lower data.max_length (for training data)"
            )
        if self.most_tokens * min(train.log_every, self.last_step) > MOST_COUNTED:
            yield f"train.log_every = {train.log_every:,}: a line has more than {MOST_COUNTED:,} tokens: lower it"
        for name, measures in (("patience", is_evaluated), ("until_flat", False)):
            if (limit := getattr(train, name)) is not None and self.validation is None and not measures:
                yield f"train.{name} = {limit:g} needs validation data, and there is none"
        for optimizer in (config.optimizer for config in self.configs):
            if optimizer.warmup_steps > self.last_step and not is_address(optimizer.schedule):
                yield (
                    f"optimizer.warmup_steps = {optimizer.warmup_steps} lies beyond the run of {self.last_step:,} "
                    "steps: the learning rate would never reach its peak"
                )

    def last_step_of(self, train: TrainConfig) -> int:
        """The last step of a run on this data with these options."""
        return train.last_step(self.batches.steps_per_epoch)

    def placed_batch(self, step: int) -> Any:
        """The batch of a step, on the devices. The prefetching thread calls this, too."""
        return sharding.place_batch(self.batches.batch(step, *self.share), self.mesh)

    def placed_validation_batch(self, number: int) -> Any:
        assert self.validation is not None
        return sharding.place_batch(self.validation.batch(number, *self.share), self.mesh)

    def over_validation_data(
        self, evaluate: Callable[[Any, Any], TokenSums], params: Any, is_stopped: Callable[[], bool] = lambda: False
    ) -> TokenSums | None:
        """Sums over every validation sentence once, in float64; None without validation data, or if it is stopped."""
        if self.validation is None:
            return None
        totals: Any = 0.0
        for number in range(len(self.validation)):
            sums = evaluate(params, self.placed_validation_batch(number))
            with watchdog.waiting():
                totals = totals + np.asarray(jax.device_get(sums), np.float64)
            if is_stopped():
                return None
        return TokenSums(*totals)
