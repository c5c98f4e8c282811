"""Trainings that go wrong or are odd: each behaves as one would hope, and says so in one clear line."""

import os
import shutil
import subprocess

import pytest

from tests.support.training_runs import assert_quiet, errors, metrics, train_here

pytestmark = pytest.mark.slow


def test_a_rate_at_which_it_diverges(tmp_path):
    """It is trained to its end and saved, but it is no success, the second time either."""
    options = ("optimizer.learning_rate=1e3", "train.steps=12", "train.max_bad_steps=5")
    for _ in range(2):
        printed = train_here(tmp_path / "run", *options, status=1)
        assert errors(printed)[-1].startswith("failed: training has diverged: at step 12 ")
        assert all(len(line) < 250 for line in printed.splitlines() if line.startswith("step"))
    assert (tmp_path / "run/checkpoints/12").is_dir()
    assert_quiet(printed)


@pytest.mark.drill
def test_gradients_that_are_not_finite_stop_it(tmp_path):
    options = ("optimizer.name=sgd", "optimizer.learning_rate=1e30", "train.max_bad_steps=5", "train.steps=60")
    printed = train_here(tmp_path / "run", *options, status=1)
    (line,) = errors(printed)
    assert line.startswith("failed: the gradient was not finite in 5 steps in a row, up to step ")
    assert "(learning rate" in line and "optimizer.clip_norm" in line
    assert_quiet(printed)


def test_a_corpus_of_a_single_sentence_and_a_vocabulary_of_five(tmp_path):
    """In batches of that one sentence, and an empty line."""
    (tmp_path / "one").write_text("a\n\n")
    files = (f"data.source={tmp_path / 'one'}", f"data.target={tmp_path / 'one'}", "data.corpus=")
    printed = train_here(tmp_path / "run", *files, "data.tokens_per_batch=17", "train.steps=10")
    assert f"; left out: 1 empty (first: {tmp_path / 'one'}:2)\n" in printed
    assert "vocabulary: 5, shared" in printed and "finished at step 10" in printed
    assert errors(printed) == ["warning: there is no validation data: the loss on unseen sentences will not be known"]
    assert metrics(tmp_path / "run")[-1]["loss"] < metrics(tmp_path / "run")[0]["loss"]


@pytest.mark.parametrize("option", [("patience", "3"), ("until_flat", "0.005", "train.eval_every=1")])
def test_early_stopping_without_validation_data(tmp_path, option):
    name, value, *more = option
    no_data = ("data.task.valid_size=0", "data.valid_size=0")
    (line,) = errors(train_here(tmp_path / "run", *no_data, f"train.{name}={value}", *more, status=2))
    assert line == f"error: train.{name} = {value} needs validation data, and there is none"


@pytest.mark.drill
def test_fewer_sentences_to_validate_on_than_devices(tmp_path):
    printed = train_here(tmp_path / "run", "data.task.valid_size=3", devices=8)
    assert "valid_loss" in printed
    train_here(tmp_path / "alone", "data.task.valid_size=3")
    for ours, theirs in zip(metrics(tmp_path / "run"), metrics(tmp_path / "alone"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)


def test_fewer_positions_than_tokens(tmp_path):
    (line,) = errors(train_here(tmp_path / "run", "model.positions=learned", "model.max_length=10", status=2))
    assert line.startswith(
        "error: model.max_length: the model's positions end at 10, but the longest row of a batch has "
    )
    assert "tokens" in line and "raise it" in line


def test_a_metric_that_nobody_measures_is_told_before_the_first_step(tmp_path):
    (line,) = errors(train_here(tmp_path / "run", "train.best_metric=valid_los", status=2))
    assert line.startswith("error: train.best_metric = 'valid_los' is not among the validation metrics: valid_loss, ")


def test_more_parts_than_rows(tmp_path):
    (line,) = errors(train_here(tmp_path / "run", "train.accumulate=1000", status=2))
    assert line.startswith("error: train.accumulate = 1000 parts are more than the ")


def test_a_refused_run_is_no_run_and_the_corrected_command_trains(tmp_path):
    (line,) = errors(train_here(tmp_path / "run", "optimizer.name=addam", status=2))
    assert "did you mean adam?" in line
    assert not (tmp_path / "run/config.json").exists()
    assert "stopped after train.hours" in train_here(tmp_path / "run", "train.hours=1e-12")


def test_an_optimizer_that_remembers_a_boolean_is_saved_and_resumed(tmp_path):
    for steps in (6, 9):
        printed = train_here(tmp_path / "run", "optimizer.name=optimistic_adam_v2", f"train.steps={steps}")
    assert "resuming from the checkpoint of step 6" in printed and "finished at step 9" in printed


def test_a_state_that_no_checkpoint_can_hold_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "own.py").write_text(
        "import jax.numpy as jnp\nimport optax\n\ndef four_bits(learning_rate):\n"
        "    init = lambda params: {'moment': jnp.zeros(2, jnp.int4)}\n"
        "    return optax.GradientTransformation(init, lambda gradients, state, params: (gradients, state))\n"
    )
    (line,) = errors(train_here(tmp_path / "run", f"optimizer.name={tmp_path / 'own.py'}:four_bits", status=2))
    assert line == "error: the state's optimizer/moment is of type int4, which a checkpoint cannot hold"
    assert not (tmp_path / "run/config.json").exists()


@pytest.mark.drill
def test_data_that_changed_under_a_run(tmp_path):
    """Other sentences of the same lengths: nothing but a fingerprint tells them apart."""
    for name, text in (("old", "a b c\nb c a\n"), ("new", "c b a\na c b\n")):
        (tmp_path / name).write_text(text * 50)
    shutil.copy(tmp_path / "old", tmp_path / "text")
    files = (f"data.source={tmp_path / 'text'}", f"data.target={tmp_path / 'text'}", "data.corpus=")
    files += ("data.valid_size=0", "data.test_size=0")
    train_here(tmp_path / "run", *files, "train.steps=6")
    shutil.copy(tmp_path / "new", tmp_path / "text")
    (line,) = errors(train_here(tmp_path / "run", *files, status=2))
    assert "was prepared from something else" in line
    shutil.rmtree(tmp_path / "run" / "data")
    (line,) = errors(train_here(tmp_path / "run", *files, status=2))
    assert "its prepared data has changed since the checkpoint of step 6" in line


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
    assert "the disk is full" in line and "the newest whole one is of step" in line and "resumes from there" in line
    assert_quiet(printed)
    safe = int(line.partition("the newest whole one is of step ")[2].split(".")[0])
    shutil.copytree(small_disk / "run", tmp_path / "run")
    printed = train_here(tmp_path / "run", *options[:1], f"train.steps={safe + 3}", *options[2:])
    assert f"resuming from the checkpoint of step {safe}" in printed
