"""Metrics reported to a tracker: one record for a run, however often it is resumed, and no step twice."""

import errno
import json
import sys
import types

import pytest

from transformer_jax import cli
from transformer_jax.config import from_config_dict
from transformer_jax.errors import BadInput
from transformer_jax.experiment import try_out
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import MetricsFile
from transformer_jax.runs.tracking import Labels, Tracking

LINES = """
import json, os

class Lines:
    def __init__(self, run):
        if os.environ.get("TRACKER") == "away":
            raise ConnectionError("the server is away")
        self.file = open(os.environ["TRACKED"], "a")
        self.write(id=run.id, group=run.group, name=run.name, project=run.project, resumed=run.is_resumed,
                   heads=run.options["model.num_heads"], has_temperature="decode.temperature" in run.options)

    def write(self, **values):
        print(json.dumps(values), file=self.file, flush=True)

    def log(self, step, metrics):
        if os.environ.get("TRACKER") == "full":
            raise OSError("quota exceeded")
        self.write(step=step, **metrics)

    def finish(self):
        self.write(finished=True)
"""


@pytest.fixture
def tracked(tmp_path, monkeypatch):
    """Opens the metrics of a run with a custom tracker; `lines()` is what the tracker was given since."""
    monkeypatch.setenv("TRACKED", str(tmp_path / "tracked"))
    (tmp_path / "mine.py").write_text(LINES)
    config = from_config_dict({"train": {"tracker": f"{tmp_path}/mine.py:Lines"}})
    (tmp_path / "run").mkdir()

    class Tracked:
        labels = Labels("heads", "h=4", "h=4, seed 0")

        def metrics(self, writes=True):
            folder = RunFolder(tmp_path / "run", writes, labels=self.labels)
            return MetricsFile(folder.metrics, tensorboard=False, writes=writes, tracking=folder.tracking(config))

        def lines(self):
            file = tmp_path / "tracked"
            found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            file.unlink(missing_ok=True)
            return found

    return Tracked()


def test_a_resumed_run_continues_its_record_without_repeating_steps(tracked, tmp_path):
    with tracked.metrics() as metrics:
        metrics.write(10, {"loss": 3.0, "perplexity": float("inf"), "mfu": None})
        metrics.write(10, {"valid_loss": 2.5})
        metrics.write(20, {"loss": 2.0})
    start, *lines, end = tracked.lines()
    facts = {"group": "h=4", "name": "h=4, seed 0", "project": "heads", "heads": 8, "has_temperature": False}
    assert start == {"id": start["id"], "resumed": False, **facts}
    assert lines == [{"step": 10, "loss": 3.0}, {"step": 10, "valid_loss": 2.5}, {"step": 20, "loss": 2.0}]
    assert end == {"finished": True}
    (tmp_path / "run/checkpoints/5").mkdir(parents=True)
    with tracked.metrics() as metrics:  # from the checkpoint of step 5
        for step in (10, 20, 30):
            metrics.write(step, {"loss": 2.0})
    again, *lines, _ = tracked.lines()
    assert again["id"] == start["id"] and again["resumed"]
    assert lines == [{"step": 20, "loss": 2.0}, {"step": 30, "loss": 2.0}]  # the last one may come again


def test_a_run_that_ended_before_a_checkpoint_and_begins_again_has_a_record_of_its_own(tracked):
    """It may have been changed: nothing compares it with the run that was there."""
    starts = []
    for _ in range(2):
        with tracked.metrics() as metrics:
            metrics.write(10, {"loss": 3.0})
        start, line, _ = tracked.lines()
        assert line == {"step": 10, "loss": 3.0} and not start["resumed"]
        starts.append(start["id"])
    assert starts[0] != starts[1]


def test_a_tracker_that_cannot_finish_does_not_fail_the_run(tracked, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("class Lines:\n    def __init__(self, run): ...\n    def log(self, *_): ...\n")
    with tracked.metrics() as metrics:
        metrics.write(10, {"loss": 3.0})
    assert "mine.py:Lines failed and is left out from here on (AttributeError" in capsys.readouterr().err


def test_only_the_first_process_reports(tracked):
    with tracked.metrics(writes=False) as metrics:
        metrics.write(10, {"loss": 3.0})
    assert tracked.lines() == []


def test_a_tracker_that_fails_is_left_out_with_one_warning(tracked, monkeypatch, capsys):
    monkeypatch.setenv("TRACKER", "full")
    with tracked.metrics() as metrics:
        for step in (10, 20):
            metrics.write(step, {"loss": 3.0})
    (warning,) = capsys.readouterr().err.splitlines()
    assert "mine.py:Lines failed and is left out from here on (OSError: quota exceeded)" in warning
    assert len(tracked.lines()) == 1, "the start alone"
    monkeypatch.setenv("TRACKER", "away")
    with pytest.raises(BadInput, match=r"mine.py:Lines: could not start: the server is away"):
        tracked.metrics()


def test_a_disk_that_does_not_take_the_record_ends_no_training(tracked, monkeypatch):
    with tracked.metrics() as metrics:
        monkeypatch.setattr("transformer_jax.runs.tracking.write_json", failing(OSError(errno.ESTALE, "stale")))
        for step in (10, 20):
            metrics.write(step, {"loss": 3.0})
    assert len(tracked.lines()) == 4, "the start, the steps and the end"


def failing(error):
    def fail(*_):
        raise error

    return fail


def test_a_tracker_that_is_not_there_is_refused_before_anything_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"train.tracker = wandb needs wandb: pip install 'transformer_jax\[wandb\]'"):
        try_out(from_config_dict({"train": {"tracker": "wandb"}}))
    monkeypatch.undo()
    (tmp_path / "mine.py").write_text("def tracker(): ...\n")
    options = ["--config=preset:demo", f"--workdir={tmp_path}/run"]
    assert cli.main(["train", *options, f"--config.train.tracker={tmp_path}/mine.py:tracker"]) == 2
    assert "tracker: must be callable with (run)" in capsys.readouterr().err
    assert cli.main(["train", *options, "--config.train.tracker=wandv"]) == 2
    assert "config.train.tracker = 'wandv': must be wandb | " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_wandb_gets_the_metrics_and_its_files_are_in_the_runs_folder(tmp_path, monkeypatch):
    """Two processes of one run: the second resumes it from a checkpoint of step 20."""
    starts, lines = [], []
    fake = types.SimpleNamespace(log=lambda metrics, step: lines.append((step, metrics)), finish=lambda: None)
    module = types.ModuleType("wandb")
    module.init = lambda **options: starts.append(options) or fake
    module.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_DIR", raising=False)
    config = from_config_dict({"train": {"tracker": "wandb"}})
    for steps, place in ((range(3), str(tmp_path)), (range(1, 4), "/elsewhere")):
        tracking = Tracking(tmp_path, config, Labels("heads", "h=4", "h=4, seed 0"), has_checkpoint=True)
        for step in steps:
            tracking.log(step, {"loss": 3.0 - step})
        tracking.finish()
        assert starts[-1]["dir"] == place and starts[-1]["id"] == starts[0]["id"]
        assert (starts[-1]["project"], starts[-1]["group"], starts[-1]["resume"]) == ("heads", "h=4", "allow")
        monkeypatch.setenv("WANDB_DIR", "/elsewhere")
    assert lines == [(step, {"loss": 3.0 - step}) for step in (0, 1, 2, 2, 3)]  # of equal steps wandb keeps one
