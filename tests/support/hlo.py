"""A training step of a tiny model, compiled for CPUs as compilers for accelerators would do it."""

import math
from typing import NamedTuple

import jax

from tests.support.small_runs import Trainer, batch_of, experiment, sentences
from transformer_jax.update.sharding import AXES


class Program(NamedTuple):
    """A compiled training step: its text, what each device has of each parameter, and bytes of memory on each."""

    hlo: str
    parameters: list[tuple[int, ...]]
    state: int
    temporary: int


# XLA for CPUs drops the barriers that keep a second gathering apart from the first, and gathers at once all it can.
# Here it keeps them, and does first what frees memory, as XLA for accelerators does. Machine code is not looked at.
AS_ON_ACCELERATORS = {
    "xla_disable_hlo_passes": "cse_barrier_expander",
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_backend_optimization_level": 0,
}


def compiled(devices: int, rows: int, width: int = 8, **options) -> Program:
    """The training step of a tiny model (options are small_runs.experiment's), compiled and not run."""
    trainer = Trainer(experiment(**options), devices)
    batch = batch_of(sentences(rows), width)
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch)
    step = trainer.step.func.lower(*trainer.step.args, trainer.plan, shapes).compile(
        compiler_options=AS_ON_ACCELERATORS
    )
    memory = step.memory_analysis()
    shards = [leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(trainer.plan.params)]
    return Program(step.as_text(), shards, memory.argument_size_in_bytes, memory.temp_size_in_bytes)


class Configuration(NamedTuple):
    """Of a model on a mesh: rows of a batch, tokens in a row, and parts that an update is made in."""

    mesh: tuple[int, int, int]
    rows: int
    length: int
    parts: int
    model: dict

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(AXES, self.mesh, strict=True))

    def compiled(self) -> Program:
        options = {f"model__{name}": value for name, value in self.model.items()}
        options |= {"mesh__fsdp": self.mesh[1], "mesh__tensor": self.mesh[2], "train__accumulate": self.parts}
        return compiled(math.prod(self.mesh), self.rows, self.length, **options)
