"""What is counted in a run, exactly, and when it ends: at the step that reaches train.tokens, whenever it logs.

The trainer and the recorders are the real ones; the devices are numpy, with int32 and float32 sums as they have.
"""

import contextlib
import dataclasses
import itertools
import json
import time
import types

import jax
import numpy as np
import pytest

from tests.support.small_runs import experiment
from tests.support.training_runs import CLOCK
from transformer_jax.errors import BadInput
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training import recorder as recorder_module
from transformer_jax.training.recorder import Ending, Recorder, improvement_at_the_end
from transformer_jax.training.train import Trainer
from transformer_jax.update.loss import TokenSums
from transformer_jax.update.step import IntervalSums, StepOutcome, TrainState

ROWS = 4
SIGNALS = types.SimpleNamespace(stop_at=lambda step, why: None, asked=None)


class Devices:
    """The compiled steps of runs in numpy: batch b has tokens[b], and steps in `skipped` have no finite gradient."""

    evaluate, waited, clock = None, 0.0, time.perf_counter

    def __init__(self, config, tokens, *skipped):
        self.configs, self.tokens, self.skipped = [config] * len(skipped), tokens, skipped
        self.shape = () if len(skipped) == 1 else (len(skipped),)

    def new_states(self):
        none, zero = np.zeros(self.shape, np.int32), np.zeros(self.shape, np.float32)
        sums = IntervalSums(zero, zero, zero, none, none, zero, none)
        return TrainState(none, none, none, {}, {}, sums)

    def advance(self, state, batch):
        finite = np.array([batch not in skipped for skipped in self.skipped]).reshape(self.shape)
        more = np.where(finite, self.tokens[batch], 0)
        with np.errstate(over="ignore"):
            sums = jax.tree.map(lambda total: np.asarray(total + more.astype(total.dtype)), state.sums)
        sums = dataclasses.replace(sums, updates=state.sums.updates + finite.astype(np.int32))
        state = dataclasses.replace(state, step=state.step + 1, updates=state.updates + finite, sums=sums)
        state = dataclasses.replace(state, bad_in_a_row=np.where(finite, 0, state.bad_in_a_row + 1))
        return state, StepOutcome(np.ones(self.shape, np.float32), state.updates, state.bad_in_a_row)

    def fetch(self, values):
        if not self.shape:
            return [values]
        return [jax.tree.map(lambda leaf, run=run: leaf[run], values) for run in range(len(self.skipped))]

    def reset_sums(self, state):
        return dataclasses.replace(state, sums=jax.tree.map(np.zeros_like, state.sums))

    def split(self, states):
        return [states] * len(self.skipped)


class Lines:
    def __init__(self):
        self.lines, self.synced = [], 0

    def begin(self, step):
        pass

    def write(self, step, values):
        self.lines.append({"step": step, **{name: value for name, value in values.items() if name not in CLOCK}})

    def sync(self):
        self.synced = len(self.lines)


class Saved:
    """Checkpoints that are forgotten."""

    def __init__(self):
        self.scores, self.saved, self.steps = {}, [], []

    def wait(self):
        pass

    def check(self):
        pass

    def save(self, step, state, notes):
        self.saved.append((step, json.loads(json.dumps(notes))))


