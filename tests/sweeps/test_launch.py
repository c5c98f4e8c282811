"""Launching: what is missing runs, what is finished is not repeated, and learning rates are tuned first."""

import dataclasses
import io
import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.runs.test_code import LOSS, begun
from tests.support.sweep_runs import BASE, FOUR, defined, pretend_finished
from transformer_jax import cli
from transformer_jax.errors import EXIT_UNFINISHED, BadInput, ConfigError, Failed
from transformer_jax.extension import UserCodeError
from transformer_jax.files.atomic import write_json
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps import Variant, launch
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.launch import Launcher, LaunchOptions, differences, grouped, merged, prepare_data, run_jobs
from transformer_jax.sweeps.status import Progress

COMPUTATION = {"mesh.fsdp": 2, "mesh.lost_after": 9.0, "train.accumulate": 2, "model.attention_implementation": "plain"}


def chosen(factor, losses):
    """The choice of a learning rate, as it is recorded."""
    return {"factor": factor, "lowest": factor, "losses": losses, "cost": {}, "seeds": [0]}


def launcher(folder, definition, signals=None, **options):
    folder.save(definition)
    return Launcher(folder, definition, definition.chosen(None), LaunchOptions(**options), signals or StopSignals())


# What may change.


def test_how_and_where_a_sweep_is_computed_may_change(tmp_path):
    """Another mesh, other machines: runs that are finished stay finished."""
    before, folder = defined(FOUR), SweepFolder(tmp_path)
    elsewhere = {"train.hours": 2, "train.tensorboard": True, "decode.tokens_per_batch": 99, **COMPUTATION}
    after = defined(FOUR, overrides=[(path, str(value)) for path, value in elsewhere.items()])
    assert differences(before, after) == []
    for run in folder.runs(before):
        pretend_finished(run)
    assert all(run.result() for run in folder.runs(after))
    assert differences(before, defined(FOUR, overrides=[("train.keep_best", "0")])) != []


def test_variants_and_seeds_may_be_added_and_nothing_else_changed(tmp_path):
    folder = SweepFolder(tmp_path)
    folder.save(defined(seeds=[3, 4]))
    assert merged(folder, defined(FOUR, seeds=[5])).seeds == (3, 4, 5)
    assert merged(folder, defined(overrides=[("train.compile_cache", "none")], seeds=[3])).seeds == (3, 4)
    folder.save(defined(FOUR, seeds=[3]))
    changed = defined(Variant("h = 4", {"model.num_heads": 8}), overrides=[("train.steps", "30")], name="other")
    with pytest.raises(BadInput) as error:
        merged(folder, changed)
    found = [line.split(": ")[0].strip() for line in str(error.value).splitlines()[1:]]
    assert found == ["name", "base", "variant 'h = 4'"]
    with pytest.raises(BadInput, match="variant 'h = 4'"):
        merged(folder, defined())


def test_a_question_that_was_declared_stays(tmp_path):
    declared = {"primary": "exact_match", "margin": 2, "contrasts": {"heads": {"h = 4": 1, "base": -1}}}
    folder, again = SweepFolder(tmp_path), Variant("again", same_as="base")
    folder.save(defined(FOUR, again, weights="best", **declared))
    stored = json.loads(folder.definition_file.read_text())
    assert stored["margin"] == {"exact_match": 2} and stored["variants"][2]["same_as"] == "base"
    more = {"more": {"h = 4": -1, "base": 1}, **declared["contrasts"]}
    merged(folder, defined(FOUR, again, weights="best", **{**declared, "contrasts": more}))
    with pytest.raises(BadInput) as error:
        merged(folder, defined(FOUR, Variant("again", {"model.d_ff": 64}), primary="bleu", margin=1))
    found = [line.rpartition(": ")[0].split(":")[0].strip() for line in str(error.value).splitlines()[1:]]
    assert found == ["primary", "margin", "weights", "variant 'again'", "variant 'again'", "contrast 'heads'"]
    declared |= {"weights": "best"}
    merged(folder, defined(FOUR, again, tests=("test", "valid"), **declared))
    with pytest.raises(BadInput, match="main test set: test there, valid here"):
        merged(folder, defined(FOUR, again, tests=("valid", "test"), **declared))


