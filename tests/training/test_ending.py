"""What decides that a run ends."""

import pytest

from transformer_jax.config import TrainConfig
from transformer_jax.training.ending import Ending, Validations, ending, improvement_at_the_end

FLAT = (
    "finished: the validation loss improved by 0.4 % over the last fifth of the updates "
    "(a lower train.until_flat trains on)"
)


@pytest.mark.parametrize(
    ("step", "tokens", "validations", "why"),
    [
        (99, 999, (2, 0.006), None),
        (100, 0, (0, None), "finished"),
        (100, 5000, (9, 0.0), "finished"),
        (50, 1000, (0, None), "finished 1,000 target tokens"),
        (50, 1234, (9, 0.0), "finished 1,234 target tokens"),
        (50, 999, (3, 0.0), "finished: no better bleu in 3 validations (a higher train.patience trains on)"),
        (50, 999, (2, 0.004), FLAT),
    ],
)
def test_a_run_ends_at_the_first_of_its_limits(step, tokens, validations, why):
    train = TrainConfig(
        steps=100, tokens=1000, patience=3, best_metric="bleu", until_flat=0.005, eval_every=5, keep_best=0
    )
    assert ending(train, 100, step, tokens, Validations(*validations)) == (why and Ending(why))


def test_limits_that_are_not_set_never_end_a_run():
    assert ending(TrainConfig(), 100, 99, 10**12, Validations(10**6, -1.0)) is None


def line(first, last, at, slope=-0.01, luck=None):
    """Losses that fall by 1 % of the last one in every update, with one validation that was lucky."""
    return {step: 1 + slope * (step - last) + (luck or {}).get(step, 0.0) for step in range(first, last + 1, at)}


@pytest.mark.parametrize(
    ("losses", "warmup", "improvement"),
    [
        ({}, 0, None),
        (line(1, 19, 1), 0, None),  # four validations, of updates 16 to 19
        (line(1, 20, 1), 0, 0.04 / 1.02),  # updates 16 to 20, over which the mean is 1.02
        (line(1, 20, 1), 16, 0.04 / 1.02),
        (line(1, 20, 1), 17, None),
        (line(10, 200, 10), 0, 0.4 / 1.2),
        (line(1, 100, 1, slope=0.01), 0, -0.2 / 0.9),  # it grows
        (line(1, 100, 1, 0.0) | {1: 50.0, 79: 9.0}, 0, 0.0),  # what came before says nothing
        (line(1, 20, 1, luck={18: -0.5}), 0, 0.04 / 0.92),  # of a new best in the middle, only the mean
    ],
)
def test_the_improvement_over_the_last_fifth_of_the_updates(losses, warmup, improvement):
    assert improvement_at_the_end(losses, warmup) == (
        None if improvement is None else pytest.approx(improvement, abs=1e-12)
    )
