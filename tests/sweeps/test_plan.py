"""--dry-run: what is counted, and how long it will take. The whole table is tested with the command."""

import pytest

from tests.support.devices import one_device
from tests.support.small_runs import experiment
from tests.support.sweep_runs import BASE, FOUR, defined, pretend_finished
from transformer_jax.config import TrainConfig
from transformer_jax.data.prepare import prepare
from transformer_jax.runs.metrics import count_text
from transformer_jax.sweeps import Variant, plan, resolved
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.local import Slot
from transformer_jax.sweeps.plan import Timed


@pytest.fixture
def text(folder, monkeypatch):
    """What is printed, without timing anything."""
    monkeypatch.setattr(plan, "time_update", lambda *_: Timed(compiling=40.0, update=0.5))
    return lambda definition: plan.plan(folder, definition, definition.chosen(None))


def test_runs_that_tune_are_counted(folder, text):
    definition = defined(FOUR, seeds=2, tune=(1.0, 2.0))
    printed = text(definition)
    assert "2 variants, seeds 0, 1 and 2 learning rates: 12 runs to train (8 to choose learning rates, " in printed
    assert "4 to compare), 0 finished" in printed
    folder.save(definition)
    for variant, factor in zip(definition.sweep.variants, (1.0, 2.0), strict=True):
        losses = {"1": 2.5, "2": 2.5}
        folder.record_tuned(variant, {"factor": factor, "lowest": factor, "losses": losses, "cost": {}, "seeds": [0]})
    assert ": 4 runs to train, 0 finished" in text(definition)


def test_settings_that_are_not_proposed_yet_are_counted_and_take_time(folder, text, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("def propose(tried): return {}")
    monkeypatch.setattr(plan, "slots", lambda *_: [Slot()] * 8)
    monkeypatch.setattr(plan, "total_time", lambda seconds, at_a_time, _: f"{len(seconds)}: {min(seconds[1:]) > 0}")
    search = {"model.dropout": ("uniform", 0, 0.5)}
    drawn = defined(FOUR, seeds=3, search=search, trials=4)
    proposing = defined(FOUR, seeds=3, search=search, trials=4, propose=f"{tmp_path / 'own.py'}:propose")
    counts = "4 settings: 22 runs to train (16 to choose settings, 6 to compare), 0 finished\n23: True"
    assert counts in text(drawn) and counts in text(proposing)
    folder.save(proposing)
    for variant in ("base", "h = 4"):
        folder.record_proposed(variant, {"values": {"model.dropout": 0.25}, "code": ""})
    for run in folder.tuning_runs(proposing):
        pretend_finished(run)
    assert "14 runs to train (8 to choose settings, 6 to compare), 8 finished\n15: True" in text(proposing)
    monkeypatch.undo()
    assert "with 4 processes at a time" in plan.plan(folder, proposing, ["base", "h = 4"], jobs=8)
    assert "with 8 processes at a time" in plan.plan(folder, drawn, ["base", "h = 4"], jobs=8)


def test_a_control_alone_is_counted_with_the_settings_of_what_it_repeats(folder, text):
    definition = defined(Variant("again", same_as="base"), tune=(1, 2))
    assert "4 to choose learning rates, 1 to compare" in plan.plan(folder, definition, ["again"])


@pytest.mark.parametrize(("quick", "count"), [(False, 2), (True, 0)])
def test_one_program_is_timed_for_all_variants_that_differ_in_numbers(folder, monkeypatch, quick, count):
    timed = []
    monkeypatch.setattr(plan, "time_update", lambda config, _: timed.append(config) or Timed(40.0, 0.5))
    rates = [Variant(f"rate {rate}", {"optimizer.learning_rate": rate}) for rate in (0.001, 0.002, 0.004)]
    definition = defined(FOUR, *rates)
    printed = plan.plan(folder, definition, definition.chosen(None), quick=quick)
    assert len(timed) == count, "one with two heads, one with four"
    assert ("by one update of each of 2 programs, timed now" in printed) == (not quick)
    assert ("nothing was timed (--quick)" in printed) == quick


def test_the_peak_rate_of_each_variant_and_the_processes(text, monkeypatch):
    monkeypatch.setattr(plan, "slots", lambda *_: [Slot()] * 4)  # a machine with four GPUs
    changes = {"optimizer.learning_rate": None}
    later = Variant("by data", {**changes, "optimizer.warmup_share": 0.1})
    printed = text(defined(Variant("equation 3", changes), later))
    base, other, unknown = printed.splitlines()[3:6]
    assert " 0.003 " in base and " 0.125 " in other, "(16 x 4) ** -0.5"
    assert " unknown " in unknown
    assert "with 4 processes at a time" in printed


@pytest.fixture
def runs(folder):
    return folder.runs(defined(FOUR, seeds=2, overrides=[("train.compile_cache", "cache")]))


def test_an_update_stands_for_the_whole_run(runs):
    timed = Timed(compiling=10.0, update=6.0)
    first, later = (plan.seconds_left(runs[0], 12, timed, is_first=is_first) for is_first in (True, False))
    assert 12 * 6.0 < later < first, "seeds share compiled programs"


def test_an_update_is_compiled_and_timed(runs, tmp_path):
    config = runs[0].experiment
    with one_device():
        timed = plan.time_update(config, prepare(config, tmp_path / "data").directory)
    assert timed.update > 0 and timed.compiling > 0


def test_epochs_count_batches_of_the_data(tmp_path):
    task = {"corpus": "copy", "tokenizer": "words", "tokens_per_batch": 256, "num_shapes": 1}
    small = {f"data__{name}": value for name, value in task.items()} | {"data__task__train_size": 300}
    half = experiment(**small, train__epochs=0.5, train__steps=100_000)
    assert plan.planned_steps(half, tmp_path / "data") is None
    prepared = prepare(half, tmp_path / "data")
    whole = plan.planned_steps(experiment(**small, train__epochs=1.0, train__steps=10**6), prepared.directory)
    assert whole is not None and plan.planned_steps(half, prepared.directory) == -(-whole // 2)
    assert [TrainConfig(epochs=epochs).last_step(100) for epochs in (0.07, 0.071, 1e-9)] == [7, 8, 1]
    assert plan.planned_steps(experiment(**small, train__epochs=9.0, train__steps=7), prepared.directory) == 7
    assert plan.planned_steps(experiment(**small, train__steps=7), tmp_path / "nowhere") == 7


def test_a_sweep_counts_epochs_once_the_data_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.sweeps.plan.time_update", lambda *_: Timed(1.0, 1.0))
    base = {**BASE, "train": {**BASE["train"], "steps": 100_000, "epochs": 0.5}}
    definition, folder = defined(base=base), SweepFolder(tmp_path)
    (config,) = definition.experiments.values()
    place = folder.data(config)
    assert "is not prepared" in plan.plan(folder, definition, ["base"])
    prepare(config, place)
    told = plan.plan(folder, definition, ["base"])
    counted = resolved.training_flops(config, plan.planned_steps(config, folder.data(config)))
    assert (
        "is not prepared" not in told
        and count_text(counted) in told
        and counted < resolved.training_flops(config) / 1000
    )
