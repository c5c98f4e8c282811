"""The optimizer (section 5.3): Adam by hand, others, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.config import OptimizerConfig
from transformer_jax.errors import BadInput
from transformer_jax.runs.checkpoint import digests, refuse_without_digest
from transformer_jax.update.optimizer import make_optimizer

PARAMS = {"kernel": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "bias": jnp.array([1.0, -1.0])}
GRADIENTS = {"kernel": jnp.array([[0.1, 0.2], [-0.3, 0.4]]), "bias": jnp.array([0.5, -0.6])}


def config(**changes):
    return dataclasses.replace(OptimizerConfig(), **changes)


def updates(settings, steps=1, rate=0.1, multiplier=None):
    """The parameters and the optimizer's state after updates with the same gradients."""
    optimizer = make_optimizer(settings, lambda count: rate, multiplier)

    @jax.jit
    def run(params):
        state = optimizer.init(params)
        for _ in range(steps):
            changes, state = optimizer.update(GRADIENTS, state, params)
            params = optax.apply_updates(params, changes)
        return params, state

    return run(PARAMS)


def updated(settings, steps=1, rate=0.1):
    return updates(settings, steps, rate)[0]


def test_adam_is_the_papers():
    """Kingma and Ba's algorithm 1 with beta2 = 0.98 and epsilon = 1e-9, written out."""
    first = second = 0.0
    params = {name: np.asarray(array, np.float64) for name, array in PARAMS.items()}
    for name, gradient in GRADIENTS.items():
        gradient = np.asarray(gradient, np.float64)
        first = second = 0.0
        for t in (1, 2, 3):
            first = 0.9 * first + 0.1 * gradient
            second = 0.98 * second + 0.02 * gradient**2
            params[name] -= 0.1 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.98**t)) + 1e-9)
    ours = updated(OptimizerConfig(), steps=3)
    for name, array in params.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-5)


def test_weight_decay_is_decoupled_and_spares_vectors():
    plain, decayed = updated(config(), rate=0.1), updated(config(weight_decay=0.5), rate=0.1)
    np.testing.assert_allclose(decayed["kernel"], plain["kernel"] - 0.1 * 0.5 * PARAMS["kernel"], rtol=1e-6)
    np.testing.assert_array_equal(decayed["bias"], plain["bias"])
    named = updated(config(name="adamw", weight_decay=0.5), rate=0.1)
    np.testing.assert_array_equal(named["kernel"], decayed["kernel"])


@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_without_weight_decay_nothing_decays(name):
    """By default optax's decay everything, norms and biases too."""
    optimizer = make_optimizer(config(name=name), lambda count: 0.1)
    changes, _ = optimizer.update(jax.tree.map(jnp.zeros_like, PARAMS), optimizer.init(PARAMS), PARAMS)
    assert not any(np.any(change) for change in jax.tree.leaves(changes))
    asked = make_optimizer(config(name=name, arguments=("weight_decay=0.5",)), lambda count: 0.1)
    changes, _ = asked.update(jax.tree.map(jnp.zeros_like, PARAMS), asked.init(PARAMS), PARAMS)
    assert all(np.any(change) for change in jax.tree.leaves(changes))


def test_a_parameters_learning_rate_can_be_multiplied():
    """By its path and shape: as if it had been trained with that learning rate, and the same weight decay an update."""
    settings, stronger = (config(weight_decay=decay, clip_norm=0.1) for decay in (0.3, 1.0))
    scaled, _ = updates(settings, 3, multiplier=lambda path, shape: 0.3 if (path, shape) == ("kernel", (2, 2)) else 1.0)
    np.testing.assert_allclose(scaled["kernel"], updated(stronger, 3, rate=0.03)["kernel"], rtol=1e-6)
    np.testing.assert_array_equal(scaled["bias"], updated(settings, 3)["bias"])