def test_an_analysis_may_be_added_but_not_become_another(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def one(model, config, tests): ...\ndef two(model, config, tests): ...\n")
    folder = SweepFolder(tmp_path / "sweep")
    folder.save(defined(analyses={"mine": f"{file}:one"}))
    assert list(merged(folder, defined(analyses={"more": f"{file}:one"})).sweep.analyses) == ["more"]
    with pytest.raises(BadInput, match="main test set: test there, valid here"):  # whose scores it may have
        merged(folder, defined(tests=("valid", "test"), analyses={"mine": f"{file}:one"}))
    with pytest.raises(BadInput, match="analysis 'mine'"):
        merged(folder, defined(analyses={"mine": f"{file}:two"}))


def test_the_levels_of_a_design_stay_and_may_be_declared_later(tmp_path):
    plain, crossed = (defined(dataclasses.replace(FOUR, levels=levels)) for levels in ({}, {"heads": "4"}))
    assert differences(plain, crossed) == []
    assert differences(crossed, plain) == ["variant 'h = 4': levels: there, but not here"]


def test_numbers_of_numpy_and_paths_are_values_of_a_variant(folder):
    changes = {"model.num_heads": np.int64(4), "train.compile_cache": Path("cache")}
    definition = launch.ready(folder, defined(Variant("h = 4", changes)), LaunchOptions())
    folder.save(definition)
    stored = {"model.num_heads": 4, "train.compile_cache": "cache"}
    assert folder.load().variant("h = 4").changes == stored
    assert differences(folder.load(), defined(Variant("h = 4", stored))) == []


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        (FOUR, {"notes": "one remark"}, "file.py: notes is 'one remark'; must be of type list"),
        (FOUR, {"question": None}, "file.py: question is None"),
        (dataclasses.replace(FOUR, group=2017), {}, "file.py: variants.1.group is 2017; must be of type str"),
        (dataclasses.replace(FOUR, levels={"norm": 1}), {}, "levels.norm is 1"),
        (FOUR, {"notes": [object()]}, "sweep.json cannot hold it"),
    ],
)
def test_a_sweep_that_could_not_be_read_again_is_refused_before_it_is_written(folder, variant, changes, message):
    with pytest.raises(BadInput, match=re.escape(message)):
        launch.ready(folder, defined(variant, **changes), LaunchOptions())


def test_a_sweep_keeps_its_order_of_the_data(tmp_path):
    """One that begins with --together has the same for all seeds."""
    apart, together = (SweepFolder(tmp_path / name) for name in ("apart", "together"))
    apart.save(merged(apart, defined(seeds=2)))
    together.save(merged(together, defined(seeds=2), together=True))
    for folder, orders in ((apart, [0, 1, 2]), (together, [None] * 3)):
        for now in (False, True):
            definition = merged(folder, defined(seeds=3), together=now)
            folder.save(definition)
            assert [run.experiment.data.order_seed for run in folder.runs(folder.load())] == orders


# Running.


def test_groups_are_of_one_shape(folder):
    definition = defined(FOUR, Variant("dropout", {"model.dropout": 0.3}), seeds=2)
    definition = dataclasses.replace(definition, vary=("initialization",))
    runs = folder.runs(definition)
    run_ids = lambda groups: [[run.run_id for run in group] for group in groups]  # noqa: E731
    assert run_ids(grouped(runs, 0)) == [
        ["base/seed-0", "dropout/seed-0", "base/seed-1", "dropout/seed-1"],
        ["h-=-4/seed-0", "h-=-4/seed-1"],
    ]
    assert [len(group) for group in grouped(runs, 3)] == [3, 2, 1]
    assert [len(group) for group in grouped(runs, None)] == [1] * 6
    by_seed = dataclasses.replace(definition, vary=("initialization", "order"))
    assert [len(group) for group in grouped(folder.runs(by_seed), 0)] == [2, 1, 2, 1]


