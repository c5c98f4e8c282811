"""How many updates a run has: train.steps and train.epochs together, wherever its length is meant."""

import dataclasses
import functools

import pytest

from tests.support.small_runs import experiment
from tests.support.sweep_runs import BASE, defined
from transformer_jax.cli import main
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput
from transformer_jax.pictures import plots
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import count_text
from transformer_jax.sweeps import spec
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.plan import UNCOUNTED, plan
from transformer_jax.sweeps.status import status_of
from transformer_jax.training.setup import updates
from transformer_jax.update.optimizer import ends_with_the_run

TASK = {"corpus": "copy", "tokenizer": "words", "tokens_per_batch": 256, "num_shapes": 1}
SMALL = {f"data__{name}": value for name, value in TASK.items()} | {"data__task__train_size": 300}
HALF = {"train__epochs": 0.5, "train__steps": 100_000}


@pytest.fixture
def drawn(monkeypatch):
    """How many steps each schedule that is drawn has."""
    steps = []

    def draw(rate, count, *rest):
        steps.append(count)
        return plot(lambda _: 1.0, count)

    plot = plots.schedule
    monkeypatch.setattr(plots, "schedule", draw)
    return steps


def test_epochs_count_batches_of_the_data(tmp_path):
    config, nowhere = experiment(**SMALL, **HALF), functools.partial(pytest.fail, "the data is not looked for")
    assert updates(config, lambda: tmp_path / "data") is None
    prepared = prepare(config, tmp_path / "data")
    whole = updates(experiment(**SMALL, train__epochs=1.0, train__steps=10**6), lambda: prepared.directory)
    assert whole is not None and updates(config, lambda: prepared.directory) == -(-whole // 2)
    assert updates(experiment(**SMALL, train__epochs=9.0, train__steps=7), lambda: prepared.directory) == 7
    assert updates(experiment(**SMALL, train__steps=7), nowhere) == 7


def test_the_drawn_schedule_is_as_long_as_the_run(tmp_path, drawn, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepare(experiment(**SMALL), tmp_path / "data")  # where the command is given, but not named by it
    prepared = prepare(experiment(**SMALL, **HALF), tmp_path / "run/data")
    wanted = updates(experiment(**SMALL, **HALF), lambda: prepared.directory)
    values = {**{name.replace("__", "."): value for name, value in {**SMALL, **HALF}.items()}}
    command = ["plot", "schedule", "--config=preset:text", f"--output={tmp_path / 'rate.svg'}"]
    command += [f"--config.{name}={value}" for name, value in values.items()]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "train.epochs = 0.5" in line and "--workdir=RUN" in line and not drawn
    assert main([*command, f"--workdir={tmp_path / 'run'}"]) == 0
    assert drawn == [wanted]


def test_a_sweep_counts_epochs_once_the_data_is_there(tmp_path):
    base = {**BASE, "train": {**BASE["train"], "steps": 100_000, "epochs": 0.5}}
    definition, folder = defined(base=base), SweepFolder(tmp_path)
    (config,) = definition.experiments.values()
    place = folder.data(config)
    assert UNCOUNTED in next(plan(folder, definition, ["base"], {}))
    prepare(config, place)
    told = next(plan(folder, definition, ["base"], {place: place}))
    counted = spec.training_flops(config, updates(config, lambda: folder.data(config)))
    assert UNCOUNTED not in told and count_text(counted) in told and counted < spec.training_flops(config) / 1000


def test_the_share_of_a_run_is_that_of_its_last_update(tmp_path):
    base = {**BASE, "train": {**BASE["train"], "steps": 100_000, "epochs": 0.5}}
    (run,) = SweepFolder(tmp_path).runs(defined(base=base))
    run.path.mkdir(parents=True)
    assert status_of(run).steps == 100_000  # as long as nothing is known
    run.folder.record(run.experiment, 19)
    (run.path / "metrics.jsonl").write_text('{"step": 19, "loss": 1.0, "seconds": 1.0}\n')
    run.record_attempt(state="running", host="another machine", pid=1)
    standing = status_of(run)
    assert (standing.steps, standing.share, standing.state) == (19, 1.0, "measuring")


def test_only_a_schedule_that_ends_has_an_end(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def flat(peak): return lambda count: peak\ndef falling(steps): return lambda count: 1 / steps\n")
    schedules = {"inverse_sqrt": False, "constant": False, "cosine": True, "linear": True, "wsd": True}
    schedules |= {f"{file}:flat": False, f"{file}:falling": True}
    for schedule, ends in schedules.items():
        config = dataclasses.replace(experiment().optimizer, schedule=schedule)
        assert ends_with_the_run(config) == ends, schedule


def test_a_folder_compares_the_end_and_not_the_options(tmp_path):
    run, there = RunFolder(tmp_path), experiment(data__corpus="copy", train__steps=20)
    (run.checkpoints / "6").mkdir(parents=True)
    run.record(there)

    def changed(**changes):
        return dataclasses.replace(there, train=dataclasses.replace(there.train, **changes))

    def last_step(train):
        return min(train.steps, int(10 * (train.epochs or 9)))

    for same in (changed(epochs=3.0), changed(steps=30, epochs=2.0)):
        assert run.holds_run(same, last_step)
    with pytest.raises(BadInput, match="the inverse_sqrt schedule ends at update 20 there, 10 here"):
        run.holds_run(changed(epochs=1.0), last_step)
    assert run.holds_run(changed(epochs=1.0))
