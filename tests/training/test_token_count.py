"""Tokens are counted exactly, and a run ends at the update that reaches train.tokens, whenever lines are written.

The loop and the journals are the real ones. The devices are numpy: a step adds to int32 and float32 sums as they do.
"""

import dataclasses
import itertools
import json
import types

import jax
import numpy as np
import pytest

from tests.support.small_runs import experiment
from transformer_jax.data.layout import Shape
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.journal import Journal, Memory
from transformer_jax.training.loop import Loop
from transformer_jax.update.step import IntervalSums, Pulse, TrainState

ROWS = 4
QUIET = types.SimpleNamespace(advance=lambda loss: None, tell=lambda line: None, report=lambda step, lines: None)
SIGNALS = types.SimpleNamespace(stop_at=lambda step, why: None)


class Devices:
    """The programs of some runs: batch b has tokens[b], and run r leaves out the steps in skipped[r]."""

    def __init__(self, tokens, skipped):
        self.tokens, self.skipped, self.looks = tokens, skipped, 0

    def begin(self):
        none, zero = np.zeros(len(self.skipped), np.int32), np.zeros(len(self.skipped), np.float32)
        sums = IntervalSums(zero, zero, zero, none, none, zero, none)
        return TrainState(none, none, none, {}, {}, sums)

    def step(self, state, batch):
        finite = np.array([batch not in skipped for skipped in self.skipped])
        more = np.where(finite, self.tokens[batch], 0)
        with np.errstate(over="ignore"):
            sums = jax.tree.map(lambda total: total + more.astype(total.dtype), state.sums)
        sums = dataclasses.replace(sums, steps=state.sums.steps + finite.astype(np.int32))
        state = dataclasses.replace(state, step=state.step + 1, updates=state.updates + finite, sums=sums)
        return state, Pulse(np.ones(len(finite), np.float32), (~finite).astype(np.int32))

    def without_sums(self, state, kept=()):
        is_kept = np.isin(np.arange(len(self.skipped)), kept)
        return dataclasses.replace(state, sums=jax.tree.map(lambda each: np.where(is_kept, each, 0 * each), state.sums))

    def take(self, state, run):
        return state


class Lines:
    def __init__(self):
        self.lines = []

    def write(self, step, values):
        clock = ("seconds", "source_tokens_per_second", "target_tokens_per_second", "data_wait", "mfu", "memory_peak")
        self.lines.append({"step": step, **{name: value for name, value in values.items() if name not in clock}})


def run(tmp_path, batches_of, skipped=((),), cells=None, **train):
    """Trains until all have ended; the loop, whose journals have their lines of metrics."""
    config = experiment(train__steps=len(batches_of), **{f"train__{name}": value for name, value in train.items()})
    width = (cells or max(batches_of)) // ROWS + 1
    batches = types.SimpleNamespace(
        shapes=(Shape(ROWS, width, width),),
        statistics=lambda: types.SimpleNamespace(pairs=10, source_tokens=80, target_tokens=90),
        steps_per_epoch=10,
        digest="",
    )
    mesh = types.SimpleNamespace(devices=np.zeros(1))
    course = types.SimpleNamespace(
        references="",
        batches=batches,
        last_step=len(batches_of),
        mesh=mesh,
        validation=None,
        data="",
        placed_batch=lambda step: step,
    )
    journals = [Journal(config, RunFolder(tmp_path / str(number)), (), course) for number in range(len(skipped))]
    for journal in journals:
        journal.metrics = Lines()
        journal.checkpoints = types.SimpleNamespace(
            wait=lambda: None, save=lambda *saved: None, records=dict, rank=lambda scores: None
        )
    loop = Loop(course, journals, Devices(batches_of, skipped))
    state = loop.programs.begin()
    loop.with_all_tokens(state, 0)
    loop.take_steps(state, 0, QUIET, SIGNALS)
    return loop


