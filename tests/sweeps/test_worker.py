"""A worker: a run that fails does not affect the others, and what is finished is not repeated."""

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.devices import one_device
from tests.support.sweep_runs import FOUR, defined, pretend_finished
from tests.sweeps.conftest import work
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import EXIT_UNFINISHED, BadInput, Diverged, Failed
from transformer_jax.experiment import TestSet
from transformer_jax.files.record import read_if_sound
from transformer_jax.processes.compilation import CompileWatch
from transformer_jax.processes.hardware import cores
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.records import Record
from transformer_jax.sweeps import resolved, worker
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import Result
from transformer_jax.sweeps.worker import Stopped, Worker
from transformer_jax.training.recorder import Ending


def result_of(folder):
    return json.loads((folder.path / "runs/base/seed-0/result.json").read_text())


def test_a_failure_is_reported_and_affects_no_other_run(worked):
    folder, definition, ended = worked
    for run_id, reason in (("dropout/seed-0", "config.json: is"), ("h-=-4/seed-0", "Is a directory")):
        assert ended[run_id] == 1
        run = folder.by_id(definition)[run_id]
        assert run.attempt()["state"] == "failed" and reason in run.attempt()["error"] and not run.is_finished()
    assert folder.by_id(definition)["base/seed-0"].attempt()["state"] == "finished"
    assert os.readlink(folder.path / "runs/base/seed-0/data").startswith("../../../data/")


def test_a_result_of_another_run_that_was_copied_is_not_reported(folder):
    """The run is refused or trained anew; until then a report must not have the scores of the copy."""
    definition = defined()
    folder.save(definition)
    (copied,), (run,) = folder.runs(defined(overrides=[("train.steps", "24")])), folder.runs(definition)
    pretend_finished(copied)
    with contextlib.ExitStack() as locks:
        assert Worker(folder, definition, [run])._lock(locks) == [run]
    assert not (run.path / "result.json").exists()


def test_a_worker_that_is_stopped_is_not_started_again_for_what_an_earlier_one_recorded(folder, monkeypatch):
    definition = defined()
    folder.save(definition)
    (run,) = folder.runs(definition)
    run.record_attempt(state="stopped", error="train.hours", asked=False)
    monkeypatch.setattr(Worker, "_handle_signals", lambda worker: None)
    monkeypatch.setattr(Worker, "_train_and_evaluate", lambda worker, runs: worker._raise(signal.SIGTERM, None))
    assert Worker(folder, definition, [run]).work() == EXIT_UNFINISHED
    assert run.attempt()["asked"] is True


def test_a_finished_run_is_not_repeated_unless_its_records_were_replaced(worked, capfd):
    folder, definition, _ = worked
    before, run = result_of(folder), folder.by_id(definition)["base/seed-0"]
    assert work(folder, definition, "base/seed-0") == 0
    assert run.attempt()["tries"] == 1
    record = folder.path / "runs/base/seed-0" / before["tests"]["test"]["file"]
    record.unlink()
    with one_device():
        assert work(folder, definition, "base/seed-0") == 0
    assert run.attempt()["tries"] == 2 and record.is_file() and result_of(folder)["tests"] == before["tests"]


@pytest.mark.parametrize(("error", "state"), [(Failed("no room"), "failed"), (Diverged("at step 3"), "diverged")])
def test_a_stop_leaves_what_had_failed(folder, monkeypatch, error, state):
    """Of a group, one run has failed when the process is asked to stop."""
    definition = defined(FOUR)
    folder.save(definition)

    def train(self, runs):
        self._fail(runs[0], error)
        raise Stopped

    monkeypatch.setattr(Worker, "_train_and_evaluate", train)
    work(folder, definition, "base/seed-0", "h-=-4/seed-0")
    base, four = folder.runs(definition)
    assert base.attempt()["state"] == state and base.has_diverged() == (state == "diverged")
    assert four.attempt()["state"] == "stopped"