def test_gradients_longer_than_clip_norm_are_shortened():
    norm = float(optax.tree.norm(GRADIENTS))
    sgd = config(name="sgd", beta1=0.9)
    for clip, factor in ((norm / 4, 0.25), (norm * 4, 1.0)):
        moved = PARAMS["bias"] - updated(dataclasses.replace(sgd, clip_norm=clip))["bias"]
        np.testing.assert_allclose(moved, 0.1 * factor * GRADIENTS["bias"], rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["sgd", "adamw", "lion", "adafactor", "lamb", "rmsprop", "muon", "ademamix", "noisy_sgd", "schedule_free_sgd"],
)
def test_any_optimizer_of_optax_by_its_name(name):
    """It updates, and a checkpoint can take the digest of all it remembers."""
    moved, state = updates(config(name=name))
    assert not np.array_equal(moved["kernel"], PARAMS["kernel"])
    assert digests(state) is not None


def test_a_checkpoint_can_hold_the_state_of_every_optimizer_of_optax():
    with pytest.raises(BadInput) as problem:
        make_optimizer(config(name="??"), lambda count: 0.1)
    names = str(problem.value).partition("there are: ")[2].split(", ")
    for name in names:
        refuse_without_digest(jax.eval_shape(make_optimizer(config(name=name), lambda count: 0.1).init, PARAMS))
    assert len(names) > 30 and {"dog", "optimistic_adam_v2", "optimistic_gradient_descent"} <= {*names}


def test_further_arguments_reach_it():
    momentum = updated(config(name="sgd", arguments=("momentum=0.5", "nesterov=true")), steps=2)
    trace = {name: 0.5 * gradient + gradient for name, gradient in GRADIENTS.items()}
    moved = 0.1 * (1.5 * GRADIENTS["bias"]) + 0.1 * (GRADIENTS["bias"] + 0.5 * trace["bias"])
    np.testing.assert_allclose(PARAMS["bias"] - momentum["bias"], moved, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "adamm"}, "optimizer.name = 'adamm': optax has no such optimizer; did you mean adam"),
        ({"name": "chain"}, "optimizer.name = 'chain': optax has no such optimizer"),
        *(
            ({"name": name}, f"has no such optimizer; did you mean {right}?")
            for name, right in (
                ("Muon", "muon"),
                ("muonn", "muon"),
                ("schedule_free_adam", "schedule_free_adamw"),
                ("schedulefree_adamw", "schedule_free_adamw"),
            )
        ),
        ({"name": "??"}, "there are: adabelief,"),
        ({"name": "??"}, ", schedule_free_adamw"),
        ({"name": "sgd", "beta2": 0.5}, "optimizer.beta2 = 0.5: optimizer.name = 'sgd' has none"),
        ({"name": "sgd", "weight_decay": 0.1}, "optimizer.weight_decay = 0.1: 'sgd' has none"),
        ({"arguments": ("nesterow=true",)}, "'nesterow=true': adam has no such argument; did you mean"),
        ({"name": "schedule_free_sgd", "arguments": ("power=1",)}, "there are: weight_decay, weight_lr_power"),
        ({"arguments": ("nesterov",)}, "optimizer.arguments: 'nesterov': must be NAME=VALUE"),
        ({"arguments": ("b1=0.5",)}, "optimizer.arguments: 'b1=0.5': is set by optimizer.beta1"),
        ({"arguments": ("learning_rate=1",)}, "optimizer.arguments: 'learning_rate=1'"),
        ({"name": "lbfgs"}, "optimizer.name = 'lbfgs': cannot be used here: it needs values of the loss"),
        ({"arguments": ("nesterov=true", "nesterov=true")}, "'nesterov=true': nesterov is set twice"),
    ],
)
def test_refused(changes, told):
    with pytest.raises(BadInput) as problem:
        make_optimizer(config(**changes), lambda count: 0.1)
    assert told in str(problem.value) and "scale_by_" not in str(problem.value)
