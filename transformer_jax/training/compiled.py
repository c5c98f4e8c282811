"""Training compiled: the functions of update/step.py, pure and for one run, as programs of one run or of several.

| layer | one run | several runs as one program |
|---|---|---|
| pure | `train_step`, `batch_sums`, `new_state` | the same |
| jitted | `jit_step`, `make_eval_step` | `jit_together`: mapped over the runs by `vmap` |
| an executable for each shape of batch | `Executables` | the same |
| what a training calls | `CompiledRuns.advance`, `.evaluate`, `.new_states` | the same |

`make_train_step` is `jit_step` for the loops of others, with checks; the `train` command uses `CompiledRuns`.

Seeds are arguments of the programs, so runs that differ only in their seeds share them. Several runs may differ in more
numbers (together.py), which are arguments too, with one number for each run. `TrainState.create` jits the state of one
run itself, because it can be used without this file.
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.model import build, fused
from transformer_jax.processes.compilation import unfused, unfused_if_custom
from transformer_jax.processes.hardware import cores
from transformer_jax.schema import with_values
from transformer_jax.training.together import numbers_of
from transformer_jax.update import sharding
from transformer_jax.update.loss import Objective, TokenSums, load_loss
from transformer_jax.update.optimizer import check_experiment, make_optimizer, mup_rate_factors, optimizer_of
from transformer_jax.update.step import (
    Optimizer,
    StepOutcome,
    TrainState,
    as_batch,
    batch_sums,
    initial_params,
    new_state,
    train_step,
)

# Threads that compile: one for two cores, because XLA uses threads, too, and the first program is waited for.
# Each takes some GB of the host's memory.
COMPILE_THREADS = max(1, min(cores() // 2, 8))

Advance = Callable[[TrainState, Any], tuple[TrainState, StepOutcome]]


def decided_for(config: ExperimentConfig, mesh: Mesh, is_training: bool) -> ExperimentConfig:
    """The config of a program for this mesh: `auto` is decided, and custom modules are loaded."""
    device, train = mesh.devices.flat[0], config.train
    # XLA cannot partition fused kernels: in the `shard_map` of training a device has whole heads of its rows.
    divides_heads = config.model.key_value_heads % mesh.shape["tensor"] == 0
    has_whole_heads = mesh.size == 1 or (is_training and divides_heads and sharding.batch_shards(mesh) > 1)
    model = fused.resolved(build.with_loaded_modules(config.model), device, has_whole_heads)
    recomputes = train.rematerialize == "activations" or (train.rematerialize == "auto" and device.platform == "tpu")
    recomputed = "activations" if recomputes else "nothing"
    return with_values(dataclasses.replace(config, model=model), {"train.rematerialize": recomputed})


# One run.


def make_train_step(
    config: ExperimentConfig,
    optimizer: Optimizer | None = None,
    mesh: Mesh | None = None,
    abstract: TrainState | None = None,
) -> Callable[[Any, TrainState, Any], tuple[TrainState, StepOutcome]]:
    """The jitted step (seed, state, batch) -> (state, outcome). It donates the old state, whose memory is reused.

    - `optimizer`: by default `make_optimizer(config)`, with muP's learning rates and optimizer.clip_norm. Another
      optimizer replaces all of these.
    - `mesh`: by default it is made from `config.mesh`.
    - `abstract`: by default `TrainState.abstract(config, optimizer, mesh)`.

    The batch is a `transformer_jax.data.batching.Batch`, or a dict with its fields. `config.seed` is not used, so runs
    that differ only in their seeds share the compiled program.
    """
    check_experiment(config)
    mesh = mesh or sharding.make_mesh(config.mesh)
    jitted = jit_step(config, optimizer or make_optimizer(config), mesh, abstract)
    shards, parts = sharding.batch_shards(mesh), config.train.accumulate

    def step(seed: Any, state: TrainState, batch: Any) -> tuple[TrainState, StepOutcome]:
        rows = len(as_batch(batch).source)
        if rows % (shards * parts):
            raise BadInput(
                f"batch has {rows} rows: must be a multiple of {shards * parts}, for {shards} parts of the mesh and "
                f"train.accumulate = {parts}"
            )
        # jax.jit would take a seed of Python for an int32.
        seed = seed if isinstance(seed, jax.Array) else np.uint32(seed)
        return jitted(seed, state, batch)

    return step


def jit_step(config: ExperimentConfig, optimizer: Optimizer, mesh: Mesh, abstract: TrainState | None = None) -> Any:
    """The step of `make_train_step`, for batches that the mesh divides evenly."""
    abstract = abstract or TrainState.abstract(config, optimizer, mesh)
    trained = decided_for(config, mesh, is_training=True)
    objective = Objective.of(config.train, load_loss(config.train))

    def step(seed: jax.Array, state: TrainState, batch: Any) -> tuple[TrainState, StepOutcome]:
        return train_step(trained, objective, optimizer, mesh, jax.random.key(seed), state, as_batch(batch))

    options = unfused_if_custom(mesh, config.model, config.optimizer, config.train)
    return _jit_donating(step, mesh, jax.tree.map(lambda leaf: leaf.sharding, abstract), options)


def _jit_donating(step: Callable[..., Any], mesh: Mesh, shardings: TrainState, options: Any) -> Any:
    """Jits (numbers, states, batch) -> (states, outcome), which donates the states."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        step,
        in_shardings=(everywhere, shardings, sharding.batch_sharding(mesh)),
        out_shardings=(shardings, everywhere),
        donate_argnums=1,
        compiler_options=options,
    )


