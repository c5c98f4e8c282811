"""The train step compiled from shapes alone."""

from tests.support.small_runs import experiment
from transformer_jax.planning.compiled import compiled_step, divisible, memory


def test_the_step_is_compiled_and_its_memory_counted():
    config = experiment(train__accumulate=3)
    assert divisible(config, 4) % 3 == 0 and divisible(config, 4) >= 4
    needed = memory(compiled_step(experiment(), 8, 8, 8))
    assert needed.state > 0 < needed.temporary and needed.peak == needed.state + needed.temporary
