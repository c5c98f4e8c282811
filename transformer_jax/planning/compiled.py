"""The train step compiled for batches of one shape, from shapes alone: without data or parameters."""

from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch
from transformer_jax.training.programs import Programs
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule


class CompiledMemory(NamedTuple):
    """Bytes that a compiled program needs on one device."""

    state: int  # parameters, optimizer and batch: the arguments and results of the step
    temporary: int  # gradients, activations, logits

    @property
    def peak(self) -> int:
        return sum(self)


def divisible(config: ExperimentConfig, rows: int) -> int:
    """The number of rows, rounded up to a multiple of devices times accumulation steps."""
    parts = sharding.batch_devices(sharding.make_mesh(config.mesh)) * config.train.accumulate
    return -(-rows // parts) * parts


def compiled_step(config: ExperimentConfig, rows: int, source: int, target: int) -> jax.stages.Compiled:
    """The train step for batches of so many rows with these lengths."""
    source_BS, target_BT = (jax.ShapeDtypeStruct((rows, length), np.int32) for length in (source, target))
    schedule = make_schedule(config.optimizer, config.model.d_model, config.train.steps)
    programs = Programs(config, schedule, sharding.make_mesh(config.mesh))
    step: Any = programs.step
    return step.lower(programs.plan, Batch(source_BS, target_BT, target_BT)).compile()  # type: ignore[arg-type]


def memory(program: jax.stages.Compiled) -> CompiledMemory:
    """The memory of a program as the compiler reports it."""
    reported: Any = program.memory_analysis()
    # Results reuse the memory of donated arguments, but for a few numbers.
    new_results = reported.output_size_in_bytes - reported.alias_size_in_bytes
    return CompiledMemory(reported.argument_size_in_bytes + new_results, reported.temp_size_in_bytes)