def test_a_launch_that_is_asked_to_stop(folder, monkeypatch):
    with StopSignals() as signals:
        here = launcher(folder, defined(FOUR), signals)
        monkeypatch.setattr(launch, "run_jobs", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert here.run() == EXIT_UNFINISHED


def end(run, loss):
    """Ends a run with this validation loss, or in a state that is no loss."""
    if isinstance(loss, float):
        pretend_finished(run, loss, seconds=4.0, together=4)  # in one program, a second each
    else:
        run.record_attempt(state=loss, error="why")


@pytest.fixture
def tuned(folder, monkeypatch):
    """A launch whose tries of a learning rate end with these losses or in these states, by id; and the runs it made."""

    def tuned(losses, tune=(1.0, 2.0), definition=None):
        made = []

        def run_jobs(pool, jobs, progress, *_):
            for run in (run for job in jobs for run in job):
                made.append(run.run_id)
                end(run, losses.get(run.run_id, losses.get(run.run_id.removesuffix("-again"), 1.0)))

        monkeypatch.setattr(launch, "run_jobs", run_jobs)
        return launcher(folder, definition or defined(FOUR, seeds=2, tune=tune)), made

    return tuned


def test_each_variant_gets_the_rate_that_did_best(folder, tuned, capsys):
    losses = {"base/tuning-1": 2.0, "base/tuning-2": 1.5, "h-=-4/tuning-1": 3.0, "h-=-4/tuning-2-again": "diverged"}
    here, _ = tuned(losses)
    tries = folder.tuning_runs(here.definition)
    assert here.run() == 0
    assert "base: the lowest loss is at the edge, x 2; add a factor" in capsys.readouterr().err
    base, four = (folder.tuned()[name] for name in ("base", "h = 4"))
    cost = {"updates": 12, "train_seconds": 1.0, "training_flops": 1e9}  # of a run
    assert (base["factor"], base["losses"]) == (2.0, {"1": 2.0, "2": 1.5})
    assert (four["factor"], four["losses"]) == (1.0, {"1": 3.0, "2": None})
    assert base["cost"] == {"runs": 4} | {name: 4 * value for name, value in cost.items()}
    assert four["cost"] == {"runs": 4} | {name: 3 * value for name, value in cost.items()}
    runs = folder.runs(here.definition)
    assert [(run.run_id, run.experiment.optimizer.learning_rate) for run in runs] == [
        ("base/rate-2-seed-0", 6e-3),
        ("h-=-4/seed-0", 3e-3),
        ("base/rate-2-seed-1", 6e-3),
        ("h-=-4/seed-1", 3e-3),
    ]
    # No run that is compared has seen what its rate was chosen on.
    seeds = {(run.experiment.seed, run.experiment.data.order_seed) for run in tries}
    assert seeds == {(1_000_000, 1_000_000), (1_000_001, 1_000_001)} and {run.experiment.seed for run in runs} == {0, 1}
    assert all(run.is_finished() for run in runs) and folder.tuning_runs(here.definition) == []


def test_a_lowest_loss_between_others_is_not_warned_of(tuned, capsys):
    assert tuned({"base/tuning-1": 0.5}, definition=defined(tune=(0.5, 1.0, 2.0)))[0].run() == 0
    assert "edge" not in capsys.readouterr().err


def test_tuning_and_factors_may_be_added_to_a_sweep(folder, tuned):
    """Runs at another rate are kept, and count again when their rate is chosen again."""
    assert tuned({}, definition=defined(FOUR, seeds=2))[0].run() == 0
    steps = [
        ((1.0, 2.0), {"base/tuning-2": 0.5}, ["base/rate-2-seed"]),
        ((1.0, 2.0, 4.0), {"base/tuning-4": 0.4, "h-=-4/tuning-4": 0.4}, ["base/rate-4-seed", "h-=-4/rate-4-seed"]),
    ]
    for tune, losses, trained in steps:
        here, made = tuned(losses, definition=merged(folder, defined(FOUR, seeds=2, tune=tune)))
        assert here.run() == 0 and all(run.is_finished() for run in folder.runs(here.definition))
        expected = {f"{name}-{seed}" for name in trained for seed in (0, 1)}
        assert {run_id for run_id in made if "seed" in run_id} == expected
    assert "base/tuning-4-again" in made and "base/tuning-2" not in made
    for factor in (1.0, 2.0):
        folder.record_tuned(here.definition.variant("base"), chosen(factor, {}))
        assert folder.runs(here.definition, ["base"])[0].is_finished()


def test_a_control_trains_at_the_rate_of_the_variant_that_it_repeats(folder, tuned):
    definition = defined(Variant("again", same_as="base"), tune=(1.0, 2.0))
    here, made = tuned({"base/tuning-2": 0.5, "base/tuning-2-again": 0.5}, definition=definition)
    here.variants = ["again"]
    assert here.run() == 0
    tries = [f"base/tuning-{factor}{again}" for again in ("", "-again") for factor in (1, 2)]
    assert made == [*tries, "again/rate-2-seed-0"]
    base, again = (run.experiment.optimizer for run in folder.runs(definition))
    assert base.learning_rate == again.learning_rate


def test_seeds_that_are_added_after_a_report_are_warned_of(folder, capsys):
    folder.save(defined(seeds=2))
    write_json(folder.path / "looks.json", {"looks": [{"seeds": [0, 1], "compared": [0, 1]}]})
    for seeds in (2, 3):
        launch.ready(folder, defined(seeds=seeds), LaunchOptions())
        assert ("warning: seeds 2 are added" in capsys.readouterr().err) == (seeds == 3)


def test_what_changes_the_design_is_told(folder, capsys):
    """--together at the first start, and variants that are added later."""
    together = LaunchOptions(together=0)
    told = "--together: all seeds see the training pairs in one order"
    for options, is_told in ((LaunchOptions(), False), (together, True)):
        launch.ready(folder, defined(FOUR, seeds=2), options)
        assert (told in capsys.readouterr().err) == is_told
    folder.save(launch.ready(folder, defined(FOUR, seeds=2), together))
    capsys.readouterr()
    launch.ready(folder, defined(FOUR, WIDE, seeds=2), LaunchOptions())
    printed = capsys.readouterr().err
    assert told in printed, "the design stays that of the first start"
    assert "note: wide added to 1 variant beside the baseline: intervals and p-values are corrected for more" in printed
    launch.ready(folder, defined(FOUR, seeds=3), LaunchOptions())
    assert "note: " not in capsys.readouterr().err


def test_runs_train_at_the_very_rate_that_was_tried(folder, tuned):
    """Also where six digits, the name of a factor, do not tell it exactly."""
    here, _ = tuned({"base/tuning-0.333333": 0.5}, tune=(1 / 3, 1))
    folder.save(here.definition)
    (tried, *_) = folder.tuning_runs(here.definition)
    here.run()
    base = folder.runs(here.definition, ["base"])[0].experiment
    assert base.optimizer.learning_rate == tried.experiment.optimizer.learning_rate
    assert merged(folder, here.definition).tune == (1 / 3, 1)
    assert merged(folder, defined(FOUR)).tune == (1 / 3, 1)  # a launch without --tune keeps them
    for other in ((0.333333, 1), ()):
        with pytest.raises(BadInput, match="tune: "):
            merged(folder, defined(FOUR, tune=other))


def test_a_variant_whose_rates_all_diverged_has_none(folder, tuned):
    losses = {"h-=-4/tuning-1": "diverged", "h-=-4/tuning-2": "diverged", "base/seed-1": "diverged"}
    for made_at_all in (True, False):  # what diverged is not repeated
        here, made = tuned(losses)
        with pytest.raises(Failed, match="5 runs diverged"):
            here.run()
        assert {"h-=-4/tuning-1" in made, "base/seed-1" in made} == {made_at_all}
    assert not (folder.path / "runs/h-=-4/seed-0").exists() and list(folder.tuned()) == ["base"]


def test_nothing_is_compared_where_no_rate_is_known(tuned):
    here, made = tuned({f"{slug}/tuning-{factor}": "diverged" for slug in ("base", "h-=-4") for factor in (1, 2)})
    with pytest.raises(Failed, match="8 runs diverged"):
        here.run()
    assert len(made) == 8


@pytest.mark.parametrize(
    "losses",
    [
        {"h-=-4/tuning-1-again": "failed"},
        {"h-=-4/tuning-1-again": "diverged", "h-=-4/tuning-2-again": "stopped"},
        {"base/tuning-2-again": "running"},  # killed: nobody holds its lock
    ],
)
def test_a_run_that_was_killed_or_stopped_decides_no_rate(folder, tuned, losses):
    """The rate of its variant is chosen when the same command has made all of its runs."""
    here, _ = tuned(losses)
    if "failed" not in losses.values():
        assert here.run() == EXIT_UNFINISHED
    else:
        with pytest.raises(Failed, match=f"^{len(losses)} runs? failed"):
            here.run()
    (slug,) = {run_id.partition("/")[0] for run_id in losses}
    (other,) = {"base", "h-=-4"} - {slug}
    assert len(folder.tuned()) == 1 and not (folder.path / "runs" / slug / "seed-0").exists()
    assert (folder.path / "runs" / other / "seed-1").exists()
    again, made = tuned({})
    assert again.run() == 0 and set(folder.tuned()) == {"base", "h = 4"}
    assert [run_id for run_id in made if "tuning" in run_id] == [run for run in losses if losses[run] != "diverged"]


WIDE = Variant("wide", {"model.d_ff": 64})


def test_jobs_start_with_the_baseline_then_seed_by_seed_the_largest_first(folder):
    definition = defined(FOUR, WIDE, seeds=[5, 0], tune=(1.0, 2.0))
    folder.save(definition)
    folder.record_tuned(WIDE, chosen(2.0, {"1": 2.5, "2": 2.4}))
    runs = folder.runs(definition)
    order = [run.run_id for (run,) in launch.in_order([[run] for run in reversed(runs)], definition)]
    assert order == [
        *(f"{name}seed-5" for name in ("base/", "wide/rate-2-", "h-=-4/")),
        *(f"{name}seed-0" for name in ("base/", "wide/rate-2-", "h-=-4/")),
    ]
    tuning = launch.in_order([[run] for run in folder.tuning_runs(definition)], definition)
    assert [run.variant for (run,) in tuning] == ["base", "base", "h = 4", "h = 4"] * 2


def test_data_is_prepared_once_and_its_problems_are_reported_at_once(folder):
    definition = defined(FOUR, Variant("tfds", {"data.corpus": "grammer"}), tests=("test", "test_lng"))
    with pytest.raises(BadInput) as error:
        prepare_data(folder, definition, definition.chosen(None))
    base, tfds = error.value.problems
    assert "variant 'base': tests = 'test_lng'" in base and "variant 'tfds'" in tfds
    definition = defined(FOUR)
    prepare_data(folder, definition, ["base", "h = 4"])
    assert len([path for path in (folder.path / "data").iterdir() if path.is_dir()]) == 1


def test_a_refused_sweep_leaves_no_trace(folder):
    with pytest.raises(BadInput, match="grammer"):
        launch.launch(folder, defined(Variant("tfds", {"data.corpus": "grammer"})), LaunchOptions(only=["tfds"]))
    assert not folder.path.exists()


def test_two_launchers_do_not_work_on_one_sweep(folder):
    folder.save(defined())
    with folder.held(), pytest.raises(Failed, match=f"process {os.getpid()}"):
        launch.launch(folder, defined(), LaunchOptions())


# Custom code.


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a custom loss; the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LOSS)
    return tmp_path


