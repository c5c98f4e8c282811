"""How long the parts of a run take on this machine, now: the actual programs of a config, timed on random tokens.

    python -P -m transformer_jax.sweeps.timing        reads a request from stdin, writes the measured parts to stdout

`--dry-run` runs this in a process with the cores or the GPU of a worker. Nothing is trained, and nothing is written but
checkpoints in a temporary folder. One program of each kind is compiled, without the cache, and stands for its shapes.
Of a config whose updates take long, only matrix products are timed.
"""

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax import config as configuration
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch, EvaluationBatches, training_batches
from transformer_jax.data.prepared import TokenPairs
from transformer_jax.data.tokenizer import BOS
from transformer_jax.model import build
from transformer_jax.model.size import training_flops
from transformer_jax.processes.compilation import use_cache
from transformer_jax.processes.hardware import keep_freed_memory, products_rate
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.sweeps.lengths import lengths_of
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.translation import translate
from transformer_jax.translation.shapes import Group
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

# A program is called until its calls took this long, and at least this often.
SECONDS, CALLS = 1.0, 2
# If matrix products say that an update takes longer, nothing is timed: this would take many minutes.
LONGEST_UPDATE = 3.0
# Rows of these products: with more, their rate is the same.
ROWS = 1024
# FLOPs of a call: larger batches are timed by a part of their rows.
MOST_FLOPS = 3e10


class Parts(NamedTuple):
    """Seconds of the parts of a run."""

    start: float  # a process, until JAX has its devices
    preparation: float | None  # of the data, once for all runs that share it; none if it is not known
    compile: float  # all programs, traced and compiled
    cached: float  # the same where they were compiled before, by another run of the variant
    update: float
    validation: float
    checkpoint: float
    tests: float  # all test sets, translated and scored
    lengths: str  # where the lengths of sentences are from: prepared, sampled or assumed


class Timer:
    """Times programs, and adds up what all their shapes take to compile."""

    def __init__(self) -> None:
        self.compile, self.cached_share = 0.0, 0.0

    def __call__(self, shapes: int, call: Callable[[], Any]) -> float:
        """Seconds of a call, whose program is compiled for so many shapes in a run."""
        first = _seconds(call)
        times = [_seconds(call)]
        while len(times) < CALLS or sum(times) < SECONDS:
            times.append(_seconds(call))
        seconds = float(np.mean(times))
        if not self.compile:
            jax.clear_caches()  # the next call finds the program in the cache on disk
            self.cached_share = max(_seconds(call) - seconds, 0) / max(first - seconds, seconds)
        self.compile += shapes * max(first - seconds, 0)
        return seconds


def time_parts(config: ExperimentConfig, data: Path, tests: Sequence[str], start: float) -> Parts:
    """The seconds of each part of a run of this config, whose data is, or will be, in `data`."""
    lengths = lengths_of(config, data, tests)
    config, mesh, timer = lengths.config, sharding.make_mesh(config.mesh), Timer()
    programs = CompiledSteps(
        config, make_schedule(config.optimizer, config.model.base_d_model, config.train.steps), mesh
    )
    state = programs.new_state()
    tested = [lengths.splits[split] for split in tests if split in lengths.splits]
    valid = [lengths.splits["valid"]] if "valid" in lengths.splits else []
    budgets = config.data.tokens_per_batch, config.decode.tokens_per_batch
    made = [_batches(part, budget, mesh) for part, budget in zip((valid, tested), budgets, strict=True)]
    validation, scores = _forward(made, mesh, programs, state.params, timer)
    translated = [first_pairs(pairs, config.decode.bleu_sentences) for pairs in valid if config.decode.bleu_sentences]
    bleu, translations = _searches(config, mesh, [translated, tested], state.params, timer)
    checkpoint = _checkpoint(state)
    begin = time.monotonic()
    jax.block_until_ready(programs.new_state())
    timer.compile += time.monotonic() - begin
    update = _update(config, mesh, lengths.splits["train"], programs, state, timer)  # last: it donates the state
    return Parts(
        start=start,
        preparation=lengths.preparation,
        compile=timer.compile,
        cached=timer.compile * timer.cached_share,
        update=update,
        validation=validation + bleu,
        checkpoint=checkpoint,
        tests=scores + translations,
        lengths=lengths.source,
    )


