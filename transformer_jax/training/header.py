"""What a run says of itself before its first step: all that people forget to write down."""

import importlib.metadata
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import TrainingBatches
from transformer_jax.processes.compilation import unfused
from transformer_jax.schema import is_address
from transformer_jax.training.throughput import Throughput

# Beside the versions where `compilation.unfused` has something to switch off.
UNFUSED = "this jaxlib's faulty fusion is off in programs of several runs or with custom code"
VERSIONS = ("jax", "flax", "optax", "orbax-checkpoint")


def header(
    config: ExperimentConfig,
    batches: TrainingBatches,
    mesh: Mesh,
    schedule: optax.Schedule,
    last_step: int,
    throughput: Throughput,
    params: Any,
) -> str:
    model, statistics = config.model, batches.statistics()
    kinds = {device.device_kind for device in mesh.devices.flat}
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    per_step = statistics.steps_per_epoch
    sizes = (
        f"{model.num_encoder_layers} + {model.num_decoder_layers} layers, d_model {model.d_model}, d_ff {model.d_ff}"
    )
    loss = f"loss {config.train.loss}" if config.train.loss else f"label smoothing {config.train.label_smoothing:g}"
    lines = {
        "model": f"{count(params):,} parameters: {sizes}, {model.num_heads} heads, {model.norm}-norm, {model.dtype}"
        + (f", products at {model.matmul_precision} precision" if model.dtype == "float32" else ""),
        "vocabulary": f"{model.vocab_size:,}"
        + (f" source, {model.target_vocab_size:,} target" if model.target_vocab_size else ", shared")
        + f"; embeddings tied: {model.tie_embeddings}; positions: {model.parts.positions or model.positions}",
        "data": f"{statistics.pairs:,} pairs an epoch in {per_step:,} batches of {len(batches.shapes)} shapes; "
        f"{statistics.dropped:,} dropped as longer than {config.data.max_length}",
        "an update": f"{statistics.source_tokens / per_step:,.0f} source + {statistics.target_tokens / per_step:,.0f} "
        f"target tokens on average ({statistics.share:.0%} of the budget's cells, the rest is padding)"
        + (f", in {config.train.accumulate} parts" if config.train.accumulate > 1 else ""),
        "optimizer": f"{config.optimizer.name}, {config.optimizer.schedule}, {_rates(config, schedule, last_step)}; "
        f"{loss}; dropout {model.dropout:g}",
        "length": f"{last_step:,} updates = {last_step / per_step:.1f} epochs",
        "devices": f"{mesh.devices.size} {', '.join(sorted(kinds))} as {axes}; "
        + ("one process" if jax.process_count() == 1 else f"{jax.process_count()} processes"),
        "peak": str(throughput),
        "versions": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
        + (f"; {UNFUSED}" if unfused(mesh) else ""),
    }
    return "\n".join(f"{name:>11}: {text}" for name, text in lines.items())


def _rates(config: ExperimentConfig, schedule: optax.Schedule, last_step: int) -> str:
    warmup = config.optimizer.warmup_steps
    if is_address(config.optimizer.schedule):
        first, half, last = (float(schedule(step)) for step in (0, last_step // 2, last_step - 1))
        return f"rate {first:.3g} at first, {half:.3g} half-way, {last:.3g} at last"
    # The peak of every schedule of ours is the last step of its warmup, or of the run.
    peak = float(schedule(min(max(warmup - 1, 0), last_step - 1)))
    return f"peak rate {peak:.3g} after {warmup:,} updates"


def count(params: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
