"""Runs trained together equal the same runs trained apart, whatever befalls them on the way."""

import os
import shutil
import signal

import jax
import numpy as np
import pytest

from tests.support.small_runs import Trainer, batches, experiment, worst_difference
from tests.support.training_runs import metrics, shared_programs, weights
from transformer_jax.errors import BadInput, Failed
from transformer_jax.experiment import train_run, train_runs_together
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.training.recorder import Ending, Recorder
from transformer_jax.training.together import incompatible
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

# As for any reordering of float32 sums over ten updates by Adam (test_step.py).
WITHIN = 2e-5


def experiments(*changes, **common):
    return [experiment(**{"train__keep_latest": 2, **common, **own}) for own in changes]


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
        "optimizer.clip_norm = None, 1.0: must be set for all or for none",
        "train.steps = 10, 11: must be the same for all",
    ]


def test_runs_can_train_together_that_differ_in_numbers_and_places():
    same = [{"seed": 1}, {"optimizer__schedule": "linear"}, {"data__directory": "/b"}]
    other = [{"model__d_ff": 64}, {"optimizer__clip_norm": 1.0}, {"train__tokens": 500}, {"train__keep_latest": 1}]
    for changes in (*same, *other):
        configs = experiments({}, changes)
        assert (changes in same) == (not incompatible(configs))


def test_runs_that_may_end_early_train_apart():
    for name, value in {"tokens": 500, "patience": 3, "until_flat": 0.1}.items():
        limits = {f"train__{name}": value, "train__steps": 30, "train__eval_every": 1, "train__keep_best": 0}
        (problem,) = incompatible(experiments({"seed": 0}, {"seed": 1}, **limits))
        assert problem.startswith(f"train.{name} = {value}: ")
    (problem,) = incompatible(experiments({}, {"seed": 1}, train__keep_latest=1))
    assert problem.startswith("train.keep_latest = 1: ")


@pytest.mark.drill
def test_on_two_devices_each_run_is_as_if_it_were_alone():
    """Its state is sharded as alone, also after it was taken apart and joined."""
    groups = (("table", {"learning_rate_factor": 0.3}),)
    configs = experiments({}, {"seed": 1}, mesh__fsdp=2, optimizer__groups=groups)
    alone = Trainer(configs[1], devices=2)
    schedule = make_schedule(configs[0].optimizer, 16, 10)
    compiled = CompiledRuns(configs, [schedule] * 2, alone.mesh)
    states = compiled.join([alone.new()] * 2)
    for batch in batches(3):
        states, _ = compiled.advance(states, sharding.place_batch(batch, alone.mesh))
        states = compiled.join(list(compiled.split(states)))
    ours, theirs = list(compiled.split(states))[1], alone.train(batches(3))
    assert worst_difference(ours, theirs) < (WITHIN,)
    places = [[leaf.sharding for leaf in jax.tree.leaves(state)] for state in (ours, alone.plan)]
    assert places[0] == places[1]


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
    """Two that go well and differ in more than the seed, and one that diverges."""
    usual = {"model__dropout": 0.1, "optimizer__weight_decay": 0.1, "optimizer__clip_norm": 1.0}
    usual |= {"model__mup_base_d_model": 8, "optimizer__ema": 0.9}
    other = {
        "seed": 2**32 - 1,
        "model__dropout": 0.0,
        "model__attention_dropout": 0.2,
        "model__layer_dropout": 0.1,
        "optimizer__ema": 0.8,
        "train__label_smoothing": 0.0,
        "train__z_loss": 0.1,
        "optimizer__learning_rate": 1e-2,
        "optimizer__schedule": "cosine",
        "optimizer__beta2": 0.9,
        "optimizer__weight_decay": 0.01,
        "optimizer__clip_norm": 0.1,
    }
    changes = ({}, other, {"seed": 2, "optimizer__learning_rate": 1e30})
    return [run_of(place, **{**usual, **own}) for own in changes]


@pytest.fixture(scope="module")
def apart(place, runs):
    """The second alone."""
    assert train_run(runs[1], place / "apart") == Ending("finished")
    return place / "apart"


def folders_in(place, name, count=3):
    return [place / name / str(number) for number in range(count)]


@pytest.fixture(scope="module")
def joined(place, runs):
    """All three together."""
    first, second, diverged = train_runs_together(runs, folders_in(place, "joined"))
    assert first == second == Ending("finished", together=3)
    assert diverged.diverged and "not finite in 3 steps in a row" in diverged.why
    return place / "joined"


def copied(joined, place, name):
    """Copies of the folders of all three."""
    shutil.copytree(joined, place / name)
    return folders_in(place, name)


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


def test_each_folder_is_what_its_run_alone_would_have_left(runs, apart, joined):
    """And all have the same steps, and the same command finds them ended."""
    ours, folders = joined / "1", [joined / str(number) for number in range(3)]
    assert_alike(ours, apart)
    assert names_in(ours) == names_in(apart)
    assert (ours / "config.json").read_text() == (apart / "config.json").read_text()
    assert [saved_steps(folder)[-2:] for folder in folders] == [[12, 18]] * 3
    before = [metrics(folder) for folder in folders]
    assert [ending.diverged for ending in train_runs_together(runs, folders)] == [False, False, True]
    assert [metrics(folder) for folder in folders] == before and before[1] != before[0]


