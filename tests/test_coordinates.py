"""The coordinate check: sizes that are those of the activations, and a verdict that follows from them."""

import functools

import jax
import numpy as np
import pytest

from experiments.coordinates import Sizes, activations, coordinate_check, random_batch, verdict, widened
from tests.support.small_runs import experiment
from transformer_jax.model.transformer import Transformer

WIDTHS = [8, 32]


@pytest.mark.drill
def test_layers_scores_and_logits_are_measured_before_and_after_each_update():
    """Without muP, at a high rate, so that the widths differ."""
    config = experiment(optimizer__learning_rate=0.03)
    sizes = coordinate_check(config, WIDTHS, [random_batch(config)] * 2)
    attentions = ("encoder self-attention", "decoder self-attention", "decoder cross-attention")
    scores = [f"{attention} scores" for attention in attentions]
    assert set(sizes) == {"encoder layer 1", "decoder layer 1", *scores, "logits"}
    assert list(sizes)[:2] == ["encoder layer 1", "decoder layer 1"] and list(sizes)[-1] == "logits"
    for values_WU, changes_WU in sizes.values():
        assert values_WU.shape == changes_WU.shape == (2, 3)
        assert (values_WU > 0).all() and (changes_WU[:, 0] == 0).all() and (changes_WU[:, 1:] > 0).all()
    assert verdict(sizes, WIDTHS).startswith("not flat: ")

    # Sizes are means of absolute values where there are tokens.
    wide, batch = widened(config, 32), random_batch(config)
    assert (wide.model.d_model, wide.model.d_ff, wide.model.num_heads, wide.model.key_size) == (32, 64, 4, 8)
    params = jax.jit(Transformer(wide.model).init)(jax.random.key(0), batch.source[:1], batch.source[:1])["params"]
    found = jax.jit(functools.partial(activations, wide))
    logits = np.asarray(found(params, batch)["logits"])
    np.testing.assert_allclose(sizes["logits"].values_WU[1, 0], np.abs(logits).mean(), rtol=1e-4)
    short = found(params, batch._replace(source=np.where(np.arange(16) < 5, batch.source, 0)))
    assert (np.asarray(short["encoder layer 1"])[:, 5:] == 0).all()
    scores_BHTS = np.asarray(short["encoder self-attention scores"])
    assert (scores_BHTS[..., 5:] == 0).all() and (scores_BHTS[:, :, 5:] == 0).all()
    assert np.abs(scores_BHTS).max() > 0.1
    np.testing.assert_allclose(scores_BHTS.sum(-1), 0, atol=1e-4)  # their mean is their zero


def sizes_growing(layer=0.0, change=0.0, scores=0.0):
    widths = np.array([[64.0], [128.0], [256.0]])
    powers = {"encoder layer 1": (layer, change), "encoder self-attention scores": (scores, scores)}
    return {name: Sizes(widths**value, widths**other) for name, (value, other) in powers.items()}


@pytest.mark.parametrize(
    ("powers", "said"),
    [
        ({}, "flat: nothing grows with the width"),
        ({"scores": -0.5}, "flat: nothing"),
        ({"change": 1.0}, "not flat: encoder layer 1 grow with the width, as its power 1.00"),
        ({"scores": 0.5}, "not flat: encoder self-attention scores grow with the width, as its power 0.50"),
        ({"change": -0.5}, "not flat: the updates of encoder layer 1 vanish with the width, as its power -0.50"),
        ({"layer": np.nan}, "diverged: encoder layer 1 is not finite"),
    ],
)
def test_the_verdict_is_that_of_the_steepest(powers, said):
    assert verdict(sizes_growing(**powers), [64, 128, 256]).startswith(said)
