"""The programs of several runs: their numbers are those of each run alone."""

import jax
import numpy as np
import pytest

from tests.support.small_runs import Trainer, batches, experiment, worst_difference
from transformer_jax.errors import BadInput
from transformer_jax.model.layers import FeedForward
from transformer_jax.training.together_programs import VmappedSteps
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

# As for any reordering of float32 sums over ten updates by Adam (test_step.py).
WITHIN = 2e-5


def experiments(*changes, **common):
    return [experiment(**{**common, **own}) for own in changes]


def together(configs, devices=1):
    mesh = sharding.make_mesh(configs[0].mesh, jax.devices()[:devices])
    schedules = [make_schedule(c.optimizer, c.model.d_model, c.train.steps) for c in configs]
    return VmappedSteps(configs, schedules, mesh)


def trained(programs, batches, state=None):
    state = programs.new_state() if state is None else state
    for batch in batches:
        state, _ = programs.step(state, sharding.place_batch(batch, programs.mesh))
    return state


@pytest.mark.slow
def test_ten_updates_are_those_of_a_run_alone():
    """Parameters and what is added up for the log, also where the state is taken apart and joined again half-way, where
    one of the runs diverges, and where a parameter group has a peak of its own; what is taken out lies as it would
    alone. On a mesh that is divided two ways."""
    changes = [
        {"model__dropout": 0.0, "optimizer__schedule": "cosine", "optimizer__warmup_steps": 2},
        {
            "seed": 2**32 - 1,
            "model__dropout": 0.3,
            "model__attention_dropout": 0.2,
            "train__label_smoothing": 0.0,
            "train__z_loss": 0.1,
            "optimizer__beta2": 0.9,
            "optimizer__learning_rate": 1e-2,
            "optimizer__weight_decay": 0.01,
            "optimizer__clip_norm": 0.1,
        },
        {"seed": 2, "optimizer__learning_rate": 1e30},
    ]
    usual = {"optimizer__weight_decay": 0.1, "optimizer__clip_norm": 1.0, "model__mup_base_d_model": 8}
    usual["optimizer__groups"] = (("table", {"learning_rate_factor": 0.3}),)
    divided = {"mesh__fsdp": 2, "mesh__tensor": 2, "train__accumulate": 2}
    devices, configs, data = 4, experiments(*changes, **usual, **divided), batches()
    programs = together(configs, devices)
    states = trained(programs, data[:5])
    states = programs.join([programs.take(states, run) for run in range(len(configs))])
    states = trained(programs, data[5:], states)
    alone = Trainer(configs[1], devices)
    ours, theirs = programs.take(states, 1), alone.train(data, alone.init())
    assert worst_difference(ours, theirs) < (WITHIN,)
    for a, b in zip(jax.tree.leaves(ours.sums), jax.tree.leaves(theirs.sums), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    places = [[leaf.sharding for leaf in jax.tree.leaves(state)] for state in (ours, alone.plan)]
    assert places[0] == places[1]
    assert worst_difference(programs.take(states, 0), programs.take(states, 1)) > (0.01,), "a test of nothing"
    assert (np.asarray(states.bad_in_a_row) > 3).tolist() == [False, False, True]

    # The sums of some runs begin again, as one that ends between two lines of metrics takes nothing from the others.
    left = programs.reset_sums(states, kept=[1])
    for before, after in zip(jax.tree.leaves(states.sums), jax.tree.leaves(left.sums), strict=True):
        assert after[0] == 0 and after[1] == before[1] != 0
        assert after.sharding.is_equivalent_to(before.sharding, after.ndim)


class KnowsItsRate(FeedForward):
    """A custom module that is another program for each rate."""

    dropout: float = 0.0

    def __call__(self, x_BTD, deterministic=True):
        return x_BTD if self.dropout > 0.15 else super().__call__(x_BTD, deterministic)


def test_a_module_that_must_know_a_number_is_refused():
    parts = {"feed_forward": KnowsItsRate}
    configs = experiments(*({"model__activation_dropout": rate} for rate in (0.1, 0.2)), model__parts=parts)
    with pytest.raises(BadInput, match=r"these runs differ in model.activation_dropout, seed, but a part of the model"):
        trained(together(configs), [])
