"""Runs trained together equal the same runs trained apart, whatever befalls them on the way."""

import os
import shutil
import signal

import numpy as np
import pytest

from tests.support.small_runs import experiment
from tests.support.training_runs import metrics, shared_programs, weights
from transformer_jax.errors import BadInput, Failed
from transformer_jax.experiment import train_run, train_runs_together
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.ending import Ending
from transformer_jax.training.journal import Journal
from transformer_jax.training.together import common_step, incompatible

# As for any reordering of float32 sums over ten updates by Adam (test_step.py).
WITHIN = 2e-5


def experiments(*changes, **common):
    return [experiment(**{**common, **own}) for own in changes]


def test_what_may_not_differ_is_named():
    one = experiment()
    assert incompatible([one]) == incompatible(experiments({"seed": 1}, {"optimizer__schedule": "linear"})) == []
    # Where the data is does not matter: what was prepared is compared.
    assert incompatible(experiments({"data__directory": "/a"}, {"data__directory": "/b"})) == []
    problems = incompatible(
        experiments({}, {"model__d_ff": 64, "data__seed": 1, "train__steps": 11, "optimizer__clip_norm": 1.0})
    )
    assert problems == [
        "model.d_ff = 32, 64: must be the same for all",
        "data.seed = 0, 1: must be the same for all",
        "optimizer.clip_norm = None, 1.0: all have one, or none has",
        "train.steps = 10, 11: must be the same for all",
    ]


class Stand:
    """Where a run stands: a journal as far as its checkpoints' steps."""

    def __init__(self, *steps):
        self.checkpoints = self
        self.steps = list(steps)


@pytest.mark.parametrize(
    ("steps", "group", "step"),
    [
        ([(), ()], [0, 1], 0),
        ([(6,), ()], [0, 1], 0),
        ([(6, 12), (6, 12)], [0, 1], 12),
        ([(6, 12), (6,), (0, 6, 12)], [0, 1, 2], 6),
        ([(6, 12), (2,), (12,)], [0, 2], 12),  # the second failed long ago, or it would have 6
        ([(2,), (2, 90, 100), (2, 90)], [1, 2], 90),
        ([(6, 12), (12,), (6,)], [0, 1], 12),
    ],
)
def test_runs_continue_from_the_newest_step_that_all_have(steps, group, step):
    stands = [Stand(*own) for own in steps]
    assert common_step(stands) == ([stands[number] for number in group], step)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with shared_programs():
        yield tmp_path_factory.mktemp("together")


def run_of(place, **changes):
    """A run on the copy task, of 18 updates with a checkpoint every six."""
    task = {"train_size": 300, "valid_size": 30, "test_size": 10, "alphabet": 8}
    usual = {
        **{f"data__task__{name}": value for name, value in task.items()},
        "data__corpus": "copy",
        "data__tokenizer": "words",
        "data__tokens_per_batch": 256,
        "data__num_shapes": 1,
        "data__directory": str(place / "data"),
        "train__compile_cache": os.environ["CACHE_OF_TESTS"],
        "train__steps": 18,
        "train__log_every": 5,
        "train__eval_every": 6,
        "train__checkpoint_every": 6,
        "train__keep_latest": 2,
        "train__max_bad_steps": 3,
    }
    return experiment(**{**usual, **changes})


@pytest.fixture(scope="module")
def runs(place):
    """Two that go well and differ in more than the seed, one that diverges, and one that learns nothing."""
    other = {"seed": 1, "optimizer__learning_rate": 1e-2, "train__label_smoothing": 0.0, "model__dropout": 0.0}
    changes = (
        {},
        other,
        {"seed": 2, "optimizer__learning_rate": 1e30},
        {"seed": 3, "optimizer__learning_rate": 1e-12},
    )
    return [run_of(place, **{"model__dropout": 0.1, "train__patience": 1, **own}) for own in changes]


@pytest.fixture(scope="module")
def apart(place, runs):
    """The second alone."""
    assert train_run(runs[1], place / "apart") == "finished"
    return place / "apart"


def folders_in(place, name, count=4):
    return [place / name / str(number) for number in range(count)]


@pytest.fixture(scope="module")
def joined(place, runs):
    """All four together."""
    *healthy, diverged, idle = train_runs_together(runs, folders_in(place, "joined"))
    assert healthy == [Ending("finished")] * 2
    assert diverged.failed and "not finite in 3 steps in a row" in diverged.why
    assert idle == Ending("finished: no better valid_loss in 1 validations (a higher train.patience trains on)")
    return place / "joined"


def assert_alike(ours, theirs):
    """Two run folders tell of the same run: but for rounding, and for what the clock has a part in."""
    assert metrics(ours) == [pytest.approx(line, rel=1e-4, nan_ok=True) for line in metrics(theirs)]
    ours, theirs = weights(ours), weights(theirs)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, atol=WITHIN * np.abs(array).max(), err_msg=name)


def saved_steps(folder):
    with Checkpoints(RunFolder(folder).checkpoints, read_only=True) as checkpoints:
        return checkpoints.steps


def names_in(folder):
    """Of files and folders, two levels deep."""
    return sorted(str(path.relative_to(folder)) for pattern in ("*", "*/*") for path in folder.glob(pattern))


@pytest.mark.slow
def test_each_folder_is_what_its_run_alone_would_have_left(runs, apart, joined):
    ours = joined / "1"
    assert_alike(ours, apart)
    assert names_in(ours) == names_in(apart)
    assert (ours / "config.json").read_text() == (apart / "config.json").read_text()
    before = metrics(ours)
    assert train_run(runs[1], ours) == "finished" and metrics(ours) == before != metrics(joined / "0")