def run(tmp_path, batches_of, skipped=((),), cells=None, losses=None, during_validation=None, **train):
    """Trains runs until they have ended; their recorders, each with its ending. `losses`: at each validation."""
    validations, ones = iter(losses or ()), np.ones(len(skipped))

    def over_validation_data(evaluate, params, is_stopped):
        if during_validation:
            during_validation(is_stopped)
        return None if losses is None else TokenSums(*map(np.squeeze, (next(validations), ones, ones, ones, ones)))

    options = {"steps": len(batches_of), "max_bad_steps": 100, **train}
    config = experiment(**{f"train__{name}": value for name, value in options.items()})
    most_tokens = ((cells or max(batches_of)) // ROWS + 1) * ROWS
    statistics = types.SimpleNamespace(pairs=10, source_tokens=80, target_tokens=90)
    setup = types.SimpleNamespace(
        configs=[config],
        references="",
        batches=types.SimpleNamespace(statistics=lambda: statistics, steps_per_epoch=10, digest=""),
        last_step=len(batches_of),
        mesh=types.SimpleNamespace(devices=np.zeros(1)),
        over_validation_data=over_validation_data,
        data="",
        placed_batch=np.asarray,
        most_tokens=most_tokens,
        compilations="",
    )
    runs = [
        Recorder(
            config,
            lambda updates: 0.1 * (updates + 1),
            RunFolder(tmp_path / str(number)),
            setup,
            Saved(),
            Lines(),
            True,
        )
        for number in range(len(skipped))
    ]
    for each in runs:
        each.folder.path.mkdir(exist_ok=True)
        each.folder.config.touch()
    devices = Devices(config, batches_of, *skipped)
    trainer = Trainer(setup, devices, devices.advance, runs, None, SIGNALS, devices.new_states())
    for each, found in zip(runs, trainer.train(), strict=True):
        each.ending, each.step = found, trainer.step
    return runs


def first_step_with(limit, tokens, skipped):
    counts = itertools.accumulate(0 if step in skipped else count for step, count in enumerate(tokens))
    return next((step for step, count in enumerate(counts, start=1) if count >= limit), len(tokens))


TOKENS = np.random.default_rng(0).integers(1, 100, 60).tolist()


@pytest.mark.parametrize("log_every", [7, 1000])
@pytest.mark.parametrize("skipped", [(), (0, 3, 20, 21, 22)], ids=["none skipped", "some skipped"])
def test_a_run_ends_at_the_update_that_reaches_the_tokens(tmp_path, log_every, skipped):
    for limit in (1, TOKENS[0], TOKENS[0] + 1, 500, 1500, sum(TOKENS), 10**9):
        (recorder,) = run(tmp_path, TOKENS, [skipped], tokens=limit, log_every=log_every)
        ended, last = first_step_with(limit, TOKENS, skipped), recorder.metrics_file.lines[-1]
        trained = sum(count for step, count in enumerate(TOKENS[:ended]) if step not in skipped)
        assert (recorder.step, last["step"], last["target_tokens"]) == (ended, ended, trained)
        assert f"finished {trained:,} target tokens" == recorder.ending.why or trained < limit or ended == len(TOKENS)


def test_the_devices_are_asked_seldom(tmp_path, monkeypatch):
    """No step waits for the one before it: 3,000 batches that are four fifths full are counted a few times."""
    asked, has_its_tokens = [], Trainer.has_its_tokens

    def counted(self):
        before, found = self._count_at, has_its_tokens(self)
        asked.append(self._count_at != before)
        return found

    monkeypatch.setattr(Trainer, "has_its_tokens", counted)
    (recorder,) = run(tmp_path, [80] * 3000, cells=100, tokens=80 * 2000, log_every=10**6)
    assert recorder.step == 2000
    assert sum(asked) < 20


def test_too_many_steps_without_a_finite_gradient_end_a_run(tmp_path):
    (recorder,) = run(tmp_path, [10] * 30, [(0, 1, *range(4, 30))], max_bad_steps=5)
    assert recorder.ending.diverged
    assert "5 steps in a row, up to step 9 (learning rate 0.3)" in recorder.ending.why  # after two updates
    assert not recorder.checkpoints.saved


def test_a_checkpoint_is_saved_before_the_validation_of_its_step(tmp_path):
    """Whatever happens during a validation, the last steps are not lost."""

    def killed(*arguments):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        saved = []
        patched.setattr(Saved, "save", lambda self, step, *rest: saved.append(step))
        patched.setattr(Recorder, "write_validation", killed)
        run(tmp_path, [10] * 4, losses=[[1.0]])
    assert saved == [4]


def test_metrics_are_on_the_disk_before_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(Saved, "save", lambda self, step, state, notes: self.saved.append((step, lines.synced)))
    lines = Lines()
    monkeypatch.setattr("tests.training.test_counts.Lines", lambda: lines)
    (recorder,) = run(tmp_path, [10] * 8, log_every=2, checkpoint_every=4, eval_every=4)
    assert recorder.checkpoints.saved == [(4, 2), (8, 4)]


@pytest.mark.parametrize(
    ("minutes", "count", "saved"),
    [(None, 1, [20, 40, 60]), (10.0, 1, [10, 20, 30, 40, 50, 60]), (10.0, 2, [12, 20, 32, 40, 52, 60])],
)
def test_checkpoints_by_time_beside_those_by_step(tmp_path, monkeypatch, minutes, count, saved):
    """Each step takes a minute. Several processes agree where they log."""
    several = types.SimpleNamespace(count=count, is_first=True, broadcast=lambda value: value)
    monkeypatch.setattr("transformer_jax.training.train.processes", lambda: several)
    now, advance = [0.0], Trainer.take_step
    monkeypatch.setattr("transformer_jax.training.train.time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def take_step(self, *arguments, **options):
        now[0] += 60
        advance(self, *arguments, **options)

    monkeypatch.setattr(Trainer, "take_step", take_step)
    options = {"checkpoint_every": 20, "checkpoint_minutes": minutes, "keep_best": 0, "log_every": 4}
    (recorder,) = run(tmp_path, [10] * 60, **options)
    assert [step for step, _ in recorder.checkpoints.saved] == saved


@pytest.mark.parametrize("last", [4, 8])
def test_a_signal_during_a_validation_stops_there(tmp_path, monkeypatch, last):
    """Also during that of a complete run, which is then not finished."""
    signals = types.SimpleNamespace(asked=None)
    signals.stop_at = lambda step, why: signals.asked
    monkeypatch.setattr("tests.training.test_counts.SIGNALS", signals)

    def asked(is_stopped):
        signals.asked = "by SIGTERM"
        assert is_stopped()

    (recorder,) = run(tmp_path, [10] * last, during_validation=asked, eval_every=4, checkpoint_every=4)
    assert recorder.ending == Ending("stopped by SIGTERM", final=False)
    assert recorder.step == 4 and recorder.validations == [] and [step for step, _ in recorder.checkpoints.saved] == [4]


def resumed_from(recorder, config, notes, step=4, is_new=True):
    resumed = Recorder(config, recorder.schedule, recorder.folder, recorder.setup, Saved(), Lines(), is_new)
    resumed.resume(step, notes)
    return resumed


def test_a_resumed_run_counts_from_its_last_line(tmp_path, monkeypatch):
    """Sums since then are in the state."""
    (recorder,) = run(tmp_path, [10] * 4, log_every=3, checkpoint_every=4, eval_every=4)
    notes = recorder.checkpoints.saved[-1][1]
    assert resumed_from(recorder, recorder.config, notes).logged_tokens == 40
    # What cannot be resumed leaves its config.json as it was.
    monkeypatch.setattr(recorder_module, "record_config", lambda *_: pytest.fail("written"))
    with pytest.raises(BadInput, match="data has changed"):
        resumed_from(recorder, recorder.config, {**notes, "data": "other"}, is_new=False)


def test_a_resumed_run_takes_its_scores_from_its_lines(tmp_path):
    """The line of the checkpoint's own step included, if the validation was made before the run was killed."""
    losses = [[3.0], [2.0], [2.5], [2.25], *[[2.4]] * 16]
    (recorder,) = run(tmp_path, [10] * 20, losses=losses, eval_every=1, keep_best=0, until_flat=0.01)
    notes = recorder.checkpoints.saved[-1][1]
    lines = [{"step": line["step"], **line} for line in recorder.metrics_file.lines]
    recorder.folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    resumed = resumed_from(recorder, recorder.config, notes, recorder.step)
    assert resumed.scores == recorder.scores and list(resumed.scores.values())[:3] == [-3.0, -2.0, -2.5]
    assert resumed.early_end == recorder.early_end != ""
    assert resumed.validated_step == recorder.step
    other = dataclasses.replace(recorder.config.train, best_metric="valid_accuracy", best_is="highest")
    anew = resumed_from(recorder, dataclasses.replace(recorder.config, train=other), notes, recorder.step)
    assert anew.scores == {}


def test_a_run_whose_lines_are_lost_says_so_and_keeps_its_patience(tmp_path, capsys):
    losses = [[3.0], [2.0], *[[2.5]] * 4]
    (recorder,) = run(tmp_path, [10] * 6, losses=losses, eval_every=1, checkpoint_every=1, keep_best=0)
    recorder.folder.metrics.write_text(json.dumps({"step": 2, "loss": 1.0}) + "\n")
    step, notes = recorder.checkpoints.saved[-1]
    resumed = resumed_from(recorder, recorder.config, notes, step)
    assert f"warning: {recorder.folder.metrics} ends at step 2, before the line of step 6" in capsys.readouterr().err
    assert resumed.scores == {1: -3.0, 2: -2.0, 3: -2.5, 4: -2.5, 5: -2.5}
    train = dataclasses.replace(recorder.config.train, patience=3)
    patient = dataclasses.replace(recorder.config, train=train)
    assert "no better valid_loss in 3 validations" in resumed_from(recorder, patient, notes, step).early_end


@pytest.mark.parametrize(
    ("limits", "ended", "why"),
    [
        ({}, 60, "finished"),
        ({"tokens": 100}, 10, "finished 100 target tokens"),
        ({"patience": 3}, 24, "finished: no better valid_loss in 3 validations (raise train.patience to train on)"),
        ({"until_flat": 0.005}, 26, "finished: the validation loss improved by "),
        ({"tokens": 100, "patience": 3}, 10, "finished 100 target tokens"),
    ],
)
def test_a_run_ends_at_the_first_of_its_limits(tmp_path, limits, ended, why):
    """The loss falls up to the 21st of 60 steps, each with a validation."""
    losses = [[max(10 - 0.1 * step, 7.9)] for step in range(1, 61)]
    (recorder,) = run(tmp_path, [10] * 60, losses=losses, eval_every=1, keep_best=0, **limits)
    assert recorder.step == ended and recorder.ending.why.startswith(why) and recorder.ending.final
    last = [line for line in recorder.metrics_file.lines if "target_tokens" in line][-1]
    assert (last["step"], last["target_tokens"]) == (ended, 10 * ended)  # with train.log_every = 100


def losses(first, last, every, slope=-0.01, luck=None):
    """Losses that fall by 1 % of the last one in every update, with one validation that was lucky."""
    return {step: 1 + slope * (step - last) + (luck or {}).get(step, 0.0) for step in range(first, last + 1, every)}


@pytest.mark.parametrize(
    ("losses", "warmup", "improvement"),
    [
        ({}, 0, None),
        (losses(1, 19, 1), 0, None),  # four validations, of updates 16 to 19
        (losses(1, 20, 1), 16, 0.04 / 1.02),  # updates 16 to 20, over which the mean is 1.02
        (losses(1, 20, 1), 17, None),
        (losses(10, 200, 10), 0, 0.4 / 1.2),
        (losses(1, 100, 1, slope=0.01), 0, -0.2 / 0.9),  # it grows
        (losses(1, 100, 1, 0.0) | {1: 50.0, 79: 9.0}, 0, 0.0),  # what came before says nothing
        (losses(1, 20, 1, luck={18: -0.5}), 0, 0.04 / 0.92),  # a new best in the middle changes only the mean
    ],
)
def test_the_improvement_over_the_last_fifth_of_the_steps(losses, warmup, improvement):
    found = improvement_at_the_end(losses, warmup)
    assert found == (None if improvement is None else pytest.approx(improvement, abs=1e-12))