class Trap:
    """A stop signal comes while this object is freed, where Python ignores exceptions."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stop_is_not_lost_and_a_second_one_does_not_end_its_recording(folder, monkeypatch):
    definition = defined(FOUR)
    folder.save(definition)
    record = Worker._record

    def train(self, runs):
        Trap()
        for _ in range(3000):  # until the stop arrives
            time.sleep(0.01)
        raise AssertionError("the stop was lost")

    def recorded(self, run, state, **values):
        if state == "stopped":
            os.kill(os.getpid(), signal.SIGTERM)
        record(self, run, state, **values)

    monkeypatch.setattr(Worker, "_train_and_evaluate", train)
    monkeypatch.setattr(Worker, "_record", recorded)
    assert work(folder, definition, "base/seed-0", "h-=-4/seed-0") == EXIT_UNFINISHED
    assert [run.attempt()["state"] for run in folder.runs(definition)] == ["stopped", "stopped"]


def test_after_a_stop_no_further_run_starts_training(folder, monkeypatch):
    """The training of a group fails, its runs train separately, and the process is asked to stop during the first."""
    definition = defined(FOUR)
    folder.save(definition)
    trained = []

    def train(experiments, folders, *_):
        if len(folders) > 1:
            raise Failed("no room")
        trained.extend(folders)
        process.stopping = True
        return [Ending("stopped after SIGTERM", final=False)]

    monkeypatch.setattr(worker, "train_runs_together", train)
    process = Worker(folder, definition, folder.runs(definition))
    process.work()
    assert len(trained) == 1
    assert [run.attempt()["state"] for run in folder.runs(definition)] == ["stopped", "stopped"]


def test_nothing_is_made_anew_where_a_sweep_was_removed(folder, monkeypatch):
    definition = defined()
    folder.save(definition)

    def train(*_):
        shutil.rmtree(folder.path)
        raise Failed("no such file")

    monkeypatch.setattr(worker, "train_runs_together", train)
    assert work(folder, definition, "base/seed-0") == 1
    assert not folder.path.exists()


def test_a_file_system_without_locks_is_named_in_a_line(folder, monkeypatch, capsys):
    definition = defined()
    folder.save(definition)

    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with folder.held(), folder.runs(definition)[0].held():
        assert capsys.readouterr().err.count("locks do not work") == 2


# What a trained run comes to.

ANALYSES = "def a(run, config, tests):\n    return 3\ndef b(run, config, tests):\n    return {'x': a}\n"


def test_a_result_is_that_of_the_run(worked):
    folder, definition, _ = worked
    run = folder.by_id(definition)["base/seed-0"]
    result = run.result()
    assert result["variant"] == "base" and result["seed"] == 0 and result["steps"] == 12 and result["together"] == 1
    assert result["parameters"] == 12 * 16 + (1024 + 1072 + 64) + (2048 + 1072 + 96)
    assert result["learning_rate"] == 3e-3 and set(result["valid"]) >= {"loss", "perplexity", "accuracy"}
    record = json.loads((run.path / result["tests"]["test"]["file"]).read_text())
    assert record["n"] == 10 and record["measures"]["bleu"]["score"] == result["tests"]["test"]["bleu"]
    right = sum(record["sentences"]["exact_match"])
    assert result["tests"]["test"]["exact_match"] == {"right": right, "total": 10}
    words = [len(text.split()) for text in Prepared.open(run.folder.data(run.experiment)).texts("test")[0]]
    assert result["tests"]["test"]["custom_metrics"] == {"count": 10.0, "words": np.mean(words)}
    lengths = Prepared.open(run.folder.data(run.experiment)).pairs("train").target_lengths
    assert result["longest_target"] == lengths.max() + 1  # <eos>
    assert result["devices"] == ("1 CPU core" if cores() == 1 else f"{cores()} CPU cores")
    found = json.loads(run.analysis("words").read_text())
    assert found == {"title": "Words", "score": np.mean(words), "scores": words}


def test_the_cost_of_a_training_that_was_stopped_between_two_lines_is_that_of_all_its_tokens(worked, tmp_path):
    finished, definition, _ = worked
    folder = SweepFolder(shutil.copytree(finished.path, tmp_path / "sweep", symlinks=True))
    run = folder.by_id(definition)["base/seed-0"]
    lines = read_metrics(run.folder.metrics)
    line, validation = (next(line for line in lines if name in line) for name in ("seconds", "valid_loss"))
    line |= {"target_tokens": 100, "source_tokens_per_second": 50.0, "target_tokens_per_second": 25.0}
    found = []
    for seconds in (4.0, 1.0):  # of all tokens, and of a quarter of them
        run.folder.metrics.write_text(f"{json.dumps(line | {'seconds': seconds})}\n{json.dumps(validation)}\n")
        found.append(worker.training(run, run.folder.load_config()))
    assert found[0] == found[1] and found[0]["train_seconds"] == 4.0


def test_a_metric_is_edited_and_the_runs_are_measured_again(worked, tmp_path):
    finished, definition, _ = worked
    shutil.copytree(finished.path, tmp_path / "sweep", symlinks=True)
    folder, file = SweepFolder(tmp_path / "sweep"), tmp_path / "experiment.py"

    def launched():
        return dataclasses.replace(definition, code=definition.code_of())

    source = Path(definition.file).read_text().replace(definition.file, str(file))
    file.write_text(source.replace("return len(hypotheses)", "return 1 + len(hypotheses)"))
    definition = resolved.load(
        str(file), overrides=[("train.compile_cache", "none"), ("decode.metrics", f"{file}:count")]
    )
    trained = (folder.path / "runs/base/seed-0/metrics.jsonl").read_text()
    with contextlib.chdir(tmp_path), one_device():
        assert work(folder, launched(), "base/seed-0") == 0
    run, result = folder.by_id(launched())["base/seed-0"], result_of(folder)
    assert run.is_finished() and run.folder.metrics.read_text() == trained
    assert result["tests"]["test"]["custom_metrics"]["count"] == 11.0
    assert result["code"] == launched().code
    for function, line in (("words", 'return {"title": "Words"'), ("count", "return 1 + len(hypotheses)")):
        before = file.read_text()
        file.write_text(before.replace(line, f"x = 0\n    {line}"))
        assert not folder.by_id(launched())["base/seed-0"].is_finished(), function
        accepting = dataclasses.replace(launched(), accept_changed_code=True)
        assert folder.by_id(accepting)["base/seed-0"].is_finished(), function
        file.write_text(before)
    assert folder.by_id(launched())["base/seed-0"].is_finished()


def test_a_sweep_evaluates_the_weights_that_it_names(worked, tmp_path):
    """The checkpoints are of steps 6 and 12; the best is the one with the lower validation loss."""
    finished, definition, _ = worked
    shutil.copytree(finished.path, tmp_path / "sweep", symlinks=True)
    run = SweepFolder(tmp_path / "sweep").by_id(definition)["base/seed-0"]
    lines = read_metrics(run.folder.metrics)
    losses = {line["step"]: line["valid_loss"] for line in lines if "valid_loss" in line}
    losses[6] = losses[12] / 2
    better = [
        line | {"valid_loss": losses[6]} if line["step"] == 6 and "valid_loss" in line else line for line in lines
    ]
    run.folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in better))
    best = min(losses, key=losses.get)
    with one_device():
        for weights, steps in (("latest", [12]), ("best", [best]), ("averaged", [6, 12])):
            sweep = dataclasses.replace(definition.sweep, weights=weights)
            worker.finish(run, dataclasses.replace(definition, sweep=sweep), 1, CompileWatch())
            result = read_if_sound(run.path / "result.json", Result)
            assert result["tests"]["test"]["steps"] == steps
            assert read_if_sound(run.path / f"translations/test.{weights}.json", Record)["weights"] == weights
            assert result["valid"]["loss"] == losses[best if weights == "best" else 12]


@pytest.mark.parametrize("name", ["a", "b"])
def test_an_analysis_must_return_a_dict_of_json(tmp_path, name):
    file = tmp_path / "odd.py"
    file.write_text(ANALYSES)
    with pytest.raises(BadInput, match=f"analysis '{name}': "):
        worker.analyse(None, None, {}, name, f"{file}:{name}")


@pytest.mark.parametrize(("score", "kept"), [("2", (2.0, None)), ("[0, True]", (0.5, [0.0, 1.0])), ("[1, 2, 3]", None)])
def test_an_analysis_may_have_a_score(tmp_path, score, kept):
    file = tmp_path / "score.py"
    file.write_text(f"def depth(run, config, tests):\n    return {{'score': {score}}}\n")
    tests = {"test": TestSet("test", "test", ["a", "b"], ["c", "d"])}
    if kept is None:
        with pytest.raises(BadInput, match=r"analysis 'depth': .*one for each sentence"):
            worker.analyse(None, None, tests, "depth", f"{file}:depth")
    else:
        found = worker.analyse(None, None, tests, "depth", f"{file}:depth")
        assert (found["score"], found["scores"]) == kept
        with pytest.raises(BadInput, match="analysis 'chrf': is the name of a metric"):
            worker.analyse(None, None, tests, "chrf", f"{file}:depth")
