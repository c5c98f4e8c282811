"""How long a sweep will take on this machine: by its finished runs, or by programs that are timed now (timing.py)."""

from __future__ import annotations

import collections
import datetime
import functools
import heapq
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from transformer_jax import schema
from transformer_jax.errors import Failed
from transformer_jax.files.progress import tell
from transformer_jax.runs.metrics import count_text, duration
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.launch import grouped
from transformer_jax.sweeps.lengths import HELD_OUT
from transformer_jax.sweeps.local import Slot, pinned, slots
from transformer_jax.sweeps.process import PYTHON
from transformer_jax.sweeps.run import SweepRun, seconds_of
from transformer_jax.sweeps.spec import LENGTH, Definition, training_flops
from transformer_jax.sweeps.status import status_of

# Seconds of a run that no part has: loading the weights, tokenizing, BLEU, intervals, records.
REST = 2.0
# Configs with less than so many times the FLOPs of another are not timed besides it.
SIMILAR = 1.2


class Work(NamedTuple):
    """What is left of a run."""

    run: SweepRun
    updates: int
    flops: float  # of an update
    compiles: bool  # programs that no run of its variant has left in the compilation cache


class Pace(Protocol):
    """Seconds of the runs of a sweep."""

    start: float  # of a process
    preparation: float | None  # of data that is not prepared; None if it is not known

    def seconds(self, work: Work) -> float:
        """Of one run, without the start of its process."""

    def words(self) -> list[str]:
        """Where these seconds are from, a line each."""


class TimedPace:
    """By the parts of two configs, timed now: those with the fewest and the most FLOPs in an update."""

    def __init__(self, timed: Sequence[tuple[float, Mapping[str, Any]]]):
        (self._fewest, self._cheap), (self._most, self._costly) = timed[0], timed[-1]
        self.start, self.preparation = self._cheap["start"], self._cheap["preparation"]

    def _part(self, name: str, flops: float) -> float:
        """A part of a run, which grows linearly with the FLOPs of an update."""
        low, high = self._cheap[name], self._costly[name]
        return low + (high - low) * (flops - self._fewest) / max(self._most - self._fewest, 1.0)

    def seconds(self, work: Work) -> float:
        train, part = work.run.experiment.train, functools.partial(self._part, flops=work.flops)
        validations = math.ceil(work.updates / train.eval_every)
        checkpoints = math.ceil(work.updates / train.checkpoint_every)
        found = part("compile" if work.compiles else "cached") + REST + part("tests")
        return (
            found + work.updates * part("update") + validations * part("validation") + checkpoints * part("checkpoint")
        )

    def words(self) -> list[str]:
        parts, last = self._cheap, self._costly

        def both(name: str) -> str:
            first, second = (short(each[name]) for each in (parts, last))
            return first if first == second else f"{first} to {second}"

        lines = [
            f"timed now: a process starts in {both('start')} and compiles in {both('compile')}, or from the cache in "
            f"{both('cached')};",
            f"an update takes {both('update')}, a validation {both('validation')}, a checkpoint {both('checkpoint')}, "
            f"the test sets {both('tests')}",
        ]
        if parts["lengths"] == "sampled":
            lines.append(
                "sentences are taken to be as long as those at the beginning of the text, which is not prepared yet"
            )
        if parts["lengths"] == "assumed":
            lines.append(
                f"the text is not here: sentences are taken to have {LENGTH} tokens, and test sets {HELD_OUT:,} pairs"
            )
        if self.preparation is None:
            lines.append("preparing the data is not included: the text is not here, or too long to be counted now")
        return lines


class ProductsPace:
    """By the FLOPs of updates, at the rate of matrix products: for models whose updates take too long to be timed."""

    def __init__(self, costly: Work, parts: Mapping[str, Any]):
        self.start: float = parts["start"]
        self.preparation: float | None = 0.0
        self._costly, self._rate = costly, parts["rate"]

    def seconds(self, work: Work) -> float:
        return REST + work.updates * work.flops / self._rate

    def words(self) -> list[str]:
        update = short(self._costly.flops / self._rate)
        return [
            f"not timed: an update of {self._costly.run.variant} would take about {update}; estimated from FLOPs, "
            "which can be off by a factor of several,",
            f"at the {count_text(self._rate)}FLOP/s of matrix products timed now, without compilation, validation, "
            "checkpoints, test sets and preparing the data",
        ]


class FinishedPace:
    """By what finished runs took, from their start to their result: their own variant's, or those of all variants."""

    def __init__(self, runs: Sequence[tuple[SweepRun, float]], start: float):
        self.start: float = start
        self.preparation: float | None = 0.0
        self._training: dict[str, list[float]] = collections.defaultdict(list)  # seconds for each FLOP, by variant
        # Other seconds of a run, with and without compiling.
        self._first: dict[str, list[float]] = collections.defaultdict(list)
        self._later: dict[str, list[float]] = collections.defaultdict(list)
        for run, taken in runs:
            result = run.result() or {}
            # Of updates alone: train_seconds includes compiling them.
            training = seconds_of({**result, "train_seconds": result["target_tokens"] / result["tokens_per_second"]})
            compiling = result.get("compile_seconds", 0.0) / result.get("together", 1)  # earlier versions have none
            for name in (run.variant, ""):
                self._training[name].append(training / training_flops(run.experiment, result["steps"]))
                self._first[name].append(max(taken - training, 0))
                self._later[name].append(max(taken - training - compiling, 0))

    def seconds(self, work: Work) -> float:
        name = work.run.variant if work.run.variant in self._first else ""
        rest = max(self._first[name]) if work.compiles else min(self._later[name])
        return rest + statistics.median(self._training[name]) * work.updates * work.flops

    def words(self) -> list[str]:
        count = len(self._first[""])
        return [f"by what {f'{count} finished runs' if count > 1 else 'the finished run'} took"]