def _update(
    config: ExperimentConfig, mesh: Mesh, pairs: TokenPairs, programs: CompiledSteps, state: Any, timer: Timer
) -> float:
    """Seconds of an update, by the cells of its batch."""
    parts = sharding.batch_devices(mesh) * config.train.accumulate
    batches = training_batches(config.data, pairs, parts)
    batch = batches.batch(0)
    rows, source, target = len(batch.source), batch.source.shape[1], batch.target_input.shape[1]
    flops = training_flops(config.model, source, target).of(rows * source, rows * target)
    kept = max(parts, round(rows * min(1, MOST_FLOPS / flops)) // parts * parts)
    placed = sharding.place_batch(jax.tree.map(lambda array: array[:kept], batch), mesh)
    holder = [state]

    def call() -> Any:
        holder[0], pulse = programs.step(holder[0], placed)
        return pulse

    statistics = batches.statistics()
    cells = sum(shape.rows * (shape.source + shape.target) * count for shape, count in statistics.shapes)
    per_cell = timer(len(statistics.shapes), call) / (kept * (source + target))
    return per_cell * cells / statistics.steps_per_epoch


def _batches(part: Sequence[TokenPairs], tokens: int, mesh: Mesh) -> list[EvaluationBatches]:
    multiple = sharding.batch_devices(mesh)
    return [
        EvaluationBatches(pairs, tokens_per_batch=max(tokens, longest(pairs)), row_multiple=multiple) for pairs in part
    ]


def _forward(
    parts: Sequence[Sequence[EvaluationBatches]], mesh: Mesh, programs: CompiledSteps, params: Any, timer: Timer
) -> list[float]:
    """Seconds of a forward pass over each part: validation, and scoring test sets, which computes the same."""
    if not (first := next((batches for part in parts for batches in part), None)):
        return [0.0 for _ in parts]
    batch = first.batch(0)._replace(pair_index=None)
    placed = sharding.place_batch(batch, mesh)
    shapes = sum(len({shape for batches in part for shape in batches.shapes}) for part in parts)
    per_cell = timer(shapes, lambda: programs.evaluate(params, placed)) / _cells(batch)
    return [per_cell * sum(_cells(batch) for batches in part for batch in batches) for part in parts]


def _cells(batch: Batch) -> int:
    return batch.source.size + batch.target_input.size


def _searches(
    config: ExperimentConfig, mesh: Mesh, parts: Sequence[Sequence[TokenPairs]], params: Any, timer: Timer
) -> list[float]:
    """Seconds to translate each part. A trained model's translations are about as long as the references."""
    found = [[(pairs, group) for pairs in part for group in _groups(config, mesh, pairs)] for part in parts]
    every = [each for part in found for each in part]
    if not every:
        return [0.0 for _ in parts]
    model = build.with_loaded_modules(config.model)
    search = translate.compiled_search(model, mesh)
    pairs, group = every[len(every) // 2]
    members = np.resize(group.members, group.rows)
    limits_B = np.minimum(pairs.target_lengths[members] + 1, group.target).astype(np.int32)
    source_BS = np.full((group.rows, group.source), BOS, np.int32)
    rows = jax.device_put(
        translate.Rows(source_BS, limits_B, np.zeros(group.rows, np.int32)), sharding.batch_sharding(mesh)
    )
    options = {"mesh": mesh, "model": model, "decode": config.decode, "max_length": group.target}
    options["tail"] = translate.tail_of(group.rows, mesh)
    seconds = timer(len({group[1:] for _, group in every}), lambda: search(params, rows, **options))
    per_step = seconds / _steps(pairs, group)
    return [per_step * sum(_steps(pairs, group) for pairs, group in part) for part in found]


def _steps(pairs: TokenPairs, group: Group) -> float:
    """Steps of a search times its rows."""
    return float(group.rows * (pairs.target_lengths[group.members].max() + 1))


def _groups(config: ExperimentConfig, mesh: Mesh, pairs: TokenPairs) -> list[Group]:
    """The groups in which these sentences are translated."""
    decode = config.decode
    limit = translate.source_limit(config, decode, is_test_set=True)
    lengths = np.minimum(pairs.source_lengths + 1, limit or longest(pairs)).tolist()
    targets = (pairs.target_lengths + 1).tolist() if decode.eos == "oracle_length" else None
    return list(translate.groups_of(config.model, decode, mesh, lengths, targets))


def first_pairs(pairs: TokenPairs, count: int) -> TokenPairs:
    return dataclasses.replace(
        pairs, source_offsets=pairs.source_offsets[: count + 1], target_offsets=pairs.target_offsets[: count + 1]
    )


def longest(pairs: TokenPairs) -> int:
    return int(max(pairs.source_lengths.max(), pairs.target_lengths.max())) + 1


def _checkpoint(state: Any) -> float:
    """Seconds of saving a checkpoint; the first one also sets up what others need."""
    with tempfile.TemporaryDirectory() as folder, Checkpoints(Path(folder) / "checkpoints") as checkpoints:

        def save(step: int) -> None:
            checkpoints.save(step, state, {})
            checkpoints.wait()

        save(1)
        return _seconds(lambda: save(2))


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.monotonic()
    jax.block_until_ready(call())
    return time.monotonic() - begin


def main() -> None:
    request = json.load(sys.stdin)
    keep_freed_memory()
    jax.devices()
    start = time.time() - request["asked"]
    config = configuration.from_json(json.dumps(request["config"]))
    model = config.model
    rate = products_rate(ROWS, model.d_model, model.d_ff, model.dtype, model.matmul_precision)
    found = {"start": start, "rate": rate}
    if request["flops"] / rate <= LONGEST_UPDATE:
        with tempfile.TemporaryDirectory() as cache:
            use_cache(cache)  # of this process alone: what it compiles is not what a run would find
            found |= time_parts(config, Path(request["data"]), request["tests"], start)._asdict()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