@pytest.mark.slow
def test_each_ends_in_its_own_way(runs, joined):
    assert saved_steps(joined / "2") == [] and all(line["step"] < 6 for line in metrics(joined / "2"))
    assert saved_steps(joined / "3") == [6, 12] and metrics(joined / "3")[-1]["step"] == 12
    folders = [joined / str(number) for number in (0, 1, 3)]
    before = [metrics(folder) for folder in folders]
    assert [e.why[:8] for e in train_runs_together([runs[0], runs[1], runs[3]], folders)] == ["finished"] * 3
    assert [metrics(folder) for folder in folders] == before


@pytest.mark.slow
def test_a_complete_run_without_its_last_validation_is_validated(place, runs, joined):
    """As one has that was stopped at its last update, between the checkpoint and the validation."""
    folders = folders_in(place, "unvalidated", 2)
    for folder in folders:
        shutil.copytree(joined / folder.name, folder)
    before = metrics(folders[1])
    kept = [
        line
        for line in (folders[1] / "metrics.jsonl").read_text().splitlines()
        if '"valid_loss"' not in line or '"step": 18' not in line
    ]
    assert len(kept) < len(before)
    (folders[1] / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    assert train_runs_together(runs[:2], folders) == [Ending("finished")] * 2
    assert metrics(folders[1]) == [pytest.approx(line, rel=1e-4) for line in before]
    assert metrics(folders[0]) == metrics(joined / "0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (([12, 18], [12]), "resuming from the checkpoint of step 12"),  # the first is finished, and not repeated
        (([12], [], [], []), "together: 4 runs"),  # only the first was saved: all begin again
    ],
    ids=["between the last saves", "between the first saves"],
)
def test_resumed_where_a_kill_left_them(place, runs, apart, joined, kept, told, capfd):
    """Some have a checkpoint more than others, and all have later lines of metrics."""
    folders = folders_in(place, f"kept {kept[0][-1]}", len(kept))
    for folder, steps in zip(folders, kept, strict=True):
        shutil.copytree(joined / folder.name, folder)
        for step in saved_steps(folder):
            if step not in steps:
                shutil.rmtree(folder / "checkpoints" / str(step))
    before = (folders[0] / "metrics.jsonl").stat().st_mtime_ns
    assert train_runs_together(runs[: len(kept)], folders)[:2] == [Ending("finished")] * 2
    heard = capfd.readouterr().err
    assert told in heard and ("resuming" in heard) == ("resuming" in told)
    assert f"dropout {0 if 18 in kept[0] else 0.1:g}\n" in heard  # of the second, which trains alone, or of the first
    assert ((folders[0] / "metrics.jsonl").stat().st_mtime_ns == before) == (18 in kept[0])
    assert_alike(folders[1], apart)
    assert [saved_steps(folder) for folder in folders[:2]] == [[12, 18]] * 2


@pytest.mark.slow
def test_stopped_between_checkpoints_and_resumed_alone(place, runs, apart, monkeypatch):
    folders = folders_in(place, "stopped")
    write_line = Journal.write_line

    def log_and_ask_to_stop(self, step, *arguments):
        if step == 10 and self.folder.path == folders[1]:  # once: asked twice, they would end at once
            signal.raise_signal(signal.SIGTERM)
        return write_line(self, step, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "write_line", log_and_ask_to_stop)
        endings = train_runs_together(runs, folders)
    assert [ending for ending in endings if not ending.failed] == [Ending("stopped by SIGTERM", final=False)] * 3
    assert [saved_steps(folder) for folder in folders] == [[6, 10], [6, 10], [], [6, 10]]
    assert train_run(runs[1], folders[1]) == "finished"
    assert_alike(folders[1], apart)


@pytest.mark.slow
def test_a_folder_that_cannot_be_trained_in_harms_no_other(place, runs, apart, joined, monkeypatch):
    """It is in use, or holds another run, or takes no checkpoint."""
    folders = folders_in(place, "in use", 2)
    with RunFolder(folders[0]).held():
        first, second = train_runs_together(runs[:2], folders)
    assert second == Ending("finished") and first.failed and "is training here" in first.why
    assert_alike(folders[1], apart)

    first, second = train_runs_together(runs[:2], [folders[1], joined / "1"])
    assert second == Ending("finished") and first.failed and "holds another run" in first.why

    save = Checkpoints.save

    def full(self, step, *arguments):
        if step == 12 and self.directory.parent.name == "0":
            raise Failed("the disk is full")
        save(self, step, *arguments)

    monkeypatch.setattr(Checkpoints, "save", full)
    folders = folders_in(place, "full")
    first, second, *_ = train_runs_together(runs, folders)
    assert second == Ending("finished") and first == Ending("the disk is full", failed=True)
    assert saved_steps(folders[1]) == [12, 18] and saved_steps(folders[0]) == [6]
    assert_alike(folders[1], apart)


def test_what_cannot_train_together_leaves_no_trace(place):
    folders = folders_in(place, "never", 2)
    with pytest.raises(BadInput, match=r"runs that cannot train together:\n  data.seed = 0, 1: must be the same"):
        train_runs_together([run_of(place), run_of(place, data__seed=1)], folders)
    with pytest.raises(BadInput, match=r"train.keep_latest = 1: must be at least 2"):
        train_runs_together([run_of(place, train__keep_latest=1)] * 2, folders)
    assert not (place / "never").exists()
