"""Learning rates and optimizers (section 5.3): each by its formula or its authors' definition, or against optax."""

import dataclasses
import inspect
import math
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support.small_models import SOURCE, TARGET, assert_close, numbers_for, small
from tests.support.small_runs import experiment
from transformer_jax import ModelConfig, Transformer
from transformer_jax.config import ADAM_FAMILY, OptimizerConfig
from transformer_jax.errors import BadInput
from transformer_jax.experiment import try_out
from transformer_jax.model.transformer import abstract_params
from transformer_jax.model_config import MUP_OPTIMIZERS
from transformer_jax.runs.checkpoint import digests
from transformer_jax.update.optimizer import (
    HIDDEN,
    averaged_params,
    inverse_sqrt_schedule,
    make_schedule,
    mup_rate_factors,
    optimizer_of,
)
from transformer_jax.update.sharding import path_name

RANDOM = np.random.default_rng(0)
SHAPES = {
    "encoder": {"layers_0": {"inner": {"kernel": (6, 4), "bias": (4,)}, "norm": {"scale": (6,)}}},
    "source_embedding": {"table": (5, 6)},
}
PARAMS, GRADIENTS = (
    jax.tree.map(
        lambda shape: jnp.asarray(RANDOM.normal(size=shape), "float32"), SHAPES, is_leaf=lambda x: type(x) is tuple
    )
    for _ in range(2)
)
KERNEL, BIAS, TABLE = "encoder/layers_0/inner/kernel", "encoder/layers_0/inner/bias", "source_embedding/table"


def config(**changes):
    return OptimizerConfig(**changes)


def trained(optimizer, updates=3, gradients=GRADIENTS):
    """The parameters by path after updates with the same gradients."""

    @jax.jit
    def run(params):
        state = optimizer.init(params)
        for _ in range(updates):
            changes, state = optimizer.update(gradients, state, params)
            params = optax.apply_updates(params, changes)
        return params

    return by_path(run(PARAMS))


def updated(settings, rate=0.1, updates=3, rate_factors=None):
    return trained(optimizer_of(settings, lambda count: rate / (count + 1), rate_factors), updates)


def by_path(params, convert=np.asarray):
    return {path_name(path): convert(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


BEFORE, SLOPES = by_path(PARAMS), by_path(GRADIENTS)


@pytest.mark.parametrize("name", sorted({*ADAM_FAMILY, *MUP_OPTIMIZERS, "adafactor", "dog", "noisy_sgd"}))
def test_an_optimizer_is_optaxs_with_the_papers_numbers_for_adams_family_alone(name):
    """The same operations with the same numbers. Weight decay is optimizer.weight_decay."""
    make = getattr(optax, name, None) or getattr(optax.contrib, name)
    given = {"learning_rate": lambda count: 0.1 / (count + 1)}
    if name in ADAM_FAMILY:
        given |= {"b1": 0.9, "b2": 0.98, "eps": 1e-9}
    if "weight_decay" in inspect.signature(make).parameters:
        given["weight_decay"] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # noisy_sgd
        ours = optimizer_of(config(name=name), lambda count: 0.1 / (count + 1))
        assert program(ours) == program(make(**given))
    digests(jax.tree.leaves(ours.init(PARAMS)))  # a checkpoint can hold the state


def program(optimizer):
    """What an update computes, without addresses of functions."""
    state = jax.eval_shape(optimizer.init, PARAMS)
    return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(optimizer.update)(GRADIENTS, state, PARAMS)))


