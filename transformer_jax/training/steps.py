"""The compiled programs of a run, laid out over a mesh; or of several runs that train as one program."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.processes.compilation import unfused, unfused_if_custom
from transformer_jax.training.vmapped import vmapped_programs
from transformer_jax.update.optimizer import make_optimizer, mup_rate_factor
from transformer_jax.update.step import (
    IntervalSums,
    TrainState,
    abstract_state,
    init_state,
    make_eval_step,
    make_train_step,
)


class CompiledSteps:
    """The programs of n >= 1 runs, which start from `params` if they are given, or from random parameters.

    `abstract_state` is the state of one run. With several runs the states, and what is computed of them, have one more
    axis in front: the runs.

    - `new_state()`: the states at step 0
    - `step(states, batch)`: the states after one more update, and its metrics
    - `evaluate(params, batch)`: the sums of a batch without dropout
    """

    def __init__(
        self, configs: Sequence[ExperimentConfig], schedules: Sequence[optax.Schedule], mesh: Mesh, params: Any = None
    ):
        self.configs, self.schedules, self.mesh = configs, schedules, mesh
        config, self.is_vmapped = configs[0], len(configs) > 1
        self.optimizer = make_optimizer(config.optimizer, schedules[0], mup_rate_factor(config.model))
        self.abstract_state = abstract_state(config, self.optimizer, mesh)
        one = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
        if self.is_vmapped:
            self.compiler_options = unfused(mesh)
            states = jax.tree.map(lambda each: NamedSharding(mesh, PartitionSpec(None, *each.spec)), one)
            self.new_state, self.step, self.evaluate = vmapped_programs(configs, schedules, mesh, states)
        else:
            self.compiler_options = unfused_if_custom(mesh, config.model, config.optimizer, config.train)
            states = one
            self.new_state = functools.partial(init_state, config, self.optimizer, self.abstract_state, params)
            step: Any = make_train_step(config, self.optimizer, mesh, self.abstract_state)
            self.step = functools.partial(step, np.uint32(config.seed))
            self.evaluate = make_eval_step(config, mesh)
        self._join = jax.jit(
            lambda *states: jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), out_shardings=states
        )
        self._take = jax.jit(lambda states, run: jax.tree.map(lambda leaf: leaf[run], states), out_shardings=one)
        self._take_params = jax.jit(
            lambda params, run: jax.tree.map(lambda leaf: leaf[run], params), out_shardings=one.params
        )
        average = jax.vmap(_average) if self.is_vmapped else _average
        self._average = jax.jit(average, out_shardings=states.params)
        self._zero_sums = jax.jit(self._zeros, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def join(self, states: Sequence[TrainState]) -> TrainState:
        """The states of all runs, from the state of each."""
        return self._join(*states) if self.is_vmapped else states[0]

    def split(self, states: TrainState) -> Iterator[TrainState]:
        """The state of each run, laid out as if it were alone."""
        for run in range(len(self.configs)):
            yield self._take(states, run) if self.is_vmapped else states

    def params_of(self, params: Any, run: int) -> Any:
        """The parameters of one of the runs, from those of all."""
        return self._take_params(params, run) if self.is_vmapped else params

    def fetch(self, values: Any) -> list[Any]:
        """Values on the devices, fetched: those of each run."""
        values = jax.device_get(values)
        if not self.is_vmapped:
            return [values]
        leaves, structure = jax.tree.flatten(values)
        return [jax.tree.unflatten(structure, of_run) for of_run in zip(*leaves, strict=True)]

    def evaluated_params(self, states: TrainState) -> Any:
        """The parameters to evaluate: those of the states, or an average of schedule-free optimizers."""
        return self._average(states) if self.abstract_state.is_averaged else states.params

    def reset_sums(self, states: TrainState) -> TrainState:
        """The states with their interval sums at zero."""
        return dataclasses.replace(states, sums=self._zero_sums())

    def _zeros(self) -> IntervalSums:
        if not self.is_vmapped:
            return IntervalSums.zero()
        return jax.tree.map(lambda leaf: jnp.zeros(len(self.configs), leaf.dtype), IntervalSums.zero())


def _average(state: TrainState) -> Any:
    return state.evaluated_params
