"""Schedule-free AdamW by its definition, and a run: evaluated and exported at the average, and resumed."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support.small_runs import experiment
from tests.support.training_runs import metrics, train_here, weights
from transformer_jax.config import OptimizerConfig
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput
from transformer_jax.experiment import try_out
from transformer_jax.runs.checkpoint import Checkpoints
from transformer_jax.runs.export import flat
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.setup import RunSetup
from transformer_jax.update.optimizer import make_optimizer
from transformer_jax.update.schedule import make_schedule
from transformer_jax.update.schedule_free import evaluated
from transformer_jax.update.step import abstract_state, make_eval_step

NAME = {"name": "schedule_free_adamw", "schedule": "constant"}
PARAMS = {"kernel": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "bias": jnp.array([1.0, -1.0])}


def test_schedule_free_adamw_is_the_papers():
    """Defazio et al. (2024), algorithm 1, with the gradient of the sum of fourth powers over four, after clipping."""
    beta1, beta2, epsilon, decay, rate, warmup, clip = 0.8, 0.9, 1e-9, 0.3, 0.1, 4, 2.0
    settings = OptimizerConfig(
        **NAME, beta1=beta1, beta2=beta2, learning_rate=rate, warmup_steps=warmup, weight_decay=decay, clip_norm=clip
    )
    optimizer = make_optimizer(settings, make_schedule(settings, 8, 20))

    @jax.jit
    def step(params, state):
        changes, state = optimizer.update(jax.tree.map(lambda y: y**3, params), state, params)
        return optax.apply_updates(params, changes), state

    params, state = PARAMS, optimizer.init(PARAMS)
    x, v, squares = {name: np.asarray(leaf, np.float64) for name, leaf in PARAMS.items()}, {}, 0.0
    z, decays = dict(x), {"kernel": decay, "bias": 0.0}
    for t in range(1, 8):
        y = {name: (1 - beta1) * z[name] + beta1 * x[name] for name in x}
        norm = np.sqrt(sum(np.sum(leaf**6) for leaf in y.values()))
        gamma = rate * min(1, t / warmup)
        squares += gamma**2
        for name in x:
            gradient = y[name] ** 3 * min(1, clip / norm)
            v[name] = beta2 * v.get(name, 0) + (1 - beta2) * gradient**2
            direction = gradient / (np.sqrt(v[name] / (1 - beta2**t)) + epsilon)
            z[name] = z[name] - gamma * (direction + decays[name] * y[name])
            x[name] = (1 - gamma**2 / squares) * x[name] + gamma**2 / squares * z[name]
        params, state = step(params, state)
    for name, leaf in evaluated(params, state).items():
        np.testing.assert_allclose(leaf, x[name], rtol=1e-4)
        np.testing.assert_allclose(params[name], (1 - beta1) * z[name] + beta1 * x[name], rtol=1e-4)
        assert not np.allclose(leaf, params[name], rtol=1e-3)


def test_another_optimizer_is_evaluated_with_what_it_trains():
    optimizer = make_optimizer(OptimizerConfig(clip_norm=1.0), lambda count: 0.1)
    assert evaluated(PARAMS, optimizer.init(PARAMS)) is PARAMS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "cosine"}, "optimizer.schedule = cosine: schedule_free_adamw averages in place of a schedule"),
        ({"beta1": 0.0}, "optimizer.beta1 = 0: schedule_free_adamw takes gradients at beta1 x"),
        ({"arguments": ("weight_lr_power=two",)}, "optimizer.arguments: weight_lr_power=two: must be a number"),
        (
            {"groups": ("table: name=adam",)},
            "name=adam beside optimizer.name = schedule_free_adamw: all are schedule-free",
        ),
        ({"name": "adam", "groups": ("table: name=schedule_free_sgd",)}, "all are schedule-free, or none is"),
    ],
)
def test_what_is_refused_in_one_line(changes, message):
    config = experiment(**{f"optimizer__{name}": value for name, value in {**NAME, **changes}.items()})
    with pytest.raises(BadInput) as problem:
        try_out(config)
    assert message in str(problem.value) and "\n" not in str(problem.value)


@pytest.mark.slow
def test_a_run_is_evaluated_at_the_average_and_resumed_from_what_it_averages(tmp_path):
    resumed, straight = tmp_path / "resumed", tmp_path / "straight"
    usual = [f"optimizer.{name}={value}" for name, value in NAME.items()] + ["optimizer.warmup_steps=0"]
    train_here(straight, *usual, "train.steps=12")
    for steps in (6, 12):
        train_here(resumed, *usual, f"train.steps={steps}")
    ours, theirs = weights(resumed), weights(straight)
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array)

    folder, config = RunFolder(straight), RunFolder(straight).load_config()
    inputs = RunSetup(config, Prepared.open(folder.data(config)), has_evaluators=False)
    mesh, schedule = inputs.mesh, inputs.schedule(config)
    plan = abstract_state(config, make_optimizer(config.optimizer, schedule), mesh)
    state, _ = Checkpoints(folder.checkpoints, read_only=True).restore(12, plan)
    y, z = flat(state.params), flat(state.optimizer.z)
    for name, x in theirs.items():
        np.testing.assert_allclose(0.9 * x + 0.1 * np.asarray(z[name]), y[name], atol=1e-6)
    evaluate = make_eval_step(config, mesh)
    losses = [
        float(sums.loss / sums.weight)
        for sums in (inputs.validation_sums(evaluate, params) for params in (state.evaluated_params, state.params))
    ]
    assert metrics(straight)[-1]["valid_loss"] == pytest.approx(losses[0], rel=1e-6)
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)
