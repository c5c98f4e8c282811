"""It learns: strings it has never seen, copied and reversed, token by token."""

import pytest

from tests.support.places import ROOT
from tests.support.training_runs import assert_quiet, environment, metrics, run, train_here

CONFIGS = ROOT / "configs"


@pytest.mark.slow
def test_unseen_strings_are_copied(tmp_path):
    sizes = ("model.d_model=64", "model.d_ff=128", "data.task.train_size=5000", "data.tokens_per_batch=1024")
    rates = ("optimizer.warmup_steps=50", "optimizer.learning_rate=5e-3", "model.dropout=0", "train.steps=200")
    train_here(tmp_path / "run", *sizes, *rates, "train.eval_every=200", "train.checkpoint_every=200")
    assert metrics(tmp_path / "run")[-1]["valid_accuracy"] > 0.9


@pytest.mark.drill
@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_unseen_strings(task, tmp_path):
    """With the configs that are shipped."""
    options = (f"--config={CONFIGS / task}.py", f"--workdir={tmp_path / 'run'}", "--config.train.tensorboard=false")
    told = run("train", *options, f"--config.train.compile_cache={tmp_path / 'cache'}", env=environment())
    assert_quiet(told)
    assert metrics(tmp_path / "run")[-1]["valid_accuracy"] > 0.99
