"""It learns: strings it has never seen, copied and reversed, token by token."""

import pytest

from tests.support.places import ROOT
from tests.support.training_runs import assert_quiet, environment, metrics, run, train_here

CONFIGS = ROOT / "configs"


@pytest.mark.slow
def test_unseen_strings_are_copied(tmp_path):
    sizes = ("model.d_model=48", "model.d_ff=96", "data.task.train_size=5000", "data.tokens_per_batch=512")
    rates = ("optimizer.warmup_steps=40", "optimizer.learning_rate=8e-3", "model.dropout=0", "train.steps=240")
    train_here(
        tmp_path / "run", "model.num_heads=4", *sizes, *rates, "train.eval_every=240", "train.checkpoint_every=240"
    )
    assert metrics(tmp_path / "run")[-1]["valid_accuracy"] > 0.9


@pytest.mark.drill
@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_unseen_strings(task, tmp_path):
    """With the configs that are shipped."""
    options = (f"--config={CONFIGS / task}.py", f"--workdir={tmp_path / 'run'}", "--config.train.tensorboard=false")
    told = run("train", *options, f"--config.train.compile_cache={tmp_path / 'cache'}", env=environment())
    assert_quiet(told)
    assert metrics(tmp_path / "run")[-1]["valid_accuracy"] > 0.99