def test_weight_decay_is_decoupled():
    plain, decayed = updated(config(), updates=1), updated(config(weight_decay=0.5), updates=1)
    np.testing.assert_allclose(decayed[KERNEL], plain[KERNEL] - 0.1 * 0.5 * BEFORE[KERNEL], rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_only_matrices_decay_and_only_if_asked(name):
    """By default optax's adamw and lion decay everything, norms and biases too."""
    still = jax.tree.map(jnp.zeros_like, GRADIENTS)
    matrices, in_kwargs = (KERNEL, TABLE), {"kwargs": {"weight_decay": 0.5}}
    for settings, moves in (({}, ()), ({"weight_decay": 0.5}, matrices), (in_kwargs, BEFORE)):
        after = trained(optimizer_of(config(name=name, **settings), lambda count: 0.1), 1, still)
        assert {path for path, array in after.items() if np.any(array != BEFORE[path])} == set(moves)


@pytest.mark.parametrize("name", ["novograd", "madgrad", "prodigy"])
def test_an_optimizer_that_would_decay_vectors_too_is_told_so_in_its_kwargs_alone(name):
    with pytest.raises(BadInput, match=f"optimizer.weight_decay: {name} has none of matrices only"):
        optimizer_of(config(name=name, weight_decay=0.1), lambda count: 0.1)
    assert trained(optimizer_of(config(name=name, kwargs={"weight_decay": 0.1}), lambda count: 0.1), 1).keys() == {
        *BEFORE
    }


def test_a_parameters_learning_rate_can_be_multiplied():
    """As if it had been trained with that learning rate, and the same weight decay an update."""
    settings, stronger = (config(weight_decay=decay, clip_norm=0.1) for decay in (0.3, 1.0))
    scaled = updated(settings, rate_factors={path: 0.3 if path == KERNEL else 1.0 for path in BEFORE})
    np.testing.assert_allclose(scaled[KERNEL], updated(stronger, rate=0.03)[KERNEL], rtol=1e-5)
    np.testing.assert_array_equal(scaled[BIAS], updated(settings)[BIAS])


def test_the_moving_average_is_of_the_parameters_after_each_update():
    config = OptimizerConfig(name="sgd", ema=0.75, clip_norm=1e9)
    optimizer, params = optimizer_of(config, lambda count: 0.5), {"kernel": jnp.full((2, 2), 8.0)}
    state, seen = optimizer.init(params), []
    for step in range(3):
        changes, state = optimizer.update({"kernel": jnp.full((2, 2), float(step))}, state, params)
        params = optax.apply_updates(params, changes)
        seen.append(float(params["kernel"][0, 0]))
    weights = np.array([0.75**2, 0.75, 1.0])
    found = averaged_params(state, 0.75)["kernel"]
    assert found.dtype == np.float32 and seen == [8.0, 7.5, 6.5]
    np.testing.assert_allclose(found, weights @ seen / weights.sum(), rtol=1e-6)


def test_gradients_longer_than_clip_norm_are_shortened():
    norm = float(optax.tree.norm(GRADIENTS))
    for clip, factor in ((norm / 4, 0.25), (norm * 4, 1.0)):
        moved = BEFORE[BIAS] - updated(config(name="sgd", clip_norm=clip), updates=1)[BIAS]
        np.testing.assert_allclose(moved, 0.1 * factor * SLOPES[BIAS], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "adamm"}, "did you mean adam"),
        ({"name": "chain"}, "no such optimizer"),
        ({"name": "schedule_free_adamw"}, "no such optimizer"),
        ({"name": "sgd", "weight_decay": 0.1}, "weight_decay"),
        ({"kwargs": {"nesterow": True}}, "nesterow"),
        ({"kwargs": {"b1": 0.5}}, "b1"),  # it is optimizer.beta1
        ({"kwargs": {"learning_rate": 0.5}}, "learning_rate"),
        ({"name": "lbfgs"}, "value"),
        ({"name": "muon", "kwargs": {"adam_b1": 0.5}}, "optimizer.beta1"),
        ({"name": "muon", "kwargs": {"ns_coeffs": 5}}, "cannot be used here"),
    ],
)
def test_what_optax_does_not_have_is_an_error(changes, told):
    with pytest.raises(BadInput) as problem:
        optimizer_of(config(**changes), lambda count: 0.1)
    assert told in str(problem.value)


def test_a_custom_optimizer_is_tried_on_the_parameters_of_the_model(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "import jax, optax\n"
        "def cube(learning_rate):\n"
        "    def update(updates, params=None):\n"
        "        return jax.tree.map(lambda leaf: -learning_rate(0) * leaf @ leaf.T @ leaf, updates)\n"
        "    return optax.stateless(update)\n"
    )
    with pytest.raises(BadInput, match=r"own\.py raised"):
        try_out(experiment(optimizer__name=f"{path}:cube"))


def test_an_optimizer_in_place_of_the_function_that_makes_it_is_an_error(tmp_path):
    (tmp_path / "own.py").write_text("import optax\nmine = optax.adam(1e-3)\n")
    with pytest.raises(BadInput, match="mine: must be a function of learning_rate, not GradientTransformation"):
        optimizer_of(config(name=f"{tmp_path}/own.py:mine"), lambda count: 0.1)


# Learning rates.

STEPS = [1, 2, 100, 3999, 4000, 4001, 20_000, 100_000]
SCHEDULES = ["inverse_sqrt", "cosine", "linear", "constant", "wsd"]


def rates(schedule, steps):
    """At each update, counted from 1 as in the paper."""
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.asarray(steps) - 1))


