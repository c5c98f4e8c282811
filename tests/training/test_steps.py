"""The programs of one run, and how many steps it has: train.steps and train.epochs together."""

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import jax
import numpy as np
import pytest

from tests.support.small_runs import batches, experiment
from tests.support.sweep_runs import BASE, defined
from transformer_jax.config import TrainConfig
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import count_text
from transformer_jax.sweeps import resolved
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.plan import Timed, plan
from transformer_jax.sweeps.status import status_of
from transformer_jax.training import steps
from transformer_jax.training.steps import CompiledSteps, Program, last_step, planned_steps
from transformer_jax.update import sharding


def test_a_run_starts_from_given_parameters_and_its_sums_can_be_reset():
    config = experiment()
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    abstract = CompiledSteps([config], [lambda count: 1e-3], mesh).abstract_state
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.5, leaf.dtype), abstract.params)
    programs = CompiledSteps([config], [lambda count: 1e-3], mesh, params)
    state = programs.new_state()
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    state, metrics = programs.train_step(state, sharding.place_batch(batches(1)[0], mesh))
    assert float(metrics.loss) > 0 and int(state.sums.updates) == 1
    reset = programs.reset_sums(state)
    assert {float(each) for each in jax.tree.leaves(reset.sums)} == {0.0}
    assert (int(reset.step), int(reset.updates)) == (1, 1)


def test_programs_compiled_ahead_are_those_that_are_used():
    """By threads; a shape that was not foreseen, or that no thread has begun, is compiled when it comes."""
    double = Program(jax.jit(lambda arguments, batch: 2 * batch))
    with ThreadPoolExecutor(1) as pool:
        double.compile_ahead(pool, None, np.ones(4))
    for rows, compiled_now in ((4, 0), (2, 1), (4, 1)):
        np.testing.assert_array_equal(double(None, np.ones(rows)), np.full(rows, 2.0))
        assert double.func._cache_size() == compiled_now
    pool = ThreadPoolExecutor(2)
    with mock.patch.object(Program, "_tracing", threading.Lock()) as tracing, tracing:
        ahead = [double.compile_ahead(pool, None, np.ones(rows)) for rows in range(11, 23)]
        pool.shutdown(wait=False, cancel_futures=True)
    assert sum(program.cancelled() for program in ahead) >= 10
    np.testing.assert_array_equal(double(None, np.ones(22)), np.full(22, 2.0))


def test_the_clock_stands_still_while_a_program_is_waited_for(monkeypatch):
    now = 0.0

    class Slow:
        """A pool whose programs are ready a minute after they are asked for."""

        def submit(self, make):
            def result():
                nonlocal now
                now += 60
                return make()

            return mock.Mock(result=result, cancelled=lambda: False)

    monkeypatch.setattr(steps, "time", mock.Mock(perf_counter=lambda: now))
    config = experiment()
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    programs = CompiledSteps([config], [lambda count: 1e-3], mesh)
    batch = sharding.place_batch(batches(1)[0], mesh)
    programs.compile_ahead(Slow(), [batch])
    state, _ = programs.train_step(programs.new_state(), batch)
    assert (now, programs.waited, programs.clock()) == (60.0, 60.0, 0.0)
    now += 5  # a step
    programs.train_step(state, batch)
    assert (now, programs.clock()) == (65.0, 5.0)


def test_epochs_count_batches_of_the_data(tmp_path):
    task = {"corpus": "copy", "tokenizer": "words", "tokens_per_batch": 256, "num_shapes": 1}
    small = {f"data__{name}": value for name, value in task.items()} | {"data__task__train_size": 300}
    half = experiment(**small, train__epochs=0.5, train__steps=100_000)
    assert planned_steps(half, tmp_path / "data") is None
    prepared = prepare(half, tmp_path / "data")
    whole = planned_steps(experiment(**small, train__epochs=1.0, train__steps=10**6), prepared.directory)
    assert whole is not None and planned_steps(half, prepared.directory) == -(-whole // 2)
    assert [last_step(TrainConfig(epochs=epochs), 100) for epochs in (0.07, 0.071, 1e-9)] == [7, 8, 1]
    assert planned_steps(experiment(**small, train__epochs=9.0, train__steps=7), prepared.directory) == 7
    assert planned_steps(experiment(**small, train__steps=7), tmp_path / "nowhere") == 7


def test_wsd_can_end_at_another_update_before_it_decays(tmp_path):
    wsd = {"optimizer__schedule": "wsd", "optimizer__decay_fraction": 0.4}
    longer, shorter = (experiment(**wsd, train__steps=steps) for steps in (24, 20))
    folder = RunFolder(tmp_path / "run")
    (folder.checkpoints / "12").mkdir(parents=True)
    folder.record(longer, 24)
    assert folder.compare_run(shorter, lambda train: train.steps)
    (folder.checkpoints / "18").mkdir()
    with pytest.raises(BadInput, match="since update 14"):
        folder.compare_run(shorter, lambda train: train.steps)


def test_a_sweep_counts_epochs_once_the_data_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.sweeps.plan.time_update", lambda *_: Timed(1.0, 1.0))
    base = {**BASE, "train": {**BASE["train"], "steps": 100_000, "epochs": 0.5}}
    definition, folder = defined(base=base), SweepFolder(tmp_path)
    (config,) = definition.experiments.values()
    place = folder.data(config)
    assert "is not prepared" in plan(folder, definition, ["base"])
    prepare(config, place)
    told = plan(folder, definition, ["base"])
    counted = resolved.training_flops(config, planned_steps(config, folder.data(config)))
    assert (
        "is not prepared" not in told
        and count_text(counted) in told
        and counted < resolved.training_flops(config) / 1000
    )


def test_the_share_of_a_run_is_that_of_its_last_update(tmp_path):
    base = {**BASE, "train": {**BASE["train"], "steps": 100_000, "epochs": 0.5}}
    (run,) = SweepFolder(tmp_path).runs(defined(base=base))
    run.path.mkdir(parents=True)
    assert status_of(run).steps == 100_000  # as long as nothing is known
    run.folder.record(run.experiment, 19)
    (run.path / "metrics.jsonl").write_text('{"step": 19, "loss": 1.0, "seconds": 1.0}\n')
    run.record_attempt(state="running", host="another machine", pid=1)
    standing = status_of(run)
    assert (standing.steps, standing.step, standing.state) == (19, 19, "measuring")
