"""The learning rate (section 5.3): schedules against their formulas, and where two of them are the same."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import OptimizerConfig
from transformer_jax.update.optimizer import make_optimizer
from transformer_jax.update.schedule import inverse_sqrt_schedule, make_schedule


def config(**changes):
    return dataclasses.replace(OptimizerConfig(), **changes)


def rates(schedule, steps):
    """At each update, counted from 1 as in the paper."""
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.asarray(steps) - 1))


STEPS = [1, 2, 100, 3999, 4000, 4001, 20_000, 100_000]


def test_equation_3():
    formula = [512**-0.5 * min(step**-0.5, step * 4000**-1.5) for step in STEPS]
    np.testing.assert_allclose(rates(inverse_sqrt_schedule(512), STEPS), formula, rtol=1e-6)
    np.testing.assert_allclose(rates(make_schedule(OptimizerConfig(), 512, 100_000), STEPS), formula, rtol=1e-6)
    np.testing.assert_allclose(rates(inverse_sqrt_schedule(512, scale=2.0), STEPS), 2 * np.array(formula), rtol=1e-6)


@pytest.mark.parametrize(("arguments", "message"), [((512, 0), "warmup_steps = 0"), ((-512,), "d_model = -512")])
def test_equation_3_needs_a_width_and_a_warmup(arguments, message):
    with pytest.raises(ValueError, match=f"{message}: must be above 0"):
        inverse_sqrt_schedule(*arguments)


def test_the_papers_peak():
    """Table 3's base model: 7.0e-4 at step 4000."""
    made = rates(inverse_sqrt_schedule(512), range(3990, 4010))
    assert max(made) == pytest.approx(6.99e-4, rel=1e-3) == made[10]


@pytest.mark.parametrize("warmup", [0, 1, 10])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "wsd"])
def test_the_other_schedules(schedule, warmup):
    steps, peak, final = 50, 3e-3, 0.1
    stable = steps - round(0.2 * (steps - warmup))  # of wsd: the updates before the last fifth of those after warmup

    def formula(step):
        if step < warmup:
            return peak * step / warmup
        done = (step - warmup) / (steps - warmup)
        if schedule == "constant":
            return peak
        if schedule == "wsd":  # Hu et al. (2024), with a linear decay
            done = max(step - stable, 0) / (steps - stable)
        if schedule in ("linear", "wsd"):
            return peak * (1 - (1 - final) * done)
        return peak * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)

    settings = config(schedule=schedule, learning_rate=peak, warmup_steps=warmup, final_fraction=final)
    settings = dataclasses.replace(settings, decay_fraction=0.2) if schedule == "wsd" else settings
    made = rates(make_schedule(settings, 512, steps), range(1, steps + 1))
    np.testing.assert_allclose(made, [formula(step) for step in range(1, steps + 1)], rtol=1e-5)
    assert made[-1] == pytest.approx(peak if schedule == "constant" else peak * final)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "linear", "constant", "wsd"])
def test_warmup_rises_in_equal_parts_to_the_peak(schedule):
    made = rates(make_schedule(config(schedule=schedule, learning_rate=0.5, warmup_steps=4), 8, 9), range(1, 10))
    np.testing.assert_allclose(made[:4], [0.125, 0.25, 0.375, 0.5])
    assert made.max() == made[3]


def test_the_schedule_counts_updates_under_jit():
    """The rate inside the optimizer is the schedule's own at the count of updates made."""
    schedule = make_schedule(config(schedule="linear", learning_rate=1.0, warmup_steps=2), 8, 6)
    optimizer = make_optimizer(config(name="sgd"), schedule)
    step = jax.jit(lambda state: optimizer.update({"w": jnp.ones(())}, state, {"w": jnp.ones(())}))
    state, moved = optimizer.init({"w": jnp.ones(())}), []
    for _ in range(6):
        changes, state = step(state)
        moved.append(-float(changes["w"]))
    np.testing.assert_allclose(moved, rates(schedule, range(1, 7)), rtol=1e-6)


@pytest.mark.parametrize("name", ["inverse_sqrt", "cosine", "linear", "constant", "wsd"])
def test_more_updates_than_int32_counts_are_no_reason_to_fail(name):
    """train.steps = 10^12, for a run that train.tokens or train.hours ends; linear could not be computed."""
    config = OptimizerConfig(schedule=name, learning_rate=0.1, warmup_steps=4)
    schedule = make_schedule(config, 16, 10**12)
    assert float(schedule(jnp.int32(3))) == pytest.approx(0.1)
    assert 0 < float(schedule(jnp.int32(10))) <= float(schedule(jnp.int32(3)))


@pytest.mark.parametrize("warmup", [0, 10])
def test_wsd_with_another_end_is_the_same_until_one_of_them_decays(warmup):
    settings = config(schedule="wsd", warmup_steps=warmup, learning_rate=1.0, decay_fraction=0.25)
    until = settings.same_until(50, 90)
    steps = list(range(1, 51))
    short, long = (rates(make_schedule(settings, 64, end), steps) for end in (50, 90))
    np.testing.assert_array_equal(short[:until], long[:until])
    assert short[until] < long[until] and warmup < until == settings.same_until(90, 50)
    for schedule in ("cosine", "linear"):
        assert config(schedule=schedule, warmup_steps=warmup).same_until(50, 90) == 0