@pytest.fixture
def custom(mine):
    """A sweep of two variants with a custom loss; the first run is finished."""
    base = {**BASE, "train": {**BASE["train"], "loss": "mine.py:loss"}}
    definition = defined(FOUR, base=base)
    definition = dataclasses.replace(definition, code=definition.code_of())
    folder = SweepFolder(mine / "sweep")
    finished, _ = folder.runs(definition)
    pretend_finished(finished)
    result = json.loads((finished.path / "result.json").read_text())
    write_json(finished.path / "result.json", {**result, "code": definition.code_of(finished)})
    return folder, definition


def test_a_sweep_refuses_runs_of_other_code(mine, custom, capsys):
    folder, definition = custom
    launch.compare_code(folder, definition)
    folder.save(definition)
    assert folder.load().code == definition.code != {}
    (mine / "mine.py").write_text(LOSS + "loss.is_edited = True\n")
    edited = dataclasses.replace(definition, code=definition.code_of())
    with pytest.raises(ConfigError, match=r"mine\.py:loss .*base, seed 0") as error:
        launch.compare_code(folder, edited)
    assert not any("\n" in problem for problem in error.value.problems), "a line each"
    launch.compare_code(folder, dataclasses.replace(edited, accept_changed_code=True))
    assert "the report mentions it" in capsys.readouterr().err
    (mine / "mine.py").write_text(LOSS)
    unfinished = folder.runs(definition)[1]
    (unfinished.path / "code").mkdir(parents=True)
    begun(unfinished.folder, unfinished.experiment)
    (folder.runs(definition)[0].path / "result.json").unlink()
    launch.compare_code(folder, definition)
    (mine / "mine.py").write_text(LOSS + "loss.is_edited = True\n")
    with pytest.raises(ConfigError, match=r"mine\.py:loss has changed since h = 4, seed 0"):
        launch.compare_code(folder, edited)
    with pytest.raises(Failed, match=r"mine\.py was edited after the sweep was launched"):
        definition.refuse_edited(folder.runs(definition)[1])


