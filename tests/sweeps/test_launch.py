"""Launching: what fails harms no other, what is there is not made again, and where everything stands is told."""

import dataclasses
import io
import json
import os
import shutil
import signal
import sys

import pytest

from tests.support import sweep_runs
from tests.support.sweep_runs import FOUR, experiment_file, pretend_finished
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import publish_json
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps import Variant, launch, local, spec, status
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.launch import Launcher, Orders, adopt_tries, grouped, prepare_data
from transformer_jax.sweeps.process import Outcome, WorkerProcess


def defined(*variants, **changes):
    return spec.define(sweep_runs.sweep(*variants, **changes), "file.py", None)


@pytest.fixture
def folder(tmp_path):
    return SweepFolder(tmp_path / "sweep")


class FakeProcess:
    """In place of a worker: each run goes as `script` says, one word a try."""

    script: dict[str, list[str]] = {}  # noqa: RUF012
    started: list[list[str]] = []  # noqa: RUF012

    def __init__(self, sweep, runs, environment):
        self.runs, self.asked = runs, False
        for run in runs:
            if "unstartable" in self.script.get(run.address, []):
                raise NotADirectoryError(20, "Not a directory", str(run.path))
        self.started.append([run.address for run in runs])
        self.words = {run.address: self.script.get(run.address, ["finished"]).pop(0) for run in runs}

    def has_ended(self):
        return self.asked or "long" not in self.words.values()

    def ask_to_stop(self):
        self.asked = True

    def outcomes(self):
        for run in self.runs:
            if self.words[run.address] == "finished":
                pretend_finished(run)
        return {address: Outcome("stopped" if word == "long" else word, "why") for address, word in self.words.items()}


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(local, "WorkerProcess", FakeProcess)
    monkeypatch.setattr(local, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(FakeProcess, "script", {})
    monkeypatch.setattr(FakeProcess, "started", [])
    return FakeProcess


def work_off(folder, jobs, slots=1, **options):
    display = status.Display([run for job in jobs for run in job], io.StringIO())
    here = local.LocalJobs(folder, [local.Slot()] * slots, display, StopSignals(), **options)
    here.work_off(jobs)
    return {address: standing.state for address, standing in display.standings().items()}


def jobs_of(folder, *variants, **changes):
    return [[run] for run in folder.runs(defined(*variants, **changes))]


def test_a_failing_run_takes_no_other_down(folder, fake):
    fake.script = {"base/seed-0": ["failed"]}
    assert work_off(folder, jobs_of(folder, FOUR)) == {"base/seed-0": "failed", "h-=-4/seed-0": "finished"}


def test_retries(folder, fake):
    fake.script = {"base/seed-0": ["failed", "failed", "finished"], "h-=-4/seed-0": ["failed"] * 4}
    states = work_off(folder, jobs_of(folder, FOUR), retries=2)
    assert states == {"base/seed-0": "finished", "h-=-4/seed-0": "failed"}
    assert fake.started.count(["h-=-4/seed-0"]) == 3


def test_fail_fast_stops_the_others(folder, fake):
    fake.script = {"base/seed-0": ["long"], "h-=-4/seed-0": ["failed"]}
    states = work_off(folder, jobs_of(folder, FOUR, seeds=2), slots=2, fail_fast=True)
    assert states == {
        "base/seed-0": "stopped",
        "h-=-4/seed-0": "failed",
        "base/seed-1": "waiting",
        "h-=-4/seed-1": "waiting",
    }


def test_a_job_that_cannot_start_is_taken_apart(folder, fake):
    fake.script = {"h-=-4/seed-0": ["unstartable"]}
    together = [[run for (run,) in jobs_of(folder, FOUR)]]
    assert work_off(folder, together) == {"base/seed-0": "finished", "h-=-4/seed-0": "failed"}


def test_a_process_that_died_without_a_word_is_noted(folder, fake):
    ((run,),) = jobs_of(folder)
    run.path.mkdir(parents=True)
    run.note_attempt(state="running", tries=1)
    fake.script = {"base/seed-0": ["failed"]}
    work_off(folder, [[run]])
    assert run.attempt()["state"] == "failed" and run.attempt()["error"] == "why" and run.attempt()["tries"] == 1


def test_the_machine_is_shared_out(monkeypatch):
    monkeypatch.setattr(local, "gpus", list)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5})
    assert [slot.cores for slot in local.slots(None)] == [(0, 1, 2, 3, 4, 5)]
    assert [slot.cores for slot in local.slots(2)] == [(0, 1, 2), (3, 4, 5)]
    assert [slot.cores for slot in local.slots(7)] == [(0,), (1,), (2,), (3,), (4,), (5,), (0,)]
    monkeypatch.setattr(local, "gpus", lambda: ["0", "1", "2", "3"])
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert [slot.environment for slot in local.slots(None)] == [{"CUDA_VISIBLE_DEVICES": str(n)} for n in range(4)]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in local.slots(2)] == ["0,1", "2,3"]
    shared = local.slots(8)[5].environment
    assert shared == {"CUDA_VISIBLE_DEVICES": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450"}


def test_groups_are_of_one_shape(folder):
    definition = defined(FOUR, Variant("dropout", {"model.dropout": 0.3}), seeds=2)
    definition = dataclasses.replace(definition, data_order="same for all seeds")
    runs = folder.runs(definition)
    addresses = lambda groups: [[run.address for run in group] for group in groups]  # noqa: E731
    assert addresses(grouped(runs, 0)) == [
        ["base/seed-0", "dropout/seed-0", "base/seed-1", "dropout/seed-1"],
        ["h-=-4/seed-0", "h-=-4/seed-1"],
    ]
    assert [len(group) for group in grouped(runs, 3)] == [3, 2, 1]
    assert [len(group) for group in grouped(runs, None)] == [1] * 6
    by_seed = dataclasses.replace(definition, data_order="by seed")
    assert addresses(grouped(folder.runs(by_seed), 0)) == [
        ["base/seed-0", "dropout/seed-0"],
        ["h-=-4/seed-0"],
        ["base/seed-1", "dropout/seed-1"],
        ["h-=-4/seed-1"],
    ]


@pytest.mark.parametrize(("begun", "told"), [(None, "in the same order"), (Orders(), "only runs of the same seed")])
def test_what_trains_together_is_said_in_a_line(folder, monkeypatch, capsys, begun, told):
    monkeypatch.setattr(Launcher, "run", lambda self: 0)
    monkeypatch.setattr(launch, "prepare_data", lambda *_: None)
    if begun is not None:
        launch.launch(folder, defined(seeds=2), begun)
        assert "--together" not in capsys.readouterr().out
    launch.launch(folder, defined(seeds=2), Orders(together=0))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("--together: ") and told in line
    assert folder.load().data_order == ("same for all seeds" if begun is None else "by seed")


def test_where_a_run_stands(folder):
    ((run,),) = jobs_of(folder)
    assert status.standing_of(run).state == "waiting"
    with run.held():
        run.note_attempt(state="running", host=os.uname().nodename)
        lines = [{"step": 5, "loss": 2.5, "seconds": 10.0}, {"step": 6, "valid_loss": 2.4, "bleu": 7.0}]
        run.folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        now = status.standing_of(run)
        assert (now.state, now.step, now.steps, now.loss, now.bleu, now.left) == ("running", 6, 12, 2.5, 7.0, 14.0)
        with open(run.folder.metrics, "a") as file:
            file.write(json.dumps({"step": 12, "loss": 2.0, "seconds": 1.0}) + "\n")
        assert status.standing_of(run).state == "measuring"
    assert status.standing_of(run).state == "interrupted"  # nobody holds it any more
    run.note_attempt(state="failed", error="no\nroom")
    assert status.standing_of(run).error == "no\nroom"
    assert "base, seed 0 failed:\n    no\n    room\n" in status.failure(run, status.standing_of(run))
    pretend_finished(run, loss=1.5)
    now = status.standing_of(run)
    assert (now.state, now.loss, now.bleu) == ("finished", 1.5, 50.0)


def test_without_a_terminal_a_line_at_each_change(folder):
    ((run,), (other,)) = jobs_of(folder, FOUR)
    display = status.Display([run, other], io.StringIO())
    display.refresh(now=True)
    pretend_finished(run)
    display.refresh(now=True)
    display.refresh(now=True)
    (line,) = display.stream.getvalue().splitlines()
    assert line.endswith("base, seed 0: finished: valid loss 1.000, BLEU 50.00")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_the_table_is_drawn_over(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "6")
    runs = [run for (run,) in jobs_of(folder, FOUR, seeds=3)]
    display = status.Display(runs, Terminal())
    display.refresh(now=True)
    pretend_finished(runs[0])
    display.refresh(now=True)
    first, second = display.stream.getvalue().split("\x1b[5F\x1b[J")
    assert len(first.splitlines()) == len(second.splitlines()) == 5  # 3 of the 6 runs fit, between header and summary
    assert second.splitlines()[-1].startswith("1 finished, 5 waiting; ")


def launcher(folder, definition, **orders):
    folder.settle(definition)
    return Launcher(folder, definition, definition.chosen(None), Orders(**orders), StopSignals())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_launch_that_is_asked_to_stop(folder, monkeypatch, capsys, number, status):
    definition = defined(FOUR)
    with StopSignals() as signals:
        folder.settle(definition)
        here = Launcher(folder, definition, definition.chosen(None), Orders(), signals)
        monkeypatch.setattr(here, "_work_off", lambda runs: os.kill(os.getpid(), number))
        assert here.run() == status
    assert capsys.readouterr().err.endswith(f"stopped by {number.name}; the same command goes on from here\n")


def test_a_process_asked_to_stop_before_it_could_hear_is_stopped(folder):
    ((run,),) = jobs_of(folder)
    folder.settle(defined())
    process = WorkerProcess(folder, [run])
    process.process.send_signal(signal.SIGTERM)  # long before its imports are done
    assert process.outcomes() == {"base/seed-0": Outcome("stopped")}


def test_a_process_that_was_killed_is_told_with_its_last_lines(folder):
    ((run,),) = jobs_of(folder)
    folder.settle(defined())
    process = WorkerProcess(folder, [run])
    run.log.write_text("so far so good\n")
    process.process.kill()
    (outcome,) = process.outcomes().values()
    assert outcome == Outcome("failed", "the process was killed by SIGKILL; its last lines:\nso far so good")


def tuned(folder, losses, monkeypatch):
    """A launch whose tries of a learning rate end with these losses, by address; None is a failure."""
    definition = dataclasses.replace(defined(FOUR, seeds=2), tune=(1.0, 2.0))
    here = launcher(folder, definition)

    def pretended(runs):
        for run in runs:
            if (loss := losses.get(run.address, 1.0)) is not None:
                pretend_finished(run, loss)
            else:
                here.failed[run.name] = status.Standing("failed")

    monkeypatch.setattr(here, "_work_off", pretended)
    return here


def test_each_variant_gets_the_rate_that_did_best(folder, monkeypatch):
    losses = {"base/tune-1": 2.0, "base/tune-2": 1.5, "h-=-4/tune-1": 3.0, "h-=-4/tune-2": None}
    here = tuned(folder, losses, monkeypatch)
    assert here.run() == 0
    assert folder.tuned() == {
        "base": {"factor": 2.0, "losses": {"1": 2.0, "2": 1.5}},
        "h = 4": {"factor": 1.0, "losses": {"1": 3.0, "2": None}},
    }
    rates = [run.experiment.optimizer.learning_rate for run in folder.runs(here.definition)]
    assert rates == [6e-3, 3e-3, 6e-3, 3e-3]
    first = folder.runs(here.definition)[0]
    # The try that was chosen has become the first seed's run.
    assert json.loads((first.path / "result.json").read_text())["valid"]["loss"] == 1.0
    assert not (folder.path / "runs/base/tune-2").exists() and (folder.path / "runs/base/tune-1").exists()
    assert folder.tries(here.definition) == []


def test_a_chosen_try_is_adopted_after_a_kill_between(folder, monkeypatch):
    here = tuned(folder, {}, monkeypatch)
    here._tune()
    adopt_tries(folder, here.definition)
    adopt_tries(folder, here.definition)
    assert sorted(path.name for path in (folder.path / "runs/base").iterdir()) == ["seed-0", "tune-2"]


def test_a_variant_without_any_rate_has_failed(folder, monkeypatch):
    here = tuned(folder, {"h-=-4/tune-1": None, "h-=-4/tune-2": None}, monkeypatch)
    with pytest.raises(Failed, match=r"2 of the runs: h = 4, rate x 1; h = 4, rate x 2\. The same command"):
        here.run()
    assert not (folder.path / "runs/h-=-4/seed-0").exists() and list(folder.tuned()) == ["base"]


def test_data_is_prepared_once_and_refused_at_once(folder):
    definition = defined(FOUR, Variant("tfds", {"data.corpus": "grammer"}), tests=("test", "test_lng"))
    with pytest.raises(BadInput) as error:
        prepare_data(folder, definition, definition.chosen(None))
    told = str(error.value)
    assert "variant 'base': tests = 'test_lng': its data has no such sentences" in told and "variant 'tfds'" in told
    prepare_data(folder, defined(FOUR), ["base", "h = 4"])
    assert len([path for path in (folder.path / "data").iterdir() if path.is_dir()]) == 1


def test_a_refused_sweep_leaves_no_trace(folder):
    with pytest.raises(BadInput, match="TFDS has no such data set"):
        launch.launch(folder, defined(Variant("tfds", {"data.corpus": "grammer"})), Orders(only="tfds"))
    assert not folder.path.exists()


def test_two_launchers_do_not_work_on_one_sweep(folder):
    folder.settle(defined())
    with folder.held(), pytest.raises(BadInput, match=rf"process {os.getpid()} is at work on this sweep"):
        launch.launch(folder, defined(), Orders())


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Two processes: one trains a good run together with one whose folder is corrupt, the other finds its disk full."""
    place = tmp_path_factory.mktemp("launch")
    path = experiment_file(
        place, "Variant('dropout', {'model.dropout': 0.3})", "Variant('h = 4', {'model.num_heads': 4})"
    )
    corrupt, full = place / "sweep/runs/dropout/seed-0", place / "sweep/runs/h-=-4/seed-0"
    (corrupt / "checkpoints/6").mkdir(parents=True)
    (corrupt / "config.json").write_text("{ damaged")
    full.mkdir(parents=True)
    (full / "config.json.unfinished").symlink_to("/dev/full")
    definition = spec.load(str(path), overrides=[("train.compile_cache", str(place / "cache"))])
    SweepFolder(place / "sweep").settle(definition)
    return place, sweep_runs.run(place, "--workdir=sweep", "--together", "--jobs=2", status=1)


@pytest.mark.slow
def test_failures_are_told_and_harm_no_other(done):
    place, ended = done
    assert "config.json:1: is no JSON" in ended.stdout and "the disk is full" in ended.stdout
    assert "failed: 2 of the runs: dropout, seed 0; h = 4, seed 0. The same command tries them again" in ended.stderr
    result = json.loads((place / "sweep/runs/base/seed-0/result.json").read_text())
    assert result["variant"] == "base" and result["seed"] == 0 and result["steps"] == 12
    assert result["parameters"] == 12 * 16 + (1024 + 1072 + 64) + (2048 + 1072 + 96)
    record = json.loads((place / "sweep/runs/base/seed-0" / result["tests"]["test"]["file"]).read_text())
    assert record["n"] == 10 and record["measures"]["bleu"]["score"] == result["tests"]["test"]["bleu"]
    assert not (place / "sweep/runs/dropout/seed-0/result.json").exists()
    assert os.readlink(place / "sweep/runs/base/seed-0/data").startswith("../../../data/")


@pytest.mark.slow
def test_the_same_command_makes_what_is_missing_and_nothing_else(done):
    place, _ = done
    made = (place / "sweep/runs/base/seed-0/result.json").stat().st_mtime_ns
    shutil.rmtree(place / "sweep/runs/dropout/seed-0/checkpoints")
    (place / "sweep/runs/h-=-4/seed-0/config.json.unfinished").unlink(missing_ok=True)
    ended = sweep_runs.run(place, "--workdir=sweep", "--jobs=2")
    assert ended.stdout.count(": running") == 2 and "base, seed 0: running" not in ended.stdout
    assert (place / "sweep/runs/base/seed-0/result.json").stat().st_mtime_ns == made
    tries = [json.loads(path.read_text())["tries"] for path in sorted(place.glob("sweep/runs/*/seed-0/attempt.json"))]
    assert tries == [1, 2, 2]


@pytest.mark.parametrize("changed", [None, {"steps": [24]}, {"measures": {"bleu": {"score": 7.0}}}, "missing", "odd"])
def test_a_run_is_finished_as_long_as_its_records_are_those_it_was_measured_by(folder, changed):
    ((run,),) = jobs_of(folder, tests=("test",))
    pretend_finished(run)
    record = run.path / "translations" / "test.latest.json"
    if changed == "missing":
        record.unlink()
    elif changed is not None:
        publish_json(record, {} if changed == "odd" else {**json.loads(record.read_text()), **changed})
    assert run.result() is not None and run.is_finished() == (changed is None)


def shadowed(directory):
    """A directory in which `python -m` would find other modules than what is installed."""
    (directory / "random.py").write_text("raise RuntimeError('the random.py of the current directory')\n")
    copy = directory / "transformer_jax"
    (copy / "sweeps").mkdir(parents=True)
    for file in (copy / "__init__.py", copy / "sweeps" / "__init__.py", copy / "sweeps" / "worker.py"):
        file.write_text("raise RuntimeError('the copy in the current directory')\n")


def test_a_worker_runs_what_is_installed_and_nothing_of_the_current_directory(folder, tmp_path, monkeypatch):
    shadowed(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder.settle(defined())
    stranger = dataclasses.replace(jobs_of(folder)[0][0], path=folder.path / "runs" / "base" / "seed-9")
    (outcome,) = WorkerProcess(folder, [stranger]).outcomes().values()
    assert "BadInput: base/seed-9: " in outcome.error  # it has imported all it needs, and read the sweep


def test_a_worker_that_finds_another_package_refuses(folder, monkeypatch, tmp_path):
    """The launcher was started from a copy, `python -m` in its directory: the worker is not to run something else."""
    from transformer_jax.sweeps import process

    monkeypatch.setattr(process, "PACKAGE", tmp_path / "transformer_jax")
    ((run,),) = jobs_of(folder)
    folder.settle(defined())
    (outcome,) = WorkerProcess(folder, [run]).outcomes().values()
    assert outcome.state == "failed" and f"the sweep's launcher from {tmp_path / 'transformer_jax'}" in outcome.error


def test_a_slurm_job_too_leaves_out_the_current_directory(monkeypatch, tmp_path):
    submitit = pytest.importorskip("submitit")
    from transformer_jax.sweeps import slurm

    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda cls: 2))
    executor = slurm.Slurm({}, 10).executor(tmp_path)
    assert executor._submitit_command_str.startswith(f"{sys.executable} -P -u -m submitit")
