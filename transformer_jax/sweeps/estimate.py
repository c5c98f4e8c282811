"""How long a sweep will take: by its finished runs, or by one update of each variant that is compiled and timed now.

It is meant to be right within a factor of two.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import EvaluationBatches, training_batches
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import Failed
from transformer_jax.files.progress import tell
from transformer_jax.sweeps.local import Slot, pinned
from transformer_jax.sweeps.process import PYTHON
from transformer_jax.sweeps.run import SweepRun
from transformer_jax.sweeps.spec import LENGTH, training_flops

# Pairs that a held-out split is taken to have before the data is there.
HELD_OUT = 2000
# Relative to an update of the same tokens: the time of a forward pass, and of translating greedily.
FORWARD, SEARCH = 1 / 3, 2.0
# Relative to compiling an update: compiling another program, and reading one that another run has compiled.
OTHER_PROGRAM, CACHED = 0.4, 0.15


class Work(NamedTuple):
    """What is left of a run."""

    run: SweepRun
    updates: int


class Counts(NamedTuple):
    """What a run computes, besides its updates. Tokens are those of batches, on both sides, padding included."""

    programs: int  # compiled training steps, one for each shape of batch
    other_programs: int  # of evaluation and search
    tokens: float  # of an update
    validation: float  # tokens of one validation
    validation_search: float  # tokens that are translated in one validation
    tests: float  # tokens of all test sets, which are scored and translated


def counts(config: ExperimentConfig, data: Path | None, tests: Sequence[str]) -> Counts:
    """By the prepared data; without it, for sentences of `LENGTH` tokens."""
    sentences = config.decode.bleu_sentences or 0
    if data is None:
        split = HELD_OUT * 2.0 * LENGTH
        shapes = config.data.num_shapes
        return Counts(
            shapes, 3 * shapes, 2.0 * config.data.tokens_per_batch, split, sentences * 2.0 * LENGTH, len(tests) * split
        )
    prepared = Prepared.open(data)
    training = training_batches(config.data, prepared.pairs("train")).statistics()
    tokens = sum(shape.rows * (shape.source + shape.target) * count for shape, count in training.shapes)
    held_out = {
        split: EvaluationBatches(prepared.pairs(split), tokens_per_batch=config.decode.tokens_per_batch)
        for split in dict.fromkeys(("valid", *tests))
        if split in prepared.splits and len(prepared.pairs(split))
    }
    size = {
        split: float(sum(batch.source.size + batch.target_input.size for batch in batches))
        for split, batches in held_out.items()
    }
    searched = [*tests, *(["valid"] if sentences else [])]
    valid = size.get("valid", 0.0)
    return Counts(
        programs=len(training.shapes),
        other_programs=sum(len(set(batches.shapes)) * (1 + (split in searched)) for split, batches in held_out.items()),
        tokens=tokens / training.steps_per_epoch,
        validation=valid,
        validation_search=valid * min(1.0, sentences / max(len(prepared.pairs("valid")), 1)) if valid else 0.0,
        tests=sum(size.get(split, 0.0) for split in tests),
    )


def seconds_by_timing(work: Work, counted: Counts, timed: Mapping[str, float], is_first: bool) -> float:
    """Seconds of a run by one timed update; the first run of a variant compiles its programs."""
    config = work.run.experiment
    update = timed["update"]
    per_token = update / counted.tokens
    search = SEARCH * config.decode.beam**0.5 * per_token
    validation = counted.validation * FORWARD * per_token + counted.validation_search * search
    tests = counted.tests * (FORWARD * per_token + search) if work.run.tests else 0.0
    compiling = timed["compile"] * (counted.programs + OTHER_PROGRAM * counted.other_programs)
    compiling *= 1.0 if is_first or config.train.compile_cache is None else CACHED
    validations = work.updates / config.train.eval_every
    return timed["start"] + compiling + work.updates * update + validations * validation + tests


def seconds_by_finished(work: Work, finished: Sequence[tuple[SweepRun, float]]) -> float:
    """Seconds of a run by what finished runs took: those of its variant, or else all in proportion to their FLOPs."""
    own = [seconds for run, seconds in finished if run.variant == work.run.variant]
    if own:
        return statistics.median(own)
    rates = [seconds / training_flops(run.experiment) for run, seconds in finished]
    return statistics.median(rates) * training_flops(work.run.experiment, work.updates)


def seconds_taken(run: SweepRun) -> float | None:
    """A run's share of the seconds of its process, from its start to its result; None if it took several tries."""
    attempt, result = run.attempt(), run.result() or {}
    if attempt.get("tries") != 1:
        return None
    try:
        started, ended = (datetime.datetime.fromisoformat(attempt[name]) for name in ("started", "ended"))
    except (KeyError, TypeError, ValueError):
        return None
    return (ended - started).total_seconds() / result.get("together", 1)


def timed_updates(
    experiments: Mapping[str, ExperimentConfig], data: Mapping[str, Path | None], slot: Slot
) -> dict[str, dict[str, float]]:
    """One update of each variant, timed in one process with the cores or the GPU of a worker."""
    configs = [[schema.to_dict(config), data[name] and str(data[name])] for name, config in experiments.items()]
    with pinned(slot):
        process = subprocess.Popen(
            [*PYTHON, "-m", "transformer_jax.sweeps.timing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **slot.environment},
            text=True,
        )
    tell(f"timing an update of {len(experiments)} variants ...")
    out, err = process.communicate(json.dumps({"asked": time.time(), "configs": configs}, default=str))
    if process.returncode:
        raise Failed(f"the updates could not be timed:\n  {err.strip().splitlines()[-1]}")
    start, *lines = map(json.loads, out.splitlines())
    return {name: {**start, **line} for name, line in zip(experiments, lines, strict=True)}
