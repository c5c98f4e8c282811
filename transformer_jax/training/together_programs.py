"""The programs of several runs: one program trains all of them, by `vmap` over their states.

The numbers in which the runs differ are traced arrays, one number for each run.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.processes.compilation import unfused
from transformer_jax.schema import with_values
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.update import sharding
from transformer_jax.update.loss import TokenSums, load_loss
from transformer_jax.update.optimizer import make_optimizer, mup_rate_factor
from transformer_jax.update.step import Pulse, TrainState, evaluation_sums, for_mesh, new_state, train_step

OPTIONS = {option.path: option for option in schema.options(ExperimentConfig)}


def differing(configs: Sequence[ExperimentConfig]) -> dict[str, list[Any]]:
    """The options in which the configs differ, with the value of each config."""
    values = {path: [schema.value_at(config, path) for config in configs] for path in OPTIONS}
    return {path: each for path, each in values.items() if any(value != each[0] for value in each)}


class VmappedSteps(CompiledSteps):
    """The programs of several runs. Their state has one more axis in front: the runs. `plan` is that of one run."""

    def __init__(self, configs: Sequence[ExperimentConfig], schedules: Sequence[optax.Schedule], mesh: Mesh):
        super().__init__(configs[0], schedules[0], mesh)
        self._of_step = for_mesh(configs[0], mesh, is_divided=True)
        self._of_evaluation = for_mesh(configs[0], mesh, is_divided=mesh.size == 1)
        self._schedules, self._loss = schedules, load_loss(configs[0].train)
        self._multiplier = mup_rate_factor(configs[0].model)
        one = jax.tree.map(lambda leaf: leaf.sharding, self.plan)
        several = jax.tree.map(lambda each: NamedSharding(mesh, PartitionSpec(None, *each.spec)), one)
        everywhere = NamedSharding(mesh, PartitionSpec())
        self.numbers = jax.device_put(numbers_of(configs), everywhere)
        options = self.compiler_options = unfused(mesh)
        self._new = jax.jit(jax.vmap(self._new_run), out_shardings=several, compiler_options=options)
        self._average = jax.jit(jax.vmap(lambda state: state.evaluated_params), out_shardings=several.params)
        self._join = jax.jit(
            lambda *states: jax.tree.map(lambda *each: jnp.stack(each), *states), out_shardings=several
        )
        self._reset = jax.jit(
            lambda sums, kept: jax.tree.map(lambda each: jnp.where(kept, each, jnp.zeros_like(each)), sums),
            out_shardings=everywhere,
        )
        self._take = jax.jit(lambda states, run: jax.tree.map(lambda leaf: leaf[run], states), out_shardings=one)
        step = jax.jit(
            self.step_of_all,
            in_shardings=(everywhere, several, sharding.batch_sharding(mesh)),
            out_shardings=(several, everywhere),
            donate_argnums=1,
            compiler_options=options,
        )
        evaluate = jax.jit(
            jax.vmap(self.evaluate_run, in_axes=(0, 0, None)), out_shardings=everywhere, compiler_options=options
        )
        self.step, self.evaluate = (functools.partial(self._call, program) for program in (step, evaluate))

    def new_state(self) -> TrainState:
        return self._call(self._new)

    def join(self, states: Sequence[TrainState]) -> TrainState:
        """The state of all runs, from the states of each."""
        return self._join(*states)

    def take(self, state: TrainState, run: int) -> TrainState:
        """The state of one run."""
        return self._take(state, run)

    def reset_sums(self, state: TrainState, kept: Sequence[int] = ()) -> TrainState:
        """The state with interval sums at zero, except those of the runs `kept`."""
        is_kept = np.isin(np.arange(len(self._schedules)), kept)
        return dataclasses.replace(state, sums=self._reset(state.sums, is_kept))

    # One run, with traced numbers.

    def _new_run(self, numbers: Mapping[str, jax.Array]) -> TrainState:
        config = with_values(self.config, numbers)
        return new_state(config, make_optimizer(config.optimizer, self.schedule))

    def evaluate_run(self, numbers: Mapping[str, jax.Array], params: Any, batch: Any) -> TokenSums:
        return evaluation_sums(with_values(self._of_evaluation, numbers), self._loss, params, batch)

    def _step_of_run(
        self, numbers: Mapping[str, jax.Array], rate: jax.Array, state: TrainState, batch: Any
    ) -> tuple[TrainState, Pulse]:
        config = with_values(self._of_step, numbers)
        optimizer = make_optimizer(config.optimizer, lambda count: rate, self._multiplier)
        return train_step(config, optimizer, self._loss, state, batch, self.mesh)

    def step_of_all(self, numbers: Mapping[str, jax.Array], states: TrainState, batch: Any) -> tuple[TrainState, Pulse]:
        """Each run has its own schedule, of any form, at its own number of updates."""
        rates = jnp.stack([schedule(states.updates[run]) for run, schedule in enumerate(self._schedules)])
        return jax.vmap(self._step_of_run, in_axes=(0, 0, 0, None))(numbers, rates, states, batch)

    def _call(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a program. A custom module may need a concrete number when it is traced, where there is none."""
        try:
            return program(self.numbers, *arguments)
        except jax.errors.ConcretizationTypeError as error:
            raise BadInput(
                f"these runs differ in {', '.join(self.numbers)}, but a part of the model or the optimizer is another "
                "program for each of these numbers: they must train apart"
            ) from error


def numbers_of(configs: Sequence[ExperimentConfig]) -> dict[str, np.ndarray]:
    """The numbers in which the runs differ, and the seeds in any case; one number for each run.

    The learning rate is in the schedules.
    """
    found = differing(configs)
    numbers = {path for path, option in OPTIONS.items() if option.together in ("number", "number or none")}
    return {
        path: np.asarray(
            [schema.value_at(config, path) for config in configs], np.uint32 if path == "seed" else np.float32
        )
        for path in OPTIONS
        if path == "seed" or (path in found and path in numbers)
    }