def first_step_with(limit, tokens, skipped):
    counts = itertools.accumulate(0 if step in skipped else count for step, count in enumerate(tokens))
    return next((step for step, count in enumerate(counts, start=1) if count >= limit), len(tokens))


TOKENS = np.random.default_rng(0).integers(1, 100, 60).tolist()


@pytest.mark.parametrize("log_every", [1, 7, 1000])
@pytest.mark.parametrize("skipped", [(), (0, 3, 20, 21, 22)], ids=["none skipped", "some skipped"])
def test_a_run_ends_at_the_update_that_reaches_the_tokens(tmp_path, log_every, skipped):
    for limit in (1, TOKENS[0], TOKENS[0] + 1, 500, 1500, sum(TOKENS), 10**9):
        (journal,) = run(tmp_path, TOKENS, [skipped], tokens=limit, log_every=log_every).journals
        ended, last = first_step_with(limit, TOKENS, skipped), journal.metrics.lines[-1]
        trained = sum(count for step, count in enumerate(TOKENS[:ended]) if step not in skipped)
        assert (journal.validated, last["step"], last["target_tokens"]) == (ended, ended, trained)
        assert f"finished {trained:,} target tokens" == journal.ending.why or trained < limit or ended == len(TOKENS)


def test_the_devices_are_asked_seldom(tmp_path, monkeypatch):
    """No step waits for the one before it: 100,000 batches that are four fifths full are counted a few times."""
    asked = []
    monkeypatch.setattr(
        Journal, "count", lambda self, on_devices, count=Journal.count: asked.append(1) or count(self, on_devices)
    )
    loop = run(tmp_path, [80] * 3000, cells=100, tokens=80 * 2000, log_every=10**6)
    assert loop.journals[0].validated == 2000
    assert len(asked) < 20


def test_of_runs_that_train_together_each_ends_where_it_would_alone(tmp_path):
    """And its lines of metrics are what they are alone, to the bit: one that ends takes nothing from the others."""
    skipped = [(), (2, 5, 9), tuple(range(12))]
    options = {"tokens": 1000, "log_every": 8}
    together = run(tmp_path, TOKENS, skipped, **options).journals
    ends = [first_step_with(1000, TOKENS, own) for own in skipped]
    assert len(set(ends)) == 3 and [journal.validated for journal in together] == ends
    for journal, own in zip(together, skipped, strict=True):
        (alone,) = run(tmp_path, TOKENS, [own], **options).journals
        assert str(journal.metrics.lines) == str(alone.metrics.lines)


def test_no_counter_wraps_between_two_lines_however_far_apart(tmp_path):
    """5,000 steps of a million tokens without a line: int32 ends at 2^31, and float32 no longer counts beyond 2^24."""
    tokens = [2**20 - 1] * 5000
    (journal,) = run(tmp_path, tokens, log_every=10**6).journals
    (line,) = journal.metrics.lines
    assert line["target_tokens"] == sum(tokens) > 2**32
    assert line["accuracy"] == 1.0 and line["gradient_norm"] == 2**20 - 1


def test_what_the_devices_gave_up_is_kept_with_a_checkpoint_and_one_from_before_loads(tmp_path):
    """A run that is taken up half-way between two lines counts on from there."""
    (journal,) = run(tmp_path, [10] * 4, log_every=1000).journals
    journal.memory = Memory(target_tokens=40, since={"target_tokens": 2**33 + 1, "loss": 0.1})
    notes = json.loads(json.dumps({"memory": dataclasses.asdict(journal.memory), "data": "", "batches": ""}))
    journal.recall(4, notes)
    assert (journal.memory.since["loss"], journal.tokens) == (0.1, 40 + 2**33 + 1)
    journal.recall(4, {**notes, "memory": {"target_tokens": 7, "best": None, "validations_since_best": 0}})
    assert (journal.memory.since, journal.tokens) == ({}, 7)