def test_equation_3():
    formula = [512**-0.5 * min(step**-0.5, step * 4000**-1.5) for step in STEPS]
    np.testing.assert_allclose(rates(inverse_sqrt_schedule(512), STEPS), formula, rtol=1e-6)
    np.testing.assert_allclose(rates(make_schedule(OptimizerConfig(), 512, 100_000), STEPS), formula, rtol=1e-6)
    np.testing.assert_allclose(rates(inverse_sqrt_schedule(512, scale=2.0), STEPS), 2 * np.array(formula), rtol=1e-6)
    of_traced = jax.jit(lambda warmup: inverse_sqrt_schedule(512, warmup)(99))(4000)
    assert float(of_traced) == pytest.approx(float(rates(inverse_sqrt_schedule(512), [100])[0]), rel=1e-6)


@pytest.mark.parametrize("warmup", [0, 10])
@pytest.mark.parametrize("schedule", SCHEDULES[1:])
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


@pytest.mark.parametrize("name", ["linear", "wsd"])
def test_more_updates_than_int32_counts_are_no_reason_to_fail(name):
    """train.steps = 10^12, for a run that train.tokens or train.hours ends; linear could not be computed."""
    schedule = make_schedule(config(schedule=name, learning_rate=0.1, warmup_steps=4), 16, 10**12)
    assert float(schedule(jnp.int32(3))) == pytest.approx(0.1)
    assert 0 < float(schedule(jnp.int32(10))) <= float(schedule(jnp.int32(3)))
    schedule = make_schedule(config(schedule=name, learning_rate=0.1, warmup_steps=10**11), 16, 10**12)
    assert 0 < float(schedule(jnp.int32(10))) < 1e-8


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


# Parameter groups and Muon.


def test_each_group_is_as_if_it_were_trained_alone():
    """Other learning rates, optimizers and weight decays; the first pattern counts."""
    usual = {"weight_decay": 0.5, "beta2": 0.9}
    groups = (
        ("table$", {"learning_rate_factor": 0.3, "weight_decay": 0}),
        ("norm/", {"name": "sgd", "learning_rate_factor": 0.5, "weight_decay": 0, "kwargs": {"momentum": 0.5}}),
        ("norm|bias", {"epsilon": 0.5}),
    )
    ours, rest = updated(config(**usual, groups=groups)), updated(config(**usual))
    tables = updated(config(beta2=0.9), rate=0.03)
    norms = updated(config(name="sgd", kwargs={"momentum": 0.5}), rate=0.05)
    biases = updated(config(**usual, epsilon=0.5))
    alone = {"table": tables, "scale": norms, "bias": biases, "kernel": rest}
    for path, array in ours.items():
        np.testing.assert_allclose(array, alone[path.rpartition("/")[2]][path], rtol=1e-6)
    assert not np.allclose(ours[BIAS], rest[BIAS])


@pytest.mark.parametrize("patterns", [("tabel",), ("table", "g/t")])
def test_a_group_without_parameters_is_an_error(patterns):
    groups = tuple((pattern, {"beta2": 0.5}) for pattern in patterns)
    with pytest.raises(BadInput, match=f"optimizer.groups: '{patterns[-1]}'"):
        optimizer_of(config(groups=groups), lambda count: 0.1).init(PARAMS)


def orthogonalized(gradient):
    """Jordan (2024): five Newton-Schulz iterations of X -> a X + b (X X^T) X + c (X X^T)^2 X."""
    x = gradient.T / np.linalg.norm(gradient)  # no more rows than columns
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T


def test_muon_orthogonalizes_hidden_matrices_and_the_rest_has_adam():
    """With constant gradients momentum, with Nesterov's and without, has their direction."""
    usual = {"weight_decay": 0.5, "beta2": 0.9}
    ours, adam = updated(config(name="muon", **usual)), updated(config(**usual))
    direction = orthogonalized(SLOPES[KERNEL].astype(np.float64))
    assert np.all(np.abs(np.linalg.svd(direction, compute_uv=False) - 1) < 0.35)
    expected = BEFORE[KERNEL].astype(np.float64)
    for update in (1, 2, 3):  # Liu et al. (2025): 0.2 sqrt(max(rows, columns)), as large as Adam's
        expected -= 0.1 / update * (0.2 * 6**0.5 * direction + 0.5 * expected)
    np.testing.assert_allclose(ours.pop(KERNEL), expected, rtol=1e-4, atol=1e-6)
    for path, array in ours.items():
        np.testing.assert_allclose(array, adam[path], rtol=1e-6)


