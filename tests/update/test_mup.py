"""muP against its rules as Yang et al. 2022 have them in table 8, and as the standard parametrisation at the base."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, assert_close, numbers_for
from tests.support.small_runs import Trainer, batches, experiment, params_of, worst_difference
from transformer_jax import ModelConfig, Transformer
from transformer_jax.update.mup import rate_multiplier
from transformer_jax.update.schedule import make_schedule

# Twice the base's width everywhere, and a feed-forward layer that grows by three.
WIDER = {"model__d_model": 32, "model__d_ff": 96, "model__mup_base_d_model": 16, "model__mup_base_d_ff": 32}


@pytest.mark.parametrize("changes", [{}, {"model__positions": "relative", "model__mup_base_d_ff": 32}])
def test_at_the_base_widths_it_is_the_standard_parametrisation(changes):
    standard = {name: value for name, value in changes.items() if "mup" not in name}
    ours, theirs = (
        Trainer(experiment(optimizer__learning_rate=None, **each))
        for each in ({**changes, "model__mup_base_d_model": 16}, standard)
    )
    states = [each.train(batches(2), each.init()) for each in (ours, theirs)]
    assert worst_difference(*states)[0] == 0


def test_each_parameters_first_update_and_initial_size_follow_table_8():
    """Adam's first update is the learning rate, times the factor; Xavier's variance is 2 / (fan_in + fan_out)."""
    run = Trainer(experiment(**WIDER, model__positions="relative", model__tie_embeddings="none"))
    before = params_of(run.init())
    rate = float(make_schedule(run.config.optimizer, 16, 10)(0))
    after = params_of(run.train(batches(1), run.init()))
    growth = {32: 2, 96: 3}
    for name, array in before.items():
        moved = np.abs(after[name] - array)
        if name.endswith("kernel"):
            fan_in, fan_out = array.shape
            base = fan_in / growth[fan_in], fan_out / growth[fan_out]
            variance, factor = 2 / sum(base) / growth[fan_in], 1 / growth[fan_in]
        else:  # tables, biases and norms: as at the base, where 33 distances have vectors of d_k 4
            variance, factor = 2 / (33 + 4) if "positions" in name else 1 / 16, 1.0
        if array.ndim == 2:
            assert array.std() == pytest.approx(variance**0.5, rel=0.1), name
        assert moved.max() == pytest.approx(rate * factor, rel=0.01), name


def test_scores_embeddings_and_logits_are_scaled_as_by_hand():
    """A standard model with the factors in its matrices computes the same: d_k 8 from 4, d_model 32 from 16."""
    size = {"vocab_size": 20, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 64}
    standard = ModelConfig(**size, num_heads=4, tie_embeddings="none", positions="relative")
    mup = dataclasses.replace(standard, mup_base_d_model=16)
    shapes = jax.eval_shape(Transformer(mup).init, jax.random.key(0), SOURCE, TARGET)
    variables = numbers_for(shapes)

    def factor(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        by = {"query/kernel": 2**-0.5, "output_embedding/table": 0.5, "_embedding/table": 2**-0.5}
        return leaf * next((number for end, number in by.items() if name.endswith(end)), 1.0)

    by_hand = jax.tree_util.tree_map_with_path(factor, variables)
    expected = Transformer(standard).apply(by_hand, SOURCE, TARGET)
    assert_close(Transformer(mup).apply(variables, SOURCE, TARGET), expected)
    fused = dataclasses.replace(mup, positions="none", attention_implementation="jax")
    plain = dataclasses.replace(fused, attention_implementation="plain")
    assert_close(*(Transformer(each).apply(variables, SOURCE, TARGET) for each in (fused, plain)))


def test_the_default_learning_rate_is_that_of_the_base():
    run = experiment(**WIDER, optimizer__learning_rate=None)
    assert run.model.base_d_model == 16 and experiment().model.base_d_model == run.model.mup_base().d_model == 16


@pytest.mark.parametrize(
    ("shape", "base", "multiple"),
    [((8, 4), (2, 4), 0.25), ((8, 4), (8, 1), 1.0), ((8, 2, 4), (2, 2, 1), 0.25), ((2, 4, 8), (2, 1, 2), 0.25)],
)
def test_custom_parameters_follow_from_how_their_shapes_grew(shape, base, multiple, monkeypatch):
    """The last axis is fan_out, the others fan_in."""
    shapes = {True: {"custom": base}, False: {"custom": shape}}
    monkeypatch.setattr("transformer_jax.update.mup._shapes", lambda model: shapes[model.mup_base_d_model is None])
    assert rate_multiplier(ModelConfig(mup_base_d_model=128))("custom", shape) == multiple
