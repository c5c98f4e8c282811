"""Times one compiled update of several configs, in a process of its own with the cores or the GPU of a worker.

python -P -m transformer_jax.sweeps.timing        reads a request from stdin, writes a line of JSON for each config
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax import config as configuration
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch, training_batches
from transformer_jax.data.prepared import Prepared
from transformer_jax.experiment import with_vocabulary
from transformer_jax.model.size import training_flops
from transformer_jax.processes.hardware import keep_freed_memory
from transformer_jax.sweeps.spec import LENGTH
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

# An update is repeated until this many seconds have passed, and at least this often.
SECONDS, CALLS = 0.5, 2
# On a CPU the most FLOPs of an update that is timed: a larger batch is represented by some of its rows.
MOST_FLOPS = 3e10


def time_update(config: ExperimentConfig, data: str | None) -> dict[str, float]:
    """Seconds to compile an update, and to compute it; `data` is the folder of its prepared data, if that exists."""
    mesh = sharding.make_mesh(config.mesh)
    multiple = sharding.batch_devices(mesh) * config.train.accumulate
    if data is not None:
        prepared = Prepared.open(Path(data))
        config = with_vocabulary(config, prepared)
        batch = training_batches(config.data, prepared.pairs("train"), multiple).batch(0)
    else:
        rows = -(-(config.data.tokens_per_batch // LENGTH) // multiple) * multiple
        batch = Batch(*[np.full((max(rows, multiple), LENGTH), LENGTH, np.int32)] * 3)
    timed = few_rows(config, batch, multiple)
    schedule = make_schedule(config.optimizer, config.model.base_d_model, config.train.steps)
    steps = CompiledSteps([config], [schedule], mesh)
    state, placed = steps.new_state(), sharding.place_batch(timed, mesh)

    def update() -> Any:
        nonlocal state
        state, metrics = steps.step(state, placed)
        return metrics

    jax.block_until_ready(state)
    first = seconds_of(update)
    times: list[float] = []
    while len(times) < CALLS or sum(times) < SECONDS:
        times.append(seconds_of(update))
    seconds = float(np.median(times))
    return {"compile": max(first - seconds, 0.0), "update": seconds * len(batch.source) / len(timed.source)}


def few_rows(config: ExperimentConfig, batch: Batch, multiple: int) -> Batch:
    """The batch; on a CPU only as many of its rows as are updated in about a second."""
    rows, source, target = len(batch.source), batch.source.shape[1], batch.target_input.shape[1]
    flops = training_flops(config.model, source, target).of(rows * source, rows * target)
    if jax.default_backend() != "cpu" or flops <= MOST_FLOPS:
        return batch
    kept = max(round(rows * MOST_FLOPS / flops) // multiple, 1) * multiple
    return jax.tree.map(lambda array: array[:kept], batch)


def seconds_of(call: Callable[[], Any]) -> float:
    begin = time.monotonic()
    jax.block_until_ready(call())
    return time.monotonic() - begin


def main() -> None:
    request = json.load(sys.stdin)
    keep_freed_memory()
    jax.devices()
    print(json.dumps({"start": time.time() - request["asked"]}), flush=True)
    for config, data in request["configs"]:
        print(json.dumps(time_update(configuration.from_json(json.dumps(config)), data)), flush=True)


if __name__ == "__main__":
    main()
