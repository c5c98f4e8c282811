"""The loop as a user meets it: whole trainings, stopped, resumed, limited, refused."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
from unittest import mock

import numpy as np
import pytest

from tests.support.places import ROOT
from tests.support.training_runs import (
    assert_quiet,
    assert_same_run,
    environment,
    errors,
    known_steps,
    metrics,
    run,
    train_here,
    weights,
)
from transformer_jax import load_run
from transformer_jax.config import TrainConfig
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import EXIT_UNFINISHED, BadInput
from transformer_jax.experiment import train_run
from transformer_jax.processes import hardware
from transformer_jax.runs.export import SavedWeights, flat
from transformer_jax.runs.folder import HAD_CHECKPOINT, RunFolder
from transformer_jax.training import train as train_module
from transformer_jax.training.recorder import Ending, Recorder
from transformer_jax.training.train import Trainer
from transformer_jax.translation.load import read_weights


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def straight(place):
    """The uninterrupted run; its programs are compiled for it, into a cache of its own."""
    known_steps.clear()
    printed = train_here(place / "straight", f"train.compile_cache={place / 'cache'}")
    assert_quiet(printed)
    assert " 0 of them from the cache" in printed
    return place / "straight"


def test_a_run_explains_itself(straight):
    assert {"config.json", "versions.json", "metrics.jsonl", "checkpoints", "data"} <= set(os.listdir(straight))
    lines = metrics(straight)
    assert [line["step"] for line in lines if "loss" in line] == [5, 10, 15, 20, 24]
    assert [line["step"] for line in lines if "valid_loss" in line] == [6, 12, 18, 24]
    assert json.loads((straight / "config.json").read_text())["model"]["vocab_size"] == 12
    rates = {line["step"]: line["learning_rate"] for line in lines if "loss" in line}
    assert rates[5] == pytest.approx(3e-3 * (4 / 5) ** 0.5) and rates[20] == pytest.approx(3e-3 * (4 / 20) ** 0.5)


def test_another_seed_finds_every_program_in_the_cache(place, straight):
    """On by default; hits are counted."""
    assert TrainConfig().compile_cache
    entries = {entry.name for entry in (place / "cache").iterdir()}
    with mock.patch.dict(known_steps, clear=True):
        options = (f"train.compile_cache={place / 'cache'}", "train.steps=6", "seed=40", "data.order_seed=40")
        assert " 0 of them from the cache" not in train_here(place / "another seed", *options)
    assert {entry.name for entry in (place / "cache").iterdir()} == entries, "a program that only one seed can use"


def test_its_latest_and_its_best_weights(place, straight):
    """Both can be asked for by name; the best are those of the validation with the lowest loss that was saved."""
    workdir = shutil.copytree(straight, place / "another best")
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["step"] in (6, 18) and "valid_loss" in line:
            line["valid_loss"] = line["step"] / 100  # the lowest is of step 6, whose checkpoint is not kept
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    latest, best = load_run(workdir, "latest"), load_run(workdir, "best")
    assert latest.steps == [24] and best.steps == [18]
    assert load_run(workdir).weights_sha256 == latest.weights_sha256 != best.weights_sha256


def test_stopped_and_resumed_is_the_uninterrupted_run(place, straight, monkeypatch):
    """Between checkpoints, and between lines of metrics. The command as a process: tests/chaos, tests/processes."""
    workdir, take_step = place / "stopped by a signal", Trainer.take_step

    def stopping(self, *arguments, **options):
        take_step(self, *arguments, **options)
        if self.step == 13:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "take_step", stopping)
        printed = train_here(workdir, status=EXIT_UNFINISHED)
    assert "stopped by SIGTERM at step 13" in printed  # the handler writes to the terminal itself
    assert "; the same command resumes the run; " in printed
    assert "resuming from the checkpoint of step 13" in train_here(workdir)
    assert_same_run(workdir, straight)


def test_sampled_subwords_and_the_average_are_resumed_to_the_bit(place, monkeypatch):
    """And skipped layers: stopped within an epoch and resumed, a run is the one that was never stopped."""
    options = ("data.tokenizer=bpe", "data.hard_vocab_limit=false", "data.subword_sampling=0.3")
    options += ("model.vocab_size=300", "model.layer_dropout=0.2", "optimizer.ema=0.9")
    folders = place / "sampled", place / "sampled and stopped"
    train_here(folders[0], *options)
    take_step = Trainer.take_step

    def stopping(self, *arguments):
        take_step(self, *arguments)
        if self.step == 13:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "take_step", stopping)
        train_here(folders[1], *options, status=EXIT_UNFINISHED)
    train_here(folders[1], *options)
    assert_same_run(*folders)
    averages = [flat(read_weights(folder, "ema").params) for folder in folders]
    for name, array in averages[0].items():
        np.testing.assert_array_equal(averages[1][name], array, err_msg=name)
    assert any(not np.array_equal(array, weights(folders[0])[name]) for name, array in averages[0].items())


def resumable(folder, workdir):
    """A copy of a run without its last checkpoint: one that was killed at its end."""
    shutil.copytree(folder, workdir)
    shutil.rmtree(workdir / "checkpoints/24")
    return workdir


def test_a_notebook_is_interrupted_and_goes_on(place, straight, monkeypatch):
    """A process that does other things, too: train.hours count from the call, and its folder may be used again."""
    workdir, take_step = resumable(straight, place / "of a notebook"), Trainer.take_step
    config, folder = RunFolder(workdir).load_config(), RunFolder(workdir)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, hours=1.0))
    monkeypatch.setattr(hardware, "_start", -1e9)

    def interrupted(self, *arguments, **options):
        take_step(self, *arguments, **options)
        if self.step == 20:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run under nohup
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "take_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_run(config, folder)
    assert max(folder.saved_steps()) == 20 and signal.signal(signal.SIGINT, before) is signal.default_int_handler
    monkeypatch.setattr(hardware, "_start", -1e9)
    assert train_run(config, folder) == Ending("finished")
    with pytest.raises(BadInput, match="holds another run"):
        train_run(dataclasses.replace(config, seed=7), folder)
    assert json.loads((workdir / "state.json").read_text())["state"] == "finished"


def test_killed_in_the_middle_of_a_line_of_metrics(place, straight):
    workdir = resumable(straight, place / "cut")
    with open(workdir / "metrics.jsonl", "a") as file:
        file.write('{"step": 26, "lo')
    assert "resuming from the checkpoint of step 18" in train_here(workdir)
    assert_same_run(workdir, straight)


def test_looked_into_it_is_the_same_run(place, straight):
    beyond = train_here(place / "looked into", flags=("--profile=24:2",), status=2)
    assert errors(beyond) == ["error: --profile: this run ends at step 24, before step 25, the last traced"]
    printed = train_here(place / "looked into", flags=("--profile=3:2", "--debug-nans"))
    assert f"steps 3 to 4 are traced in {place / 'looked into/profile'}" in printed
    assert_same_run(place / "looked into", straight)


def test_a_limit_of_tokens(place):
    workdir = place / "tokens"
    for _ in range(2):  # once reached, it stays reached
        assert "target tokens at step 8" in train_here(workdir, "train.tokens=700", "train.log_every=1")
        lines = metrics(workdir)
        assert lines[-1]["step"] == 8 and "valid_loss" in lines[-1] and len(lines) == 10


def test_another_metric_is_not_compared_with_the_old_one(place, straight):
    """The best starts anew, and with it the patience."""
    workdir = shutil.copytree(straight, place / "other metric")
    options = ("train.best_metric=valid_accuracy", "train.best_is=highest", "train.steps=36")
    printed = train_here(workdir, *options, "train.patience=3")
    assert "the highest valid_accuracy now, it was the lowest valid_loss: the best starts anew" in printed
    assert "finished at step 36; the highest valid_accuracy is " in printed
    scores = {line["step"]: line["valid_accuracy"] for line in metrics(workdir) if "valid_loss" in line}
    new = {step: score for step, score in scores.items() if step > 24}
    assert sorted(new) == [30, 36]
    assert SavedWeights(RunFolder(workdir)).best_steps(1) == [max(new, key=new.__getitem__)]


def test_a_kill_between_a_checkpoint_and_its_validation(place, straight):
    """Checkpoints are saved first: resumed, the run validates there and is the uninterrupted one."""
    workdir = resumable(straight, place / "unvalidated")
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["step"] <= 18]
    assert "valid_loss" in kept[-1]
    (workdir / "metrics.jsonl").write_text("\n".join(kept[:-1]) + "\n")
    train_here(workdir)
    assert_same_run(workdir, straight)


def test_lost_lines_and_lost_checkpoints_are_told(place, straight):
    workdir = shutil.copytree(straight, place / "emptied")
    (workdir / "metrics.jsonl").write_text("")
    assert "metrics.jsonl ends at step 0, before the line of step 24" in train_here(workdir)
    best = [SavedWeights(RunFolder(folder)).best_steps(1) for folder in (workdir, straight)]
    assert best[0] == best[1]
    shutil.rmtree(workdir / "checkpoints")
    (workdir / "checkpoints").mkdir()  # where a disk is not mounted
    shutil.copy(straight / "metrics.jsonl", workdir)
    (error,) = errors(train_here(workdir, "train.checkpoint_every=60", "train.eval_every=60", status=2))
    assert "its checkpoints are gone, and metrics.jsonl goes to step 24" in error
    assert (workdir / "metrics.jsonl").read_text() == (straight / "metrics.jsonl").read_text()


def test_a_complete_checkpoint_is_noted_while_the_run_goes_on(place, monkeypatch):
    monkeypatch.setattr(Recorder, "wait", lambda self: self.checkpoints.wait())
    train_here(place / "noted")
    assert RunFolder(place / "noted").versions()[HAD_CHECKPOINT]


def test_another_length_is_refused_where_the_schedule_ends_with_the_run(place, straight):
    """A complete run of 24 updates, as if it had been trained so."""
    workdir = shutil.copytree(straight, place / "cosine")
    config = workdir / "config.json"
    config.write_text(config.read_text().replace('"inverse_sqrt"', '"cosine"'))
    before = config.read_bytes(), metrics(workdir)
    for other in ("train.epochs=0.3", "train.steps=30"):
        printed = errors(train_here(workdir, "optimizer.schedule=cosine", other, status=2))
        assert printed[-1].startswith(
            "error:   train.steps, train.epochs: the cosine schedule ends at update 24 there, "
        )
    assert before == (config.read_bytes(), metrics(workdir))
    train_here(workdir, "optimizer.schedule=cosine")  # the same end


def test_other_data_in_the_place_of_a_run_s_is_reported(place, straight, capfd):
    """Its tokenizer may be another one, and the translations then mean nothing."""
    workdir = shutil.copytree(straight, place / "other data")
    config = RunFolder(workdir).load_config()
    task = dataclasses.replace(config.data.task, seed=1)
    shutil.rmtree(workdir / "data")
    prepare(dataclasses.replace(config, data=dataclasses.replace(config.data, task=task)), workdir / "data")
    for folder, printed in ((workdir, True), (straight, False)):
        capfd.readouterr()
        load_run(folder)
        assert ("is not the data that the checkpoint of step 24 was trained on" in capfd.readouterr().err) == printed


def test_a_rate_at_which_it_diverges(place):
    """A complete run that has diverged is no success, however often it is asked for."""
    workdir = place / "diverged"
    for _ in range(2):
        printed = train_here(workdir, "optimizer.learning_rate=1000.0", status=1)
        assert errors(printed)[-1].startswith("failed: training has diverged: at step 24 ")
    assert (workdir / "checkpoints/24").is_dir()
    assert_quiet(printed)


def test_all_that_does_not_fit_the_data_is_told_at_once(tmp_path):
    options = ("data.task.valid_size=0", "data.valid_size=0", "train.patience=3", "train.until_flat=0.005")
    shorter = ("train.eval_every=1", "train.epochs=0.15", "optimizer.warmup_steps=7")
    learned = ("model.positions=learned", "model.max_length=10")
    printed = train_here(tmp_path / "run", *options, *shorter, *learned, status=2)
    words = ("positions end at 10", "train.patience = 3 needs", "train.until_flat = 0.005 needs", "run of 6 steps")
    assert [word for word in words if word not in printed] == []
    assert not (tmp_path / "run/config.json").exists()


def test_a_refused_run_is_no_run_and_the_corrected_command_trains(tmp_path):
    (line,) = errors(train_here(tmp_path / "run", "optimizer.name=addam", status=2))
    assert "did you mean adam?" in line
    assert not (tmp_path / "run/config.json").exists()
    assert "stopped after train.hours" in train_here(tmp_path / "run", "train.hours=1e-12", status=EXIT_UNFINISHED)


def test_a_model_larger_than_memory_is_refused_before_it_is_compiled(tmp_path):
    with mock.patch.object(train_module, "memory", return_value=60e3):  # the model has 5,568 parameters, three times
        (line,) = errors(train_here(tmp_path / "run", status=2))
    assert "need 66.9 kB of memory on each device, which has 60.0 kB" in line
    assert not (tmp_path / "run/config.json").exists()


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_fills_up_during_a_save(small_disk, tmp_path):
    """One line says what is safe; with room made, the same command resumes from there."""
    options = ("train.keep_latest=100", "train.steps=600", "train.eval_every=3", "train.checkpoint_every=3")
    printed = train_here(small_disk / "run", *options, status=1)
    (line,) = errors(printed)
    assert "the disk is full" in line and "the newest complete one is of step" in line and "resumes from there" in line
    assert_quiet(printed)
    safe = int(line.partition("the newest complete one is of step ")[2].split(".")[0])
    shutil.copytree(small_disk / "run", tmp_path / "run")
    printed = train_here(tmp_path / "run", *options[:1], f"train.steps={safe + 3}", *options[2:])
    assert f"resuming from the checkpoint of step {safe}" in printed


@pytest.mark.drill
@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_unseen_strings(task, tmp_path):
    """With the configs that are shipped."""
    options = (
        f"--config={ROOT / 'configs' / task}.py",
        f"--workdir={tmp_path / 'run'}",
        "--config.train.tensorboard=false",
    )
    told = run("train", *options, f"--config.train.compile_cache={tmp_path / 'cache'}", env=environment())
    assert_quiet(told)
    assert metrics(tmp_path / "run")[-1]["valid_accuracy"] > 0.99
