"""The journals of several runs that train in one program: what `Journal` does for one run, for each of them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.errors import BadInput, Diverged, Failed
from transformer_jax.files.progress import tell
from transformer_jax.training.ending import Ending
from transformer_jax.training.journal import Journal
from transformer_jax.training.progress import Throughput
from transformer_jax.training.together_programs import VmappedSteps
from transformer_jax.update.step import Pulse, TrainState

# What the progress line shows of several runs.
MEANS = ("loss", "perplexity", "learning_rate", "data_wait", "seconds")


@contextlib.contextmanager
def isolated(journal: Journal) -> Iterator[None]:
    """An error inside ends this run, and no other."""
    try:
        yield
    except (BadInput, Failed) as failure:
        journal.ending = Ending(str(failure), failed=True, diverged=isinstance(failure, Diverged))
        tell(f"failed: {journal.label}{failure}")


class TogetherJournal:
    """The same methods as `Journal`. A run that has ended is still computed, but nothing of it is recorded any more."""

    def __init__(self, journals: Sequence[Journal], programs: VmappedSteps):
        self._journals, self._programs = journals, programs

    def _active(self) -> list[tuple[int, Journal]]:
        """The runs that have not ended, with their places in the state."""
        return [(run, journal) for run, journal in enumerate(self._journals) if journal.ending is None]

    def check(self, pulse: Pulse, step: int) -> float:
        """The mean loss."""
        losses = []
        for run, journal in self._active():
            with isolated(journal):
                losses.append(journal.check(_of(run, pulse), step))
        return float(np.mean(losses)) if losses else np.nan

    def count_tokens(self, state: TrainState, step: int) -> None:
        due = [(run, journal) for run, journal in self._active() if journal.count_is_due(step)]
        if due:
            on_devices = jax.device_get(state.sums.target_tokens)
            for run, journal in due:
                journal.set_tokens(int(on_devices[run]), step)

    def log_is_due(self, step: int) -> bool:
        return any(journal.log_is_due(step) for _, journal in self._active())

    def log(self, state: TrainState, step: int, speed: Throughput) -> tuple[TrainState, dict[str, Any]]:
        """Lines of those runs for which one is due. Their mean is shown, and the speed of all of them."""
        sums, updates = jax.device_get((state.sums, state.updates))
        speed.lap(step)
        due = [(run, journal) for run, journal in self._active() if journal.log_is_due(step)]
        others = [run for run, journal in self._active() if not journal.log_is_due(step)]
        lines = []
        for run, journal in due:
            with isolated(journal):
                lines.append(journal.write_line(step, _of(run, sums), int(updates[run]), speed))
        if not lines:
            return self._programs.reset_sums(state, kept=others), {}
        shown = {name: sum(line[name] for line in lines) / len(lines) for name in MEANS}
        shown["target_tokens_per_second"] = sum(line["target_tokens_per_second"] for line in lines)
        return self._programs.reset_sums(state, kept=others), {"runs": len(lines), **shown}

    def collect(self, state: TrainState) -> TrainState:
        sums = jax.device_get(state.sums)
        for run, journal in self._active():
            journal.add(_of(run, sums))
        return self._programs.reset_sums(state)

    def validate(self, state: TrainState, step: int) -> None:
        self._validate(state, step, self._active())

    def _validate(self, state: TrainState, step: int, runs: Sequence[tuple[int, Journal]]) -> None:
        if not runs:
            return
        params = self._programs.evaluated_params(state)
        sums = runs[0][1].inputs.validation_sums(self._programs.evaluate, params)
        for run, journal in runs:
            params = journal.programs.evaluated_params(self._programs.take(state, run)) if journal.evaluators else None
            with isolated(journal):
                journal.write_validation(step, None if sums is None else _of(run, sums), params)

    def save(self, state: TrainState, step: int) -> None:
        self._save(state, step, self._active())

    def _save(self, state: TrainState, step: int, runs: Sequence[tuple[int, Journal]]) -> None:
        """No checkpoint is started before the last ones of all runs are complete, so that all have a common step."""
        for _, journal in runs:
            with isolated(journal):
                journal.checkpoints.wait()
        for run, journal in runs:
            if journal.ending is None:
                with isolated(journal):
                    journal.save(self._programs.take(state, run), step)

    def end_if_due(self, state: TrainState, step: int, interruption: Ending | None) -> bool:
        """Whether all runs have ended."""
        endings = [(run, journal, journal.complete(step) or interruption) for run, journal in self._active()]
        due = [(run, journal, ending) for run, journal, ending in endings if ending is not None]
        self._validate(state, step, [(run, j) for run, j, ending in due if ending.final and j.validated != step])
        self._save(state, step, [(run, j) for run, j, _ in due if j.ending is None and j.saved != step])
        for _, journal, ending in due:
            if journal.ending is None:
                with isolated(journal):
                    journal.end(step, ending)
        return not self._active()


def _of(run: int, values: Any) -> Any:
    """One run's part of values of all runs."""
    return jax.tree.map(lambda each: each[run], values)
