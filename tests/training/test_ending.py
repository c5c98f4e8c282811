"""What decides that a run ends."""

import pytest

from transformer_jax.config import TrainConfig
from transformer_jax.training.ending import Ending, ending


@pytest.mark.parametrize(
    ("step", "tokens", "validations", "why"),
    [
        (99, 999, 2, None),
        (100, 0, 0, "finished"),
        (100, 5000, 9, "finished"),
        (50, 1000, 0, "finished 1,000 target tokens"),
        (50, 1234, 9, "finished 1,234 target tokens"),
        (50, 999, 3, "finished: no better bleu in 3 validations"),
    ],
)
def test_a_run_ends_at_the_first_of_its_limits(step, tokens, validations, why):
    train = TrainConfig(steps=100, tokens=1000, patience=3, best_metric="bleu")
    assert ending(train, 100, step, tokens, validations) == (why and Ending(why))


def test_limits_that_are_not_set_never_end_a_run():
    assert ending(TrainConfig(), 100, 99, 10**12, 10**6) is None
