"""The compiled programs of a run: what is compiled ahead, what is waited for."""

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import jax
import numpy as np

from tests.support.small_runs import batches, experiment
from transformer_jax.training import compiled
from transformer_jax.training.compiled import CompiledRuns, Executables
from transformer_jax.update import sharding


def test_a_run_starts_from_given_parameters_and_its_sums_can_be_reset():
    config = experiment()
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    abstract = CompiledRuns([config], [lambda count: 1e-3], mesh).abstract_state
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.5, leaf.dtype), abstract.params)
    programs = CompiledRuns([config], [lambda count: 1e-3], mesh, params)
    state = programs.new_states()
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    state, outcome = programs.advance(state, sharding.place_batch(batches(1)[0], mesh))
    assert float(outcome.loss) > 0 and int(state.sums.updates) == 1
    reset = programs.reset_sums(state)
    assert {float(each) for each in jax.tree.leaves(reset.sums)} == {0.0}
    assert (int(reset.step), int(reset.updates)) == (1, 1)


def test_programs_compiled_ahead_are_those_that_are_used():
    """By threads; a shape that was not foreseen, or that no thread has begun, is compiled when it comes."""
    double = Executables(jax.jit(lambda batch: 2 * batch))
    with ThreadPoolExecutor(1) as pool:
        double.compile_ahead(pool, np.ones(4))
    for rows, compiled_now in ((4, 0), (2, 1), (4, 1)):
        np.testing.assert_array_equal(double(np.ones(rows)), np.full(rows, 2.0))
        assert double.jitted._cache_size() == compiled_now
    pool = ThreadPoolExecutor(2)
    with mock.patch.object(Executables, "_tracing", threading.Lock()) as tracing, tracing:
        ahead = [double.compile_ahead(pool, np.ones(rows)) for rows in range(11, 23)]
        pool.shutdown(wait=False, cancel_futures=True)
    assert sum(program.cancelled() for program in ahead) >= 10
    np.testing.assert_array_equal(double(np.ones(22)), np.full(22, 2.0))


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

    monkeypatch.setattr(compiled, "time", mock.Mock(perf_counter=lambda: now))
    config = experiment()
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    programs = CompiledRuns([config], [lambda count: 1e-3], mesh)
    batch = sharding.place_batch(batches(1)[0], mesh)
    programs.compile_ahead(Slow(), [batch])
    state, _ = programs.advance(programs.new_states(), batch)
    assert (now, programs.waited, programs.clock()) == (60.0, 60.0, 0.0)
    now += 5  # a step
    programs.advance(state, batch)
    assert (now, programs.clock()) == (65.0, 5.0)