def total(works: Sequence[Work], pace: Pace, jobs: int, together: int | None) -> float:
    """Seconds until all runs are done, the longest first, in so many processes at a time."""
    by_run = {work.run.address: work for work in works}
    groups = grouped([work.run for work in works], together)
    seconds = sorted(pace.start + sum(pace.seconds(by_run[run.address]) for run in group) for group in groups)
    ends = [0.0] * min(jobs, max(len(seconds), 1))
    for each in reversed(seconds):
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


def left(runs: Sequence[SweepRun], updates: Mapping[str, int | None]) -> list[Work]:
    """What is left of runs that are not finished."""
    statuses = [status_of(run) for run in runs]
    compiled = {status.run.variant for status in statuses if status.step}  # the programs of test sets may be missing
    works = []
    for status in statuses:
        if status.state == "finished":
            continue
        run, train = status.run, status.run.experiment.train
        whole = updates[run.variant] or train.steps
        compiles = run.variant not in compiled or train.compile_cache is None
        works.append(Work(run, max(whole - status.step, 0), training_flops(run.experiment, 1), compiles))
        compiled.add(run.variant)
    return works


def pace_of(
    sweep: SweepFolder, definition: Definition, runs: Sequence[SweepRun], works: Sequence[Work], jobs: int | None
) -> Pace:
    """By finished runs that had the same cores or devices, if there are any; otherwise timed now."""
    here = slots(jobs)
    finished = [(run, taken) for run in runs if run.is_finished() and (taken := seconds_taken(run, here[0]))]
    if finished:
        begin = time.monotonic()
        subprocess.run([*PYTHON, "-c", "import transformer_jax.sweeps.timing"], check=True)
        return FinishedPace(finished, time.monotonic() - begin)
    cheap, costly = (choose(works, key=lambda work: work.flops) for choose in (min, max))
    tell(f"timing the programs of {costly.run.variant} ...")
    last = timed(sweep, costly, definition, here)
    if "update" not in last:
        return ProductsPace(costly, last)
    if costly.flops < SIMILAR * cheap.flops:
        return TimedPace([(costly.flops, last)])
    tell(f"timing the programs of {cheap.run.variant} ...")
    return TimedPace([(cheap.flops, timed(sweep, cheap, definition, here)), (costly.flops, last)])


def short(seconds: float) -> str:
    """A duration, to two digits if it is below ten seconds."""
    return f"{seconds:.2g} s" if seconds < 9.95 else duration(seconds)


def seconds_taken(run: SweepRun, slot: Slot) -> float | None:
    """A run's share of the seconds of its process, from its start to its result; None if it took several tries, or had
    other cores."""
    attempt, result = run.attempt(), run.result() or {}
    devices = result.get("devices", "")
    if attempt.get("tries") != 1 or (slot.cores and devices != cores(slot)):
        return None
    try:
        started, ended = (datetime.datetime.fromisoformat(attempt[name]) for name in ("started", "ended"))
    except (KeyError, TypeError, ValueError):
        return None
    return (ended - started).total_seconds() / result.get("together", 1)


def cores(slot: Slot) -> str:
    """The cores of a slot, as result.json has them."""
    return f"{len(slot.cores)} CPU core{'s' * (len(slot.cores) > 1)}"


def timed(sweep: SweepFolder, work: Work, definition: Definition, here: Sequence[Slot]) -> dict[str, Any]:
    """The mean of the parts of a run, timed in as many processes at the same time as will run; only its start and the
    rate of products if its updates take too long."""
    run = work.run
    request = {
        "flops": work.flops,
        "config": schema.to_dict(run.experiment),
        "data": str(sweep.data(run.experiment).absolute()),
        "tests": definition.sweep.tests,
    }
    processes = [_started(slot, request) for slot in here]
    found = []
    for process in processes:
        out, err = process.communicate()
        if process.returncode:
            raise Failed(f"the programs of {run.variant} could not be timed:\n  {err.strip().splitlines()[-1]}")
        found.append(json.loads(out.splitlines()[-1]))
    return {
        name: statistics.mean(parts[name] for parts in found) if isinstance(value, float) else value
        for name, value in found[0].items()
        if all(name in parts for parts in found)
    }


def _started(slot: Slot, request: Mapping[str, Any]) -> subprocess.Popen[str]:
    with pinned(slot):
        process = subprocess.Popen(
            [*PYTHON, "-m", "transformer_jax.sweeps.timing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **slot.environment},
            text=True,
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps({**request, "asked": time.time()}, default=str))
    process.stdin.close()
    process.stdin = None  # communicate() would write to it
    return process
