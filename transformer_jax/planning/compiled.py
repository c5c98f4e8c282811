"""The train step compiled for batches of one shape, from shapes alone: no data and no parameters are needed."""

from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch
from transformer_jax.training.programs import Programs
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule


class Memory(NamedTuple):
    """Bytes that the compiled program needs on one device."""

    state: int  # parameters, optimizer, batch: given to the step, and handed on by it
    temporary: int  # gradients, activations, logits

    @property
    def peak(self) -> int:
        return sum(self)


def divisible(config: ExperimentConfig, rows: int) -> int:
    """At least so many rows, as many as can be divided among devices and parts."""
    parts = sharding.batch_devices(sharding.make_mesh(config.mesh)) * config.train.accumulate
    return -(-rows // parts) * parts


def compiled_step(config: ExperimentConfig, rows: int, source: int, target: int) -> jax.stages.Compiled:
    """For batches of so many rows of these lengths."""
    mesh = sharding.make_mesh(config.mesh)
    source_BS, target_BT = (_tokens(rows, length) for length in (source, target))
    schedule = make_schedule(config.optimizer, config.model.d_model, config.train.steps)
    programs = Programs(config, schedule, mesh)
    step: Any = programs.step
    return step.lower(programs.plan, Batch(source_BS, target_BT, target_BT)).compile()


def _tokens(rows: int, length: int) -> Any:
    return jax.ShapeDtypeStruct((rows, length), np.int32)


def memory(program: jax.stages.Compiled) -> Memory:
    """By the compiler's own account."""
    told: Any = program.memory_analysis()
    # What is given back lies where it was given, but for a few numbers.
    own_output = told.output_size_in_bytes - told.alias_size_in_bytes
    return Memory(told.argument_size_in_bytes + own_output, told.temp_size_in_bytes)
