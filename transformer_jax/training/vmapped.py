"""Several runs as one program, by `vmap` over their states: which runs can, and the program.

They may differ in what is only a number to the program: the seed, the rates of dropout, label smoothing, the learning
rate's schedule, the optimizer's numbers. These numbers are traced arrays, one number for each run.
"""

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
from transformer_jax.update import sharding
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.optimizer import make_optimizer, mup_rate_factor
from transformer_jax.update.step import StepMetrics, TrainState, evaluation_sums, for_mesh, new_state, train_step

OPTIONS = {option.path: option for option in schema.options(ExperimentConfig)}
# Options by which a run may end before others that train with it.
EARLY_ENDS = ("train.tokens", "train.patience", "train.until_flat")


def differing(configs: Sequence[ExperimentConfig]) -> dict[str, list[Any]]:
    """The options in which the configs differ, with the value of each config."""
    values = {path: [schema.value_at(config, path) for config in configs] for path in OPTIONS}
    return {path: each for path, each in values.items() if any(value != each[0] for value in each)}


def describe(configs: Sequence[ExperimentConfig]) -> str:
    """How many runs these are, and in what they differ."""
    values = {path: ", ".join(map(str, each)) for path, each in differing(configs).items()}
    return f"{len(configs)} runs; " + "; ".join(f"{path}: {each}" for path, each in values.items())


def incompatible(configs: Sequence[ExperimentConfig]) -> list[str]:
    """Why these runs cannot train together, a line for each reason; none if they can."""
    if len(configs) == 1:
        return []
    problems = []
    for path, values in differing(configs).items():
        listed = ", ".join(dict.fromkeys(map(str, values)))
        option = OPTIONS[path]
        if schema.is_path(option.kind) and option.affects == "environment":
            continue  # where the data is: what was prepared is compared instead
        if option.together is None:
            problems.append(f"{path} = {listed}: must be the same for all")
        elif option.together == "number or none" and not all(values) and any(values):
            problems.append(f"{path} = {listed}: all have one, or none has")
    for path in EARLY_ENDS:
        if (limit := schema.value_at(configs[0], path)) is not None:
            problems.append(
                f"{path} = {limit}: ends each run at another update, and runs that train together end together"
            )
    if configs[0].train.keep_latest < 2:
        problems.append("train.keep_latest = 1: must be at least 2, or a kill while they save leaves no common step")
    return problems


def refuse_incompatible(configs: Sequence[ExperimentConfig]) -> None:
    problems = incompatible(configs)
    if len(configs) > 1 and jax.process_count() > 1:
        problems.append(f"they train in one process, here are {jax.process_count()}")
    if problems:
        raise BadInput("runs that cannot train together:\n  " + "\n  ".join(problems))


class VmappedPrograms:
    """The programs of several runs. Their states have one more axis in front: the runs."""

    def __init__(
        self, configs: Sequence[ExperimentConfig], schedules: Sequence[optax.Schedule], mesh: Mesh, state: TrainState
    ):
        """`state` has the sharding of each leaf of the state of all runs."""
        self.config, self.schedules, self.mesh = configs[0], schedules, mesh
        self.numbers = jax.device_put(numbers_of(configs), NamedSharding(mesh, PartitionSpec()))
        self._multiplier = mup_rate_factor(self.config.model)
        self._of_step = for_mesh(self.config, mesh, is_training=True)
        self._of_evaluation = for_mesh(self.config, mesh, is_training=False)
        everywhere, options = NamedSharding(mesh, PartitionSpec()), unfused(mesh)
        self.new_state = self._call(jax.jit(jax.vmap(self._new_run), out_shardings=state, compiler_options=options))
        self.step = self._call(
            jax.jit(
                self._step_of_all,
                in_shardings=(everywhere, state, sharding.batch_sharding(mesh)),
                out_shardings=(state, everywhere),
                donate_argnums=1,
                compiler_options=options,
            )
        )
        self.evaluate = self._call(
            jax.jit(
                jax.vmap(self._evaluate_run, in_axes=(0, 0, None)), out_shardings=everywhere, compiler_options=options
            )
        )

    def _new_run(self, numbers: Mapping[str, jax.Array]) -> TrainState:
        config = with_values(self.config, numbers)
        return new_state(config, make_optimizer(config.optimizer, self.schedules[0]))

    def _evaluate_run(self, numbers: Mapping[str, jax.Array], params: Any, batch: Any) -> TokenSums:
        return evaluation_sums(with_values(self._of_evaluation, numbers), params, batch)

    def _step_of_run(
        self, numbers: Mapping[str, jax.Array], rate: jax.Array, state: TrainState, batch: Any
    ) -> tuple[TrainState, StepMetrics]:
        config = with_values(self._of_step, numbers)
        optimizer = make_optimizer(config.optimizer, lambda count: rate, self._multiplier)
        return train_step(config, optimizer, state, batch, self.mesh)

    def _step_of_all(
        self, numbers: Mapping[str, jax.Array], states: TrainState, batch: Any
    ) -> tuple[TrainState, StepMetrics]:
        """Each run has its own schedule, of any form, at its own number of updates."""
        rates = jnp.stack([schedule(states.updates[run]) for run, schedule in enumerate(self.schedules)])
        return jax.vmap(self._step_of_run, in_axes=(0, 0, 0, None))(numbers, rates, states, batch)

    def _call(self, program: Any) -> Any:
        return functools.partial(call, program, self.numbers)


def call(program: Callable[..., Any], numbers: Mapping[str, Any], *arguments: Any) -> Any:
    """Calls a program. A custom module may need a concrete number when it is traced, where there is none."""
    try:
        return program(numbers, *arguments)
    except jax.errors.ConcretizationTypeError as error:
        raise BadInput(
            f"these runs differ in {', '.join(numbers)}, but a part of the model or the optimizer is another program "
            "for each of these numbers: they must train apart"
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