@pytest.mark.parametrize("positions", ["learned", "transformer_xl"])
def test_hidden_matrices_are_the_kernels_of_the_stacks(positions):
    model = small(positions=positions, tie_embeddings="none", output_bias=True, activation="swiglu")
    shapes = {path: array.shape for path, array in by_path(abstract_params(model), lambda leaf: leaf).items()}
    hidden = {path for path in shapes if HIDDEN.search(path)}
    assert {path.split("/")[-2] for path in hidden} >= {"query", "key", "value", "output", "inner", "gate", "outer"}
    assert all(len(shapes[path]) == 2 for path in hidden)
    others = {path.rpartition("/")[2] for path in shapes if path not in hidden}
    assert "kernel" not in others and "table" in others


# muP against the rules of Yang et al. (2022), table 8.

# Twice the base's width everywhere, and a feed-forward layer that grows by three.
WIDER = {"model__d_model": 32, "model__d_ff": 96, "model__mup_base_d_model": 16, "model__mup_base_d_ff": 32}


def test_at_the_base_widths_it_is_the_standard_parametrisation():
    models = [experiment(**each).model for each in ({"model__mup_base_d_model": 16}, {})]
    assert set(mup_rate_factors(models[0]).values()) == {1.0} and mup_rate_factors(models[1]) is None

    programs = [
        str(jax.make_jaxpr(Transformer(model).init_with_output)(jax.random.key(0), SOURCE, TARGET)) for model in models
    ]
    assert programs[0] == programs[1]


def test_each_parameters_first_update_and_initial_size_follow_table_8():
    """Adam's first update is the learning rate, times the factor; Xavier's variance is 2 / (fan_in + fan_out)."""
    wider = experiment(**WIDER, model__positions="relative", model__tie_embeddings="none")
    optimizer = optimizer_of(wider.optimizer, lambda count: 0.1, mup_rate_factors(wider.model))

    @jax.jit
    def initial_and_update():
        params = Transformer(wider.model).init(jax.random.key(0), SOURCE, TARGET)["params"]
        return params, optimizer.update(params, optimizer.init(params), params)[0]

    before, moved = map(by_path, initial_and_update())
    growth = {32: 2, 96: 3}
    for name, array in before.items():
        if name.endswith("kernel"):
            fan_in, fan_out = array.shape
            base = fan_in / growth[fan_in], fan_out / growth[fan_out]
            variance, factor = 2 / sum(base) / growth[fan_in], 1 / growth[fan_in]
        else:  # tables, biases and norms: as at the base, where 33 distances have vectors of d_k 4
            variance, factor = 2 / (33 + 4) if "positions" in name else 1 / 16, 1.0
        if array.ndim == 2:
            assert array.std() == pytest.approx(variance**0.5, rel=0.1), name
        assert np.abs(moved[name][array != 0]) == pytest.approx(0.1 * factor, rel=0.01), name


def test_scores_embeddings_and_logits_are_scaled_as_by_hand():
    """A standard model with the factors in its matrices computes the same: d_k 8 from 4, d_model 32 from 16."""
    size = {"vocab_size": 20, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 64}
    standard = ModelConfig(**size, num_heads=4, tie_embeddings="none", positions="relative")
    mup = dataclasses.replace(standard, mup_base_d_model=16)
    variables = numbers_for({"params": abstract_params(mup)})

    def factor(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        by = {"query/kernel": 2**-0.5, "output_embedding/table": 0.5, "_embedding/table": 2**-0.5}
        return leaf * next((number for end, number in by.items() if name.endswith(end)), 1.0)

    @jax.jit
    def logits(variables):
        by_hand = jax.tree_util.tree_map_with_path(factor, variables)
        return Transformer(mup).apply(variables, SOURCE, TARGET), Transformer(standard).apply(by_hand, SOURCE, TARGET)

    assert_close(*logits(variables))


def test_the_default_learning_rate_is_that_of_the_base():
    run = experiment(**WIDER, optimizer__learning_rate=None)
    assert run.model.base_d_model == 16 and experiment().model.base_d_model == run.model.mup_base().d_model == 16


@pytest.mark.parametrize(
    ("shape", "base", "multiple"),
    [((8, 4), (2, 4), 0.25), ((8, 4), (8, 1), 1.0), ((8, 2, 4), (2, 2, 1), 0.25), ((2, 4, 8), (2, 1, 2), 0.25)],
)
def test_custom_parameters_follow_from_how_their_shapes_grew(shape, base, multiple, monkeypatch):
    """The last axis is fan_out, the others fan_in."""
    shapes = {True: base, False: shape}
    monkeypatch.setattr(
        "transformer_jax.update.optimizer.abstract_params",
        lambda model: {"custom": np.zeros(shapes[model.mup_base_d_model is None])},
    )
    assert mup_rate_factors(ModelConfig(mup_base_d_model=128)) == {"custom": multiple}
