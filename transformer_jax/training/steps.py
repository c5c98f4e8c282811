"""The steps of a run: how many there are, and their compiled programs, for one run or for several in one program.

Several runs are one program by `vmap` over their states. They may differ in what is only a number to the program: the
seed, the rates of dropout, label smoothing, the learning rate's schedule, the optimizer's numbers. These numbers are
traced arrays, with one number for each run.
"""

import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig, TrainConfig
from transformer_jax.data.batching import training_batches
from transformer_jax.data.prepared import MANIFEST, Prepared
from transformer_jax.errors import BadInput
from transformer_jax.processes.compilation import unfused
from transformer_jax.processes.hardware import cores, memory
from transformer_jax.runs.metrics import count_text
from transformer_jax.schema import with_values
from transformer_jax.update import sharding
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.optimizer import mup_rate_factors, optimizer_of
from transformer_jax.update.step import (
    IntervalSums,
    StepOutcome,
    TrainState,
    batch_sums,
    jitted_step,
    make_eval_step,
    new_state,
    resolve,
    train_step,
)

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
# Threads that compile: one for two cores, because XLA uses threads, too, and the first program is waited for.
# Each takes some GB of the host's memory.
COMPILING = max(1, min(cores() // 2, 8))
Numbers = Mapping[str, jax.Array]  # one for each run, by the path of an option


def last_step(train: TrainConfig, steps_per_epoch: int) -> int:
    """The number of steps of a run: the lower of `train.steps` and `train.epochs`."""
    if train.epochs is None:
        return train.steps
    # 0.07 epochs of 100 steps are 7 steps, though 0.07 * 100 is 7.000000000000001.
    return min(train.steps, max(math.ceil(round(train.epochs * steps_per_epoch, 6)), 1))


def planned_steps(config: ExperimentConfig, data: Path) -> int | None:
    """The number of steps of a run that has not started; None if `train.epochs` needs data that is not prepared."""
    if config.train.epochs is None:
        return config.train.steps
    if not (data / MANIFEST).is_file():
        return None
    batches = training_batches(config.data, Prepared.open(data).pairs("train"))
    return last_step(config.train, batches.steps_per_epoch)


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


def common_to_all(config: ExperimentConfig) -> Hashable:
    """What is the same for runs that can train together, by `incompatible`; None if this run trains alone."""
    if config.train.keep_latest < 2 or any(schema.value_at(config, path) is not None for path in EARLY_ENDS):
        return None
    compared = (option for option in OPTIONS.values() if not (option.is_path and option.affects == "environment"))
    values = ((option, schema.value_at(config, option.path)) for option in compared)
    return tuple(
        bool(value) if option.path in NUMBERS_OR_NONE else repr(value)
        for option, value in values
        if option.path not in (*NUMBERS, *RATES)
    )


def refuse_incompatible(configs: Sequence[ExperimentConfig]) -> None:
    problems = incompatible(configs)
    if len(configs) > 1 and jax.process_count() > 1:
        problems.append(f"they need one process, not {jax.process_count()}")
    if problems:
        raise BadInput("runs that cannot train together:\n  " + "\n  ".join(problems))


class Program:
    """A jitted function `func(*args, arguments, batch)`, with a separate executable for each shape of batch.

    Threads can compile executables before they are needed. A call waits for its own, or compiles it. `waited` is the
    seconds of all waits.
    """

    _tracing = threading.Lock()  # tracing holds the interpreter: one at a time, so that the first is ready first

    def __init__(self, func: Any, *args: Any):
        self.func, self.args = func, args
        self.waited = 0.0
        self._ahead: dict[Any, Future[jax.stages.Compiled]] = {}
        self._used: dict[Any, Any] = {}  # what a call uses for each shape

    def __call__(self, arguments: Any, batch: Any) -> Any:
        shapes = _shapes(batch)
        if shapes not in self._used:
            jax.block_until_ready(arguments)  # what the devices still compute is no waiting for a program
            began, ahead = time.perf_counter(), self._ahead.get(shapes)
            self._used[shapes] = self.func if ahead is None or ahead.cancelled() else ahead.result()
            self.waited += time.perf_counter() - began
        return self._used[shapes](*self.args, arguments, batch)

    def compile_ahead(self, pool: Executor, arguments: Any, batch: Any) -> Future[jax.stages.Compiled]:
        """Lets a thread compile the executable for batches of this shape."""

        def compiled() -> jax.stages.Compiled:
            with self._tracing:
                lowered = self.func.lower(*self.args, arguments, batch)
            return lowered.compile()

        shapes = _shapes(batch)
        if shapes not in self._ahead or self._ahead[shapes].cancelled():
            self._ahead[shapes] = pool.submit(compiled)
        return self._ahead[shapes]


def _shapes(batch: Any) -> Any:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


class CompiledSteps:
    """The programs of n >= 1 runs, which start from random parameters; one run may start from `params`.

    `abstract_state` is the state of one run. With several runs the states, and what is computed of them, have one more
    axis in front: the runs.

    - `new_state()`: the states at step 0
    - `train_step(states, batch)`: the states after one more step, and its metrics
    - `evaluate(params, batch)`: the sums of a batch without dropout
    """

    def __init__(
        self, configs: Sequence[ExperimentConfig], schedules: Sequence[optax.Schedule], mesh: Mesh, params: Any = None
    ):
        self.configs, self.schedules, self.mesh = configs, schedules, mesh
        config, self.is_vmapped = configs[0], len(configs) > 1
        self.optimizer = optimizer_of(config.optimizer, schedules[0], mup_rate_factors(config.model))
        self.abstract_state = abstract = TrainState.abstract(config, self.optimizer, mesh)
        of_one = jax.tree.map(lambda leaf: leaf.sharding, abstract)
        if self.is_vmapped:
            of_all = jax.tree.map(lambda each: NamedSharding(mesh, PartitionSpec(None, *each.spec)), of_one)
            self.new_state, train_step, evaluate = _vmapped(configs, schedules, mesh, of_all)
        else:
            of_all = of_one
            self.new_state = functools.partial(TrainState.create, config, self.optimizer, mesh, params, abstract)
            train_step = Program(jitted_step(config, self.optimizer, mesh, abstract), np.uint32(config.seed))
            evaluate = Program(make_eval_step(config, mesh))
        self._programs = train_step, evaluate
        self.train_step: Callable[[Any, Any], tuple[TrainState, StepOutcome]] = train_step  # debugging.py wraps it
        self.evaluate: Callable[[Any, Any], TokenSums] = evaluate

        runs = (len(configs),) if self.is_vmapped else ()

        def take(tree: Any, run: int) -> Any:
            return jax.tree.map(lambda leaf: leaf[run], tree)

        def zeros() -> IntervalSums:
            return jax.tree.map(lambda leaf: jnp.zeros(runs, leaf.dtype), IntervalSums.zero())

        self._abstract_states = jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct((*runs, *leaf.shape), leaf.dtype, sharding=place), abstract, of_all
        )
        self._take = jax.jit(take, out_shardings=of_one)
        self._take_params = jax.jit(take, out_shardings=of_one.params)
        self._join = jax.jit(lambda *each: jax.tree.map(lambda *leaves: jnp.stack(leaves), *each), out_shardings=of_all)
        self._zero_sums = jax.jit(zeros, out_shardings=NamedSharding(mesh, PartitionSpec()))

    @property
    def waited(self) -> float:
        """Seconds that were spent waiting for programs, so far."""
        return sum(program.waited for program in self._programs)

    def clock(self) -> float:
        """The seconds of a clock that is stopped while a program is waited for."""
        return time.perf_counter() - self.waited

    def refuse_too_large(self) -> None:
        """Raises BadInput if the states alone are larger than a device's memory: compiling them may never end."""
        leaves = jax.tree.leaves(self._abstract_states)
        needed = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
        available = memory()
        if available is not None and needed > available:
            raise BadInput(
                f"parameters and optimizer need {count_text(needed)}B of memory on each device, which has "
                f"{count_text(available)}B: choose a smaller model (model.d_model, model.num_encoder_layers ...)"
            )

    def compile_ahead(
        self, pool: Executor, batches: Iterable[Any], of_validation: Iterable[Any] = ()
    ) -> list[Future[jax.stages.Compiled]]:
        """Lets threads compile the programs for batches of these shapes, in this order."""
        (step, evaluate), states = self._programs, self._abstract_states
        return [
            *(step.compile_ahead(pool, states, batch) for batch in batches),
            *(evaluate.compile_ahead(pool, states.params, batch) for batch in of_validation),
        ]

    def join(self, states: Sequence[TrainState]) -> TrainState:
        """The states of all runs, from the state of each."""
        return self._join(*states) if self.is_vmapped else states[0]

    def split(self, states: TrainState) -> Iterator[TrainState]:
        """The state of each run, sharded as if it were alone."""
        for run in range(len(self.configs)):
            yield self._take(states, run) if self.is_vmapped else states

    def params_of(self, params: Any, run: int) -> Any:
        """The parameters of one of the runs, from the parameters of all."""
        return self._take_params(params, run) if self.is_vmapped else params

    def fetch(self, values: Any) -> list[Any]:
        """Values on the devices, fetched, by run."""
        values = jax.device_get(values)
        if not self.is_vmapped:
            return [values]
        return [jax.tree.map(lambda leaf, run=run: leaf[run], values) for run in range(len(self.configs))]

    def reset_sums(self, states: TrainState) -> TrainState:
        """The states with their interval sums at zero."""
        return dataclasses.replace(states, sums=self._zero_sums())


def _vmapped(
    configs: Sequence[ExperimentConfig], schedules: Sequence[optax.Schedule], mesh: Mesh, shardings: TrainState
) -> tuple[Callable[[], TrainState], Program, Program]:
    """The programs `new_state`, `train_step` and `evaluate` of several runs, whose states are sharded like this."""
    config, everywhere, options = configs[0], NamedSharding(mesh, PartitionSpec()), unfused(mesh)
    trained, evaluated = (resolve(config, mesh, is_training=is_training) for is_training in (True, False))
    factors = mup_rate_factors(config.model)

    def new(numbers: Numbers) -> TrainState:
        one = with_values(config, numbers)
        return new_state(one, optimizer_of(one.optimizer, schedules[0]))

    def step(numbers: Numbers, rate: jax.Array, state: TrainState, batch: Any) -> tuple[TrainState, StepOutcome]:
        one = with_values(trained, numbers)
        return train_step(one, optimizer_of(one.optimizer, lambda count: rate, factors), state, batch, mesh)

    def step_each(numbers: Numbers, states: TrainState, batch: Any) -> tuple[TrainState, StepOutcome]:
        # Each run has its own schedule, of any form, at its own number of updates.
        rates = jnp.stack([schedule(states.updates[run]) for run, schedule in enumerate(schedules)])
        return jax.vmap(step, in_axes=(0, 0, 0, None))(numbers, rates, states, batch)

    def evaluate(numbers: Numbers, params: Any, batch: Any) -> TokenSums:
        return batch_sums(with_values(evaluated, numbers), params, batch)

    new_all = jax.jit(jax.vmap(new), out_shardings=shardings, compiler_options=options)
    step_all = jax.jit(
        step_each,
        in_shardings=(everywhere, shardings, sharding.batch_sharding(mesh)),
        out_shardings=(shardings, everywhere),
        donate_argnums=1,
        compiler_options=options,
    )
    evaluate_each = jax.vmap(evaluate, in_axes=(0, 0, None))
    evaluate_all = jax.jit(evaluate_each, out_shardings=everywhere, compiler_options=options)
    numbers = jax.device_put(_numbers(configs), everywhere)
    return functools.partial(new_all, numbers), Program(step_all, numbers), Program(evaluate_all, numbers)


def _numbers(configs: Sequence[ExperimentConfig]) -> dict[str, np.ndarray]:
    """The numbers in which the runs differ, and the seeds in any case. The learning rate is in the schedules."""
    numbers = {"seed": np.asarray([config.seed for config in configs], np.uint32)}
    for path, values in differing(configs).items():
        if path != "seed" and path in (*NUMBERS, *NUMBERS_OR_NONE):
            numbers[path] = np.asarray(values, np.float32)
    return numbers
