"""The train step compiled from shapes alone."""

from tests.support.small_runs import experiment
from transformer_jax.planning.compiled import compiled_step, divisible, memory


def test_the_step_is_compiled_and_its_memory_counted():
    config = experiment(train__accumulate=3)
    assert divisible(config, 4) % 3 == 0 and divisible(config, 4) >= 4
    config = experiment()
    small, large = (
        memory(compiled_step(config, rows, 8, 8)) for rows in (divisible(config, 8), divisible(config, 512))
    )
    assert 0 < small.temporary < large.temporary and small.peak == small.state + small.temporary
