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
from tests.support.training_runs import CLOCK
from transformer_jax.errors import Failed
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training import train as train_module
from transformer_jax.training.journal import Journal
from transformer_jax.training.setup import EXACT
from transformer_jax.training.together_journal import TogetherJournal
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.step import IntervalSums, Pulse, TrainState

ROWS = 4
SIGNALS = types.SimpleNamespace(stop_at=lambda step, why: None)


class Devices:
    """The programs of a run in numpy: batch b has tokens[b], and the steps in `skipped` have no finite gradient.

    With several sets of skipped steps, the programs of several runs.
    """

    evaluate, plan = None, None

    def __init__(self, config, tokens, *skipped):
        self.config, self.schedule = config, lambda step: 0.1
        self.tokens, self.skipped = tokens, skipped
        self.shape = () if len(skipped) == 1 else (len(skipped),)

    def new_state(self):
        none, zero = np.zeros(self.shape, np.int32), np.zeros(self.shape, np.float32)
        sums = IntervalSums(zero, zero, zero, none, none, zero, none)
        return TrainState(none, none, none, {}, {}, sums)

    def step(self, state, batch):
        finite = np.array([batch not in skipped for skipped in self.skipped]).reshape(self.shape)
        more = np.where(finite, self.tokens[batch], 0)
        with np.errstate(over="ignore"):
            sums = jax.tree.map(lambda total: np.asarray(total + more.astype(total.dtype)), state.sums)
        sums = dataclasses.replace(sums, steps=state.sums.steps + finite.astype(np.int32))
        state = dataclasses.replace(state, step=state.step + 1, updates=state.updates + finite, sums=sums)
        state = dataclasses.replace(state, bad_in_a_row=np.where(finite, 0, state.bad_in_a_row + 1))
        return state, Pulse(np.ones(self.shape, np.float32), state.bad_in_a_row)

    def reset_sums(self, state, kept=()):
        is_kept = np.isin(np.arange(len(self.skipped)), kept).reshape(self.shape)
        return dataclasses.replace(state, sums=jax.tree.map(lambda each: np.where(is_kept, each, 0 * each), state.sums))

    def take(self, state, run):
        return state

    def evaluated_params(self, state):
        return state.params


class Lines:
    def __init__(self):
        self.lines = []

    def write(self, step, values):
        self.lines.append({"step": step, **{name: value for name, value in values.items() if name not in CLOCK}})


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(train_module, "announce", lambda *arguments, **more: None)


