"""The compiled programs of a run, laid out over a mesh."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.processes.compilation import unfused_if_custom
from transformer_jax.update.optimizer import make_optimizer, mup_rate_factor
from transformer_jax.update.step import (
    IntervalSums,
    Pulse,
    TrainState,
    abstract_state,
    init_state,
    make_eval_step,
    make_train_step,
)


class CompiledSteps:
    """The programs of one run. `plan` is the abstract state; `together.VmappedSteps` is the same for several runs.

    A new run starts from `params` if they are given, and from random parameters otherwise.
    """

    def __init__(self, config: ExperimentConfig, schedule: optax.Schedule, mesh: Mesh, params: Any = None):
        self.config, self.schedule, self.mesh, self._params = config, schedule, mesh, params
        self.optimizer = make_optimizer(config.optimizer, schedule, mup_rate_factor(config.model))
        self.plan = abstract_state(config, self.optimizer, mesh)
        # Those of `step`.
        self.compiler_options = unfused_if_custom(mesh, config.model, config.optimizer, config.train)
        step = functools.partial(make_train_step(config, self.optimizer, mesh, self.plan), np.uint32(config.seed))
        self.step: Callable[[TrainState, Any], tuple[TrainState, Pulse]] = step
        self.evaluate = make_eval_step(config, mesh)
        places = jax.tree.map(lambda leaf: leaf.sharding, self.plan.params)
        self._average = jax.jit(lambda state: state.evaluated_params, out_shardings=places)
        self._zero_sums = jax.jit(IntervalSums.zero, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def new_state(self) -> TrainState:
        """The state at step 0."""
        return init_state(self.config, self.optimizer, self.plan, self._params)

    def evaluated_params(self, state: TrainState) -> Any:
        """The parameters to evaluate: those of the state, or an average of schedule-free optimizers."""
        return self._average(state) if self.plan.is_averaged else state.params

    def reset_sums(self, state: TrainState) -> TrainState:
        """The state with its interval sums at zero."""
        return dataclasses.replace(state, sums=self._zero_sums())