def make_eval_step(config: ExperimentConfig, mesh: Mesh) -> Callable[[Any, Any], TokenSums]:
    """The jitted evaluation (params, batch) -> sums, without dropout and z-loss."""
    evaluated = decided_for(config, mesh, is_training=False)
    objective = Objective.of(config.train, load_loss(config.train), is_training=False)
    return jax.jit(
        lambda params, batch: batch_sums(evaluated, objective, params, as_batch(batch)),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
        compiler_options=unfused_if_custom(mesh, config.model, config.train),
    )


# Several runs.


def jit_together(
    configs: Sequence[ExperimentConfig], schedules: Sequence[optax.Schedule], mesh: Mesh, shardings: TrainState
) -> tuple[Any, Any, Any]:
    """The programs of several runs, whose states are sharded like this. `numbers` differ from run to run (together.py).

    (seeds, numbers) -> states; ((seeds, numbers), states, batch) -> (states, outcome); and the evaluation
    (numbers, params, batch) -> sums.
    """
    config, everywhere, options = configs[0], NamedSharding(mesh, PartitionSpec()), unfused(mesh)
    trained, evaluated = (decided_for(config, mesh, is_training=is_training) for is_training in (True, False))
    loss, factors = load_loss(config.train), mup_rate_factors(config.model)

    def new_one(seed: jax.Array, numbers: Any) -> TrainState:
        one = with_values(config, numbers)
        return new_state(optimizer_of(one.optimizer, schedules[0]), initial_params(one.model, jax.random.key(seed)))

    def step_one(seed: jax.Array, numbers: Any, rate: jax.Array, state: TrainState, batch: Any) -> Any:
        one = with_values(trained, numbers)
        optimizer, objective = optimizer_of(one.optimizer, lambda count: rate, factors), Objective.of(one.train, loss)
        return train_step(one, objective, optimizer, mesh, jax.random.key(seed), state, batch)

    def step_all(seeds_and_numbers: Any, states: TrainState, batch: Any) -> tuple[TrainState, StepOutcome]:
        seeds, numbers = seeds_and_numbers
        # Each run has its own schedule, of any form, at its own number of updates.
        rates = jnp.stack([schedule(states.updates[run]) for run, schedule in enumerate(schedules)])
        return jax.vmap(step_one, in_axes=(0, 0, 0, 0, None))(seeds, numbers, rates, states, batch)

    def evaluate_one(numbers: Any, params: Any, batch: Any) -> TokenSums:
        one = with_values(evaluated, numbers)
        return batch_sums(one, Objective.of(one.train, loss, is_training=False), params, batch)

    evaluate_all = jax.vmap(evaluate_one, in_axes=(0, 0, None))
    return (
        jax.jit(jax.vmap(new_one), out_shardings=shardings, compiler_options=options),
        _jit_donating(step_all, mesh, shardings, options),
        jax.jit(evaluate_all, out_shardings=everywhere, compiler_options=options),
    )


# What a training calls.


class Executables:
    """A jitted function of arguments, the last of which is a batch, with an executable for each shape of batch.

    Threads can compile executables before they are needed. A call waits for its own, or compiles it. `waited` is the
    seconds of all waits.
    """

    _tracing = threading.Lock()  # tracing holds the interpreter: one at a time, so that the first is ready first

    def __init__(self, jitted: Any):
        self.jitted = jitted
        self.waited = 0.0
        self._ahead: dict[Any, Future[jax.stages.Compiled]] = {}
        self._used: dict[Any, Any] = {}  # what a call uses for each shape

    def __call__(self, *arguments: Any) -> Any:
        shapes = _shapes(arguments[-1])
        if shapes not in self._used:
            jax.block_until_ready(arguments[:-1])  # what the devices still compute is no waiting for a program
            began, ahead = time.perf_counter(), self._ahead.get(shapes)
            self._used[shapes] = self.jitted if ahead is None or ahead.cancelled() else ahead.result()
            self.waited += time.perf_counter() - began
        return self._used[shapes](*arguments)

    def compile_ahead(self, pool: Executor, *arguments: Any) -> Future[jax.stages.Compiled]:
        """Lets a thread compile the executable for batches of this shape."""

        def compiled() -> jax.stages.Compiled:
            with self._tracing:
                lowered = self.jitted.lower(*arguments)
            return lowered.compile()

        shapes = _shapes(arguments[-1])
        if shapes not in self._ahead or self._ahead[shapes].cancelled():
            self._ahead[shapes] = pool.submit(compiled)
        return self._ahead[shapes]