def run(tmp_path, batches_of, skipped=((),), cells=None, losses=None, **train):
    """Trains runs until all have ended, one by the loop's ordinary path and several together; their journals.

    `losses`: those of each run at each validation.
    """
    validations, ones = iter(losses or ()), np.ones(len(skipped))

    def validation_sums(evaluate, params):
        return None if losses is None else TokenSums(*map(np.squeeze, (next(validations), ones, ones, ones, ones)))

    options = {"steps": len(batches_of), "max_bad_steps": 100, **train}
    config = experiment(**{f"train__{name}": value for name, value in options.items()})
    most_tokens = ((cells or max(batches_of)) // ROWS + 1) * ROWS
    statistics = types.SimpleNamespace(pairs=10, source_tokens=80, target_tokens=90)
    inputs = types.SimpleNamespace(
        config=config,
        references="",
        batches=types.SimpleNamespace(statistics=lambda: statistics, steps_per_epoch=10, digest=""),
        last_step=len(batches_of),
        mesh=types.SimpleNamespace(devices=np.zeros(1)),
        validation_sums=validation_sums,
        data="",
        placed_batch=np.asarray,
        most_tokens=most_tokens,
        collect_every=max(1, EXACT // most_tokens),
        compilations=types.SimpleNamespace(seconds=0.0),
    )
    journals = [
        Journal(Devices(config, batches_of, each), RunFolder(tmp_path / str(number)), (), inputs)
        for number, each in enumerate(skipped)
    ]
    for journal in journals:
        journal.is_new, journal.metrics = True, Lines()
        journal.checkpoints = types.SimpleNamespace(
            scores={}, wait=lambda: None, save=lambda *saved: None, records=dict
        )
    if len(journals) == 1:
        train_module.take_steps(None, 0, inputs, journals[0].programs, journals[0], SIGNALS)
    else:
        programs = Devices(config, batches_of, *skipped)
        train_module.take_steps(None, 0, inputs, programs, TogetherJournal(journals, programs), SIGNALS)
    return journals


def first_step_with(limit, tokens, skipped):
    counts = itertools.accumulate(0 if step in skipped else count for step, count in enumerate(tokens))
    return next((step for step, count in enumerate(counts, start=1) if count >= limit), len(tokens))


TOKENS = np.random.default_rng(0).integers(1, 100, 60).tolist()


@pytest.mark.parametrize("log_every", [1, 7, 1000])
@pytest.mark.parametrize("skipped", [(), (0, 3, 20, 21, 22)], ids=["none skipped", "some skipped"])
def test_a_run_ends_at_the_update_that_reaches_the_tokens(tmp_path, log_every, skipped):
    for limit in (1, TOKENS[0], TOKENS[0] + 1, 500, 1500, sum(TOKENS), 10**9):
        (journal,) = run(tmp_path, TOKENS, [skipped], tokens=limit, log_every=log_every)
        ended, last = first_step_with(limit, TOKENS, skipped), journal.metrics.lines[-1]
        trained = sum(count for step, count in enumerate(TOKENS[:ended]) if step not in skipped)
        assert (journal.validated, last["step"], last["target_tokens"]) == (ended, ended, trained)
        assert f"finished {trained:,} target tokens" == journal.ending.why or trained < limit or ended == len(TOKENS)


def test_the_devices_are_asked_seldom(tmp_path, monkeypatch):
    """No step waits for the one before it: 100,000 batches that are four fifths full are counted a few times."""
    asked = []
    monkeypatch.setattr(
        Journal, "set_tokens", lambda self, *found, count=Journal.set_tokens: asked.append(1) or count(self, *found)
    )
    (journal,) = run(tmp_path, [80] * 3000, cells=100, tokens=80 * 2000, log_every=10**6)
    assert journal.validated == 2000
    assert len(asked) < 20


def test_of_runs_that_train_together_each_ends_where_it_would_alone(tmp_path):
    """And its lines of metrics are what they are alone, to the bit: one that ends takes nothing from the others."""
    skipped = [(), (2, 5, 9), tuple(range(12))]
    options = {"tokens": 1000, "log_every": 8}
    together = run(tmp_path, TOKENS, skipped, **options)
    ends = [first_step_with(1000, TOKENS, own) for own in skipped]
    assert len(set(ends)) == 3 and [journal.validated for journal in together] == ends
    for journal, own in zip(together, skipped, strict=True):
        (alone,) = run(tmp_path, TOKENS, [own], **options)
        assert str(journal.metrics.lines) == str(alone.metrics.lines)


def test_of_runs_that_train_together_each_ends_when_its_own_loss_is_flat(tmp_path):
    falling = 10 - 0.1 * np.arange(60)
    losses = np.stack([falling, np.maximum(falling, 7.5), np.ones(60)], axis=-1)
    options = {"until_flat": 0.005, "eval_every": 1, "keep_best": 0}
    together = run(tmp_path, TOKENS, [()] * 3, losses=losses.tolist(), **options)
    assert [journal.validated for journal in together] == [60, 32, 20]
    assert [journal.ending.final for journal in together] == [True] * 3
    for journal, own in zip(together, losses.T, strict=True):
        (alone,) = run(tmp_path, TOKENS, losses=own[:, None].tolist(), **options)
        assert (alone.ending, alone.metrics.lines) == (journal.ending, journal.metrics.lines)


def test_too_many_steps_without_a_finite_gradient_end_a_run(tmp_path):
    with pytest.raises(Failed, match=r"not finite in 5 steps in a row, up to step 9 \(learning rate 0.1\).*clip_norm"):
        run(tmp_path, [10] * 30, [(0, 1, *range(4, 30))], max_bad_steps=5)


def test_no_counter_wraps_between_two_lines_however_far_apart(tmp_path):
    """5,000 steps of a million tokens without a line: int32 ends at 2^31, and float32 no longer counts beyond 2^24."""
    tokens = [2**20 - 1] * 5000
    (journal,) = run(tmp_path, tokens, log_every=10**6)
    (line,) = journal.metrics.lines
    assert line["target_tokens"] == sum(tokens) > 2**32
    assert line["accuracy"] == 1.0 and line["gradient_norm"] == 2**20 - 1


def test_sums_of_an_unfinished_interval_are_saved_and_resumed(tmp_path):
    """A run that is resumed between two lines continues to count from there."""
    (journal,) = run(tmp_path, [10] * 4, log_every=1000)
    journal.logged_tokens, journal.unlogged = 40, {"target_tokens": 2**33 + 1, "loss": 0.1}
    saved = []
    journal.checkpoints.save = lambda step, state, notes: saved.append(json.loads(json.dumps(notes)))
    journal.save(None, 4)
    journal.reset()
    journal.resume(4, saved[0])
    assert (journal.unlogged["loss"], journal.tokens) == (0.1, 40 + 2**33 + 1)