@pytest.mark.parametrize(
    "damage",
    [pytest.param("", marks=pytest.mark.drill), "checkpoints/18/state"],
    ids=["killed between the last saves", "damaged"],
)
def test_all_go_back_to_the_last_step_that_all_have(place, runs, apart, joined, damage, capfd):
    """All have later lines of metrics."""
    folders = copied(joined, place, f"kept {bool(damage)}")
    shutil.rmtree(folders[1] / (damage or "checkpoints/18"))
    assert train_runs_together(runs, folders)[:2] == [Ending("finished", together=3)] * 2
    assert "resuming from the checkpoint of step 12" in capfd.readouterr().err
    assert [(folder / "damaged_checkpoints").exists() for folder in folders] == [False, bool(damage), False]
    assert_alike(folders[1], apart)
    assert [saved_steps(folder) for folder in folders] == [[12, 18]] * 3


@pytest.mark.parametrize(
    ("saved", "groups"),
    [
        ([{6}, {6}, set()], ["01", "2"]),
        ([set(), set()], ["01"]),
        ([{6}, set()], ["0", "1"]),
        ([{6, 12}, {6}, {6, 12}], ["012"]),
    ],
)
def test_runs_are_resumed_together_that_can_go_on_from_one_step(saved, groups, tmp_path, monkeypatch):
    """A kill while they were saving leaves some with the step before the newest of the others."""
    trained = []

    def train_group(experiments, folders):
        trained.append("".join(folder.path.name for folder in folders))
        return [Ending("finished")] * len(folders)

    monkeypatch.setattr("transformer_jax.experiment._train", train_group)
    monkeypatch.setattr(RunFolder, "saved_steps", lambda self: saved[int(self.path.name)])
    configs = [experiment(seed=seed) for seed in range(len(saved))]
    endings = train_runs_together(configs, [tmp_path / str(seed) for seed in range(len(saved))])
    assert trained == groups
    assert [ending.together for ending in endings] == [len(group) for group in groups for _ in group]


def test_each_group_trains_in_turn_until_one_is_stopped(place, monkeypatch):
    stopped, trained = Ending("stopped", final=False), []

    def train_group(experiments, folders):
        trained.append([folder.path.name for folder in folders])
        return [stopped if "2" in trained[-1] else Ending("finished")] * len(folders)

    monkeypatch.setattr("transformer_jax.experiment._train", train_group)
    saved = {"0": {6}, "1": {6}, "2": set(), "3": {9}}
    monkeypatch.setattr(RunFolder, "saved_steps", lambda self: saved[self.path.name])
    configs = [run_of(place, seed=seed) for seed in range(4)]
    endings = train_runs_together(configs, folders_in(place, "in turn", 4))
    assert trained == [["0", "1"], ["2"]] and endings == [Ending("finished", together=2)] * 2 + [stopped] * 2


def test_a_folder_that_cannot_be_used_is_an_error_of_all(runs, joined):
    """It is in use, or holds another run."""
    with RunFolder(joined / "0").held(), pytest.raises(Failed, match="is training here"):
        train_runs_together(runs, [joined / str(number) for number in range(3)])
    with pytest.raises(BadInput, match="holds another run"):
        train_runs_together(runs, [joined / "0", joined / "2", joined / "1"])


def test_an_error_of_one_folder_ends_all_and_stopped_later_each_can_go_on_alone(place, runs, apart, monkeypatch):
    folders, save, log = folders_in(place, "full"), Checkpoints.save, Recorder.log

    def full(self, step, *arguments):
        if step == 12 and self.directory.parent.name == "0":
            raise Failed("the disk is full")
        save(self, step, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", full)
        with pytest.raises(Failed, match="the disk is full"):
            train_runs_together(runs, folders)
    assert [saved_steps(folder) for folder in folders] == [[6]] * 3

    def log_and_ask_to_stop(self, step, *arguments):
        if step == 10 and self.folder.path == folders[1]:  # once: asked twice, they would end at once
            signal.raise_signal(signal.SIGTERM)
        return log(self, step, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "log", log_and_ask_to_stop)
        endings = train_runs_together(runs, folders)
    assert [ending for ending in endings if not ending.diverged] == [
        Ending("stopped by SIGTERM", final=False, together=3)
    ] * 2
    assert [saved_steps(folder) for folder in folders] == [[6, 10]] * 3
    assert train_run(runs[1], folders[1]) == Ending("finished")
    assert_alike(folders[1], apart)


def test_what_cannot_train_together_leaves_no_trace(place):
    folders = folders_in(place, "never", 2)
    with pytest.raises(BadInput, match=r"data.seed = 0, 1: must be the same"):
        train_runs_together([run_of(place), run_of(place, data__seed=1)], folders)
    assert not (place / "never").exists()
