"""Training against torch: one and ten updates from the same weights, as golden values (tests/golden says how made)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.support.places import GOLDEN
from tests.support.small_runs import params_of, trainer
from transformer_jax.data.batching import Batch

WITHIN = 1e-5  # of max|a - b| / max|b|, each parameter for itself; and of a parameter that is nearly zero, absolutely
SIZE = {
    "model__vocab_size": 17,
    "model__d_model": 16,
    "model__d_ff": 24,
    "model__num_heads": 4,
    "model__num_encoder_layers": 1,
    "model__num_decoder_layers": 1,
    "optimizer__learning_rate": None,  # equation 3's
    "optimizer__warmup_steps": 40,
    "train__steps": 100,
    "train__label_smoothing": 0.1,
}


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "torch_training.npz") as file:
        return {name: file[name] for name in file.files}


def weights(golden, step):
    return {name.removeprefix(f"{step}/"): array for name, array in golden.items() if name.startswith(f"{step}/")}


def test_updates_equal_torchs(golden):
    run = trainer(**SIZE)
    state = run.new()
    begin = weights(golden, 0)
    assert params_of(state).keys() == begin.keys()
    state = state.replace(params=jax.tree.map(jnp.asarray, traverse_util.unflatten_dict(begin, sep="/")))
    for i in range(10):
        names = ("source", "target_input", "target_output")
        state = run.train([Batch(*(golden[name][i] for name in names))], state)
        assert float(run.metrics.loss) == pytest.approx(golden["losses"][i], rel=WITHIN)
        ours = params_of(state)
        for name, theirs in weights(golden, i + 1).items():  # stored for the first and the last update
            assert np.abs(theirs - begin[name]).max() > 5e-4, "a test of nothing"
            assert np.abs(ours[name] - theirs).max() <= WITHIN * max(np.abs(theirs).max(), 1.0), name
    assert weights(golden, 1) and weights(golden, 10)
