"""The compiled programs of a run, laid out over a mesh: what the loop drives."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.update.optimizer import make_optimizer
from transformer_jax.update.step import (
    IntervalSums,
    TrainState,
    abstract_state,
    init_state,
    make_eval_step,
    make_train_step,
)


class Programs:
    """Those of one run. `plan` is its state without numbers; `together.Together` has the same for several runs."""

    def __init__(self, config: ExperimentConfig, schedule: optax.Schedule, mesh: Mesh, params: Any = None):
        self.config, self.mesh = config, mesh
        self.params = params  # to begin with; None: random ones
        self.optimizer = make_optimizer(config.optimizer, schedule)
        self.plan = abstract_state(config, self.optimizer, mesh)
        self.step = make_train_step(config, self.optimizer, mesh, self.plan)
        self.evaluate = make_eval_step(config, mesh)
        self.new_sums = jax.jit(IntervalSums.zero, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def begin(self, restored: Sequence[TrainState | None]) -> TrainState:
        """The state to go on from: what was restored of each run, or a new one where nothing was."""
        [state] = restored
        return init_state(self.config, self.optimizer, self.plan, self.params) if state is None else state

    def take(self, state: TrainState, run: int) -> TrainState:
        """One run's own state."""
        return state

    def without_sums(self, state: TrainState, kept: Sequence[int] = ()) -> TrainState:
        """The state with sums that begin again, but for those of the runs `kept`."""
        return state if kept else dataclasses.replace(state, sums=self.new_sums())