def test_an_edited_metric_makes_the_runs_that_it_measured_unfinished(mine, folder, capsys):
    (mine / "mine.py").write_text("def exact(hypotheses, references): return 0\n")
    definition = defined(base={**BASE, "decode": {**BASE["decode"], "metrics": ("mine.py:exact",)}})
    definition = dataclasses.replace(definition, code=definition.code_of())
    folder.save(definition)
    (run,) = folder.runs(definition)
    pretend_finished(run)
    result = json.loads((run.path / "result.json").read_text())
    write_json(run.path / "result.json", {**result, "code": definition.code})
    (mine / "mine.py").write_text("def exact(hypotheses, references): return 1\n")
    assert folder.runs(definition)[0].is_finished()
    edited = launch.ready(folder, definition, LaunchOptions())
    assert "mine.py:exact has changed since it measured base, seed 0" in capsys.readouterr().err
    assert not folder.runs(edited)[0].is_finished()
    accepted = launch.ready(folder, definition, LaunchOptions(accept_changed_code=True))
    assert "mine.py:exact has changed since base, seed 0; the report mentions it" in capsys.readouterr().err
    assert folder.runs(accepted)[0].is_finished()
    (mine / "mine.py").write_text("def exact(hypotheses, references): return 1 / 0\n")
    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        launch.ready(folder, definition, LaunchOptions())


