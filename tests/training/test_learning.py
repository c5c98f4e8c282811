"""It learns: strings it has never seen, copied and reversed, token by token."""

import pytest

from tests.support.places import ROOT
from tests.support.training_runs import assert_quiet, environment, metrics, run

CONFIGS = ROOT / "configs"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["copy", pytest.param("reverse", marks=pytest.mark.drill)])
def test_unseen_strings(task, tmp_path):
    options = (f"--config={CONFIGS / task}.py", f"--workdir={tmp_path / 'run'}", "--config.train.tensorboard=false")
    told = run("train", *options, f"--config.train.compile_cache={tmp_path / 'cache'}", env=environment())
    assert_quiet(told)
    assert metrics(tmp_path / "run")[-1]["valid_accuracy"] > 0.99