def _shapes(batch: Any) -> Any:
    return tuple(leaf.shape for leaf in jax.tree.leaves(batch))


class CompiledRuns:
    """The programs of n >= 1 runs, which start from random parameters; one run may start from `params`.

    `abstract_state` is the state of one run. With several runs the states, and what is computed of them, have one more
    axis in front: the runs. `new_states()` makes the states at step 0.
    """

    def __init__(
        self, configs: Sequence[ExperimentConfig], schedules: Sequence[optax.Schedule], mesh: Mesh, params: Any = None
    ):
        self.configs, self.schedules, self.mesh = configs, schedules, mesh
        config, self.is_vmapped = configs[0], len(configs) > 1
        self.optimizer = optimizer_of(config.optimizer, schedules[0], mup_rate_factors(config.model))
        self.abstract_state = abstract = TrainState.abstract(config, self.optimizer, mesh)
        of_one, everywhere = jax.tree.map(lambda leaf: leaf.sharding, abstract), NamedSharding(mesh, PartitionSpec())
        # What the programs get besides states and batch.
        self.step_arguments: tuple[Any, ...]
        self.evaluation_arguments: tuple[Any, ...]
        if self.is_vmapped:
            of_all = jax.tree.map(lambda each: NamedSharding(mesh, PartitionSpec(None, *each.spec)), of_one)
            new, step, evaluate = jit_together(configs, schedules, mesh, of_all)
            seeds = np.asarray([config.seed for config in configs], np.uint32)
            seeds, numbers = jax.device_put((seeds, numbers_of(configs)), everywhere)
            self.new_states: Callable[[], TrainState] = functools.partial(new, seeds, numbers)
            self.step_arguments, self.evaluation_arguments = ((seeds, numbers),), (numbers,)
        else:
            of_all, evaluate = of_one, make_eval_step(config, mesh)
            step = jit_step(config, self.optimizer, mesh, abstract)
            self.new_states = functools.partial(TrainState.create, config, self.optimizer, mesh, params, abstract)
            self.step_arguments, self.evaluation_arguments = (np.uint32(config.seed),), ()
        self.step_program, self.evaluation_program = Executables(step), Executables(evaluate)

        runs = (len(configs),) if self.is_vmapped else ()

        def take(tree: Any, run: int) -> Any:
            return jax.tree.map(lambda leaf: leaf[run], tree)

        self.abstract_states = jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct((*runs, *leaf.shape), leaf.dtype, sharding=place), abstract, of_all
        )
        sums = self.abstract_states.sums
        self._take = jax.jit(take, out_shardings=of_one)
        self._take_params = jax.jit(take, out_shardings=of_one.params)
        self._join = jax.jit(lambda *each: jax.tree.map(lambda *leaves: jnp.stack(leaves), *each), out_shardings=of_all)
        self._zero_sums = jax.jit(lambda: jax.tree.map(jnp.zeros_like, sums), out_shardings=everywhere)

    def advance(self, states: TrainState, batch: Any) -> tuple[TrainState, StepOutcome]:
        """The states after one more step, and its outcome. The old states are given away."""
        return self.step_program(*self.step_arguments, states, batch)

    def evaluate(self, params: Any, batch: Any) -> TokenSums:
        """The sums of a batch without dropout."""
        return self.evaluation_program(*self.evaluation_arguments, params, batch)

    @property
    def waited(self) -> float:
        """Seconds that were spent waiting for programs, so far."""
        return self.step_program.waited + self.evaluation_program.waited

    def clock(self) -> float:
        """The seconds of a clock that is stopped while a program is waited for."""
        return time.perf_counter() - self.waited

    def compile_ahead(
        self, pool: Executor, batches: Iterable[Any], of_validation: Iterable[Any] = ()
    ) -> list[Future[jax.stages.Compiled]]:
        """Lets threads compile the programs for batches of these shapes, in this order."""
        step, evaluate = self.step_program.compile_ahead, self.evaluation_program.compile_ahead
        states = self.abstract_states
        return [
            *(step(pool, *self.step_arguments, states, batch) for batch in batches),
            *(evaluate(pool, *self.evaluation_arguments, states.params, batch) for batch in of_validation),
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