# Running jobs: retries, --fail-fast and signals, whatever the processes are.


class FakePool:
    """Runs go as `script` says, one state an attempt; "long" runs until it is stopped."""

    seconds_between_polls = 0.0

    def __init__(self, script, slots):
        self.script, self.slots = script, slots
        self.running, self.started, self.stopped = [], [], False

    def start(self, jobs):
        free = self.slots - len(self.running)
        for job in jobs[:free]:
            self.started.append([run.run_id for run in job])
            self.running += [(run, self.script.get(run.run_id, ["finished"]).pop(0)) for run in job]
        return jobs[free:]

    def is_busy(self):
        return bool(self.running)

    def ended(self):
        over = [(run, state) for run, state in self.running if state != "long" or self.stopped]
        self.running = [item for item in self.running if item not in over]
        for run, state in over:
            end(run, 1.0 if state == "finished" else "stopped" if state == "long" else state)
            yield run

    def stop(self):
        self.stopped = True


@pytest.fixture
def states(folder):
    """Runs the runs of a definition one by one; returns (the state of each, the pool)."""

    def states(definition, script, slots=1, signals=None, **options):
        runs, pool = folder.runs(definition), FakePool(script, slots)
        progress = Progress(runs, io.StringIO())
        run_jobs(pool, [[run] for run in runs], progress, signals or StopSignals(), **options)
        return {status.run.run_id: status.state for status in progress.statuses()}, pool

    return states


