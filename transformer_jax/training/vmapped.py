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
Numbers = Mapping[str, jax.Array]  # by the path of an option


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


def vmapped_programs(
    configs: Sequence[ExperimentConfig], schedules: Sequence[optax.Schedule], mesh: Mesh, states: TrainState
) -> list[Any]:
    """The programs `new_state`, `step` and `evaluate`; `states` has the sharding of each leaf of the runs' states."""
    config, everywhere, options = configs[0], NamedSharding(mesh, PartitionSpec()), unfused(mesh)
    trained = for_mesh(config, mesh, is_training=True)
    evaluated = for_mesh(config, mesh, is_training=False)
    rate_factor = mup_rate_factor(config.model)

    def new(numbers: Numbers) -> TrainState:
        one = with_values(config, numbers)
        return new_state(one, make_optimizer(one.optimizer, schedules[0]))

    def step(numbers: Numbers, rate: jax.Array, state: TrainState, batch: Any) -> tuple[TrainState, StepMetrics]:
        one = with_values(trained, numbers)
        return train_step(one, make_optimizer(one.optimizer, lambda count: rate, rate_factor), state, batch, mesh)

    def update(numbers: Numbers, states: TrainState, batch: Any) -> tuple[TrainState, StepMetrics]:
        # Each run has its own schedule, of any form, at its own number of updates.
        rates = jnp.stack([schedule(states.updates[run]) for run, schedule in enumerate(schedules)])
        return jax.vmap(step, in_axes=(0, 0, 0, None))(numbers, rates, states, batch)

    def evaluate(numbers: Numbers, params: Any, batch: Any) -> TokenSums:
        return evaluation_sums(with_values(evaluated, numbers), params, batch)

    programs = (
        jax.jit(jax.vmap(new), out_shardings=states, compiler_options=options),
        jax.jit(
            update,
            in_shardings=(everywhere, states, sharding.batch_sharding(mesh)),
            out_shardings=(states, everywhere),
            donate_argnums=1,
            compiler_options=options,
        ),
        jax.jit(jax.vmap(evaluate, in_axes=(0, 0, None)), out_shardings=everywhere, compiler_options=options),
    )
    numbers = jax.device_put(numbers_of(configs), everywhere)
    return [functools.partial(call, program, numbers) for program in programs]


def call(program: Callable[..., Any], numbers: Numbers, *arguments: Any) -> Any:
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
