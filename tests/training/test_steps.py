"""The programs of one run: the state at its start, and interval sums that start again."""

import jax
import numpy as np

from tests.support.small_runs import batches, experiment
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.update import sharding


def test_a_run_starts_from_given_parameters_and_its_sums_can_be_reset():
    config = experiment()
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    abstract = CompiledSteps([config], [lambda count: 1e-3], mesh).abstract_state
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.5, leaf.dtype), abstract.params)
    programs = CompiledSteps([config], [lambda count: 1e-3], mesh, params)
    state = programs.new_state()
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    state, metrics = programs.step(state, sharding.place_batch(batches(1)[0], mesh))
    assert float(metrics.loss) > 0 and int(state.sums.steps) == 1
    reset = programs.reset_sums(state)
    assert {float(each) for each in jax.tree.leaves(reset.sums)} == {0.0}
    assert (int(reset.step), int(reset.updates)) == (1, 1)