def test_retries_and_a_failure_that_affects_no_other_run(states):
    script = {"base/seed-0": ["failed", "failed", "finished"], "h-=-4/seed-0": ["failed"] * 4}
    found, pool = states(defined(FOUR, seeds=2), script, retries=2)
    assert found.pop("h-=-4/seed-0") == "failed" and set(found.values()) == {"finished"}
    assert pool.started.count(["h-=-4/seed-0"]) == 3


def test_fail_fast_stops_the_others(states):
    script = {"base/seed-0": ["long"], "h-=-4/seed-0": ["failed"]}
    found, _ = states(defined(FOUR, seeds=2), script, slots=2, fail_fast=True)
    assert found == {
        "base/seed-0": "stopped",
        "h-=-4/seed-0": "failed",
        "base/seed-1": "waiting",
        "h-=-4/seed-1": "waiting",
    }


def test_a_run_that_stopped_by_itself_is_resumed_as_long_as_it_comes_further(folder):
    """As after train.hours; one whose process was asked to stop is not."""
    base, four = folder.runs(defined(FOUR))
    steps = iter([5, 9, 9, 9])

    class Stopping(FakePool):
        def ended(self):
            for run in super().ended():
                run.folder.metrics.write_text(json.dumps({"step": next(steps)}) + "\n")
                run.record_attempt(asked=run is four)
                yield run

    pool = Stopping({"base/seed-0": ["stopped"] * 3, "h-=-4/seed-0": ["stopped"]}, slots=1)
    run_jobs(pool, [[base], [four]], Progress([base, four], io.StringIO()), StopSignals())
    assert pool.started == [["base/seed-0"], ["h-=-4/seed-0"], ["base/seed-0"], ["base/seed-0"]]


def test_a_signal_stops_all(states):
    signals = StopSignals()
    signals.asked = "by SIGINT"
    found, pool = states(defined(FOUR), {}, signals=signals)
    assert set(found.values()) == {"waiting"} and pool.stopped and pool.started == []


# The whole command.


def test_the_same_command_runs_what_is_missing_and_repeats_nothing(worked, tmp_path, monkeypatch, capfd):
    """Two worker processes at a time; one finds the folder of its run damaged, in the other nothing is wrong now."""
    finished, definition, _ = worked
    shutil.copytree(finished.path, tmp_path / "sweep", symlinks=True)
    folder = SweepFolder(tmp_path / "sweep")
    (folder.path / "runs/h-=-4/seed-0/config.json").rmdir()
    before = (folder.path / "runs/base/seed-0/result.json").stat().st_mtime_ns
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS_OF_COMMANDS"])
    assert cli.main(["sweep", f"--workdir={folder.path}", "--jobs=2"]) == 1
    printed = capfd.readouterr()
    # The damaged run may have failed before its start was reported; that it was started, `tries` shows below.
    assert "h = 4, seed 0  running" in printed.out and "base, seed 0  running" not in printed.out
    assert "1 run failed" in printed.err and "dropout, seed 0" in printed.err
    assert "config.json: is" in printed.out
    assert (folder.path / "runs/base/seed-0/result.json").stat().st_mtime_ns == before
    tries = [json.loads(p.read_text())["tries"] for p in sorted(folder.path.glob("runs/*/seed-0/attempt.json"))]
    assert tries[1:] == [2, 2] and folder.by_id(definition)["h-=-4/seed-0"].is_finished()
