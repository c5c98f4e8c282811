"""Parameter groups, each as if it were trained alone; and Muon by its definition, on hidden matrices only."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support.small_models import small
from transformer_jax import Transformer
from transformer_jax.config import OptimizerConfig
from transformer_jax.errors import BadInput
from transformer_jax.model.positions import ENCODINGS
from transformer_jax.update.optimizer import make_optimizer
from transformer_jax.update.parameter_groups import HIDDEN
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


def config(**changes):
    return OptimizerConfig(**changes)


def updated(settings, rate=0.1):
    """The parameters by path after three updates with the same gradients."""
    optimizer = make_optimizer(settings, lambda count: rate / (count + 1))

    @jax.jit
    def run(params):
        state = optimizer.init(params)
        for _ in range(3):
            changes, state = optimizer.update(GRADIENTS, state, params)
            params = optax.apply_updates(params, changes)
        return params

    return by_path(run(PARAMS))


def by_path(params):
    return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def test_each_group_is_as_if_it_were_trained_alone():
    """Learning rates as a multiple and as a peak, other optimizers, other weight decays; the first pattern counts."""
    usual = {"learning_rate": 0.2, "weight_decay": 0.5, "beta2": 0.9}
    groups = (
        "table$: learning_rate=0.3x weight_decay=0",
        "norm/: name=sgd learning_rate=0.1 weight_decay=0 momentum=0.5 nesterov=true",
        "norm|bias: epsilon=0.5",
    )
    ours, rest = updated(config(**usual, groups=groups)), updated(config(**usual))
    tables = updated(config(**{**usual, "weight_decay": 0.0}), rate=0.03)
    norms = updated(config(name="sgd", arguments=("momentum=0.5", "nesterov=true")), rate=0.05)
    biases = updated(config(**usual, epsilon=0.5))
    alone = {"table": tables, "scale": norms, "bias": biases, "kernel": rest}
    for path, array in ours.items():
        np.testing.assert_allclose(array, alone[path.rpartition("/")[2]][path], rtol=1e-6)
    assert not np.allclose(ours["encoder/layers_0/inner/bias"], rest["encoder/layers_0/inner/bias"])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (("table",), "'table': must be PATTERN: KEY=VALUE ..., such as"),
        (("table: beta1=0.5 beta1=0.9",), "must be PATTERN: KEY=VALUE ..."),
        (("table: learning_rate",), "must be PATTERN: KEY=VALUE ..."),
        (("(: weight_decay=0",), "'(' is not a regular expression: missing )"),
        (("tabel: weight_decay=0",), "its pattern is found in no parameter's path; one is encoder/layers_0/inner/bias"),
        (("table: beta2=0.5", "g/t: beta2=0.9"), "'g/t: beta2=0.9': earlier groups have every parameter"),
        (("norm: weight_decay=0.1",), "there is weight decay of matrices only, and its pattern finds none"),
        (("table: weight_decay=-1",), "weight_decay = -1.0: must be at least 0"),
        (
            ("table: learning_rate=fast",),
            "learning_rate=fast: must be a multiple of the main one (0.3x) or a peak (3e-4)",
        ),
        (("table: learning_rate=3e-4",), "learning_rate=3e-4: a peak needs optimizer.learning_rate; a multiple"),
        (("table: name=adamm",), "optimizer.name = 'adamm': optax has no such optimizer; did you mean adam"),
        (("table: name=muon",), "Muon is for hidden matrices, and its pattern finds none"),
        (("kernel: name=muon adam_learning_rate=2x",), "what begins with adam_ is not for hidden matrices"),
        (("table: name=mine.py:Adam",), "a custom optimizer can only be optimizer.name"),
        (("table: nesterow=true",), "nesterow=true: adam has no such setting; did you mean nesterov"),
        (
            ("table: lr=0.3x",),
            "lr=0.3x: adam has no such setting; there are: name, learning_rate, weight_decay, beta1,",
        ),
        (("table:weight_decay=-1",), "a space must follow the colon: 'table: weight_decay=-1'"),
        (("kernel: learning_rate=1x", "bias: learning_rate=2x"), "'kernel: learning_rate=1x': 1x is the learning rate"),
        (("kernel: name=muon beta=-1",), "beta=-1: must be a number, at least 0 and below 1"),
        (
            ("kernel: name=sgd", ".*: name=lion beta2=0.9"),
            "give each parameter another optimizer than optimizer.name = adam",
        ),
    ],
)
def test_what_is_refused_in_one_line(groups, message):
    with pytest.raises(BadInput) as problem:
        make_optimizer(config(groups=groups), lambda count: 0.1).init(PARAMS)
    assert str(problem.value).startswith("optimizer.groups: ") and message in str(problem.value)
    assert "\n" not in str(problem.value)


def orthogonalized(gradient):
    """Jordan (2024): five Newton-Schulz iterations of X -> a X + b (X X^T) X + c (X X^T)^2 X."""
    x = gradient.T / np.linalg.norm(gradient)  # no more rows than columns
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T


def test_muon_orthogonalizes_hidden_matrices_and_the_rest_has_adam():
    """With constant gradients momentum, with Nesterov's and without, has their direction."""
    usual = {"learning_rate": 0.1, "weight_decay": 0.5, "beta2": 0.9}
    ours = updated(config(name="muon", **usual, arguments=("adam_learning_rate=0.3x",)))
    adam = updated(config(**usual), rate=0.03)
    hidden = "encoder/layers_0/inner/kernel"
    direction = orthogonalized(by_path(GRADIENTS)[hidden].astype(np.float64))
    assert np.all(np.abs(np.linalg.svd(direction, compute_uv=False) - 1) < 0.35)
    expected = by_path(PARAMS)[hidden].astype(np.float64)
    for update in (1, 2, 3):  # Liu et al. (2025): 0.2 sqrt(max(rows, columns)), as large as Adam's
        expected -= 0.1 / update * (0.2 * 6**0.5 * direction + 0.5 * expected)
    np.testing.assert_allclose(ours.pop(hidden), expected, rtol=1e-4, atol=1e-6)
    for path, array in ours.items():
        np.testing.assert_allclose(array, adam[path], rtol=1e-6)


def test_muons_arguments_reach_it_and_jordans_scale_is_one_of_them():
    usual = {"name": "muon", "learning_rate": 0.1}
    hidden = "encoder/layers_0/inner/kernel"
    moved = [
        updated(config(**usual, arguments=arguments))[hidden] - by_path(PARAMS)[hidden]
        for arguments in ((), ("consistent_rms=none",), ("consistent_rms=none", "ns_steps=3"), ("ns_coeffs=dion",))
    ]
    np.testing.assert_allclose(moved[0], 0.2 * 6**0.5 * moved[1], rtol=1e-5, atol=1e-6)
    assert not np.allclose(moved[1], moved[2], rtol=0.01) and not np.allclose(moved[0], moved[3], rtol=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ns_coeffs=dion ns_steps=7", "ns_steps=7: ns_coeffs=dion has coefficients for 5"),
        ("adam_b1=0.5", "'adam_b1=0.5': is set by optimizer.beta1"),
        ("adam_nesterow=true", "'adam_nesterow=true': muon has no such argument; did you mean adam_nesterov?"),
        ("foo=1", "'foo=1': muon has no such argument; there are: ns_coeffs, ns_steps, beta,"),
        ("foo=1", "weight_decay, adam_learning_rate, adam_eps_root"),
        ("adam_learning_rate=fast", "adam_learning_rate=fast: must be a multiple"),
        ("beta=1.5", "beta=1.5: must be a number, at least 0 and below 1"),
        ("beta=nan", "beta=nan: must be a number"),
        *(
            (f"ns_steps={steps}", f"ns_steps={steps}: must be a whole number, at least 1")
            for steps in ("0", "2.5", "abc")
        ),
        ("consistent_rms=0", "consistent_rms=0: must be a number above 0, or none"),
        ("ns_coeffs=muon", "ns_coeffs=muon: must be standard or dion"),
        ("nesterov=1", "nesterov=1: must be true or false"),
        ("preconditioning=aoll", "preconditioning=aoll: must be frobenius, spectral, aol or schatten"),
        ("weight_decay=-1", "weight_decay=-1: must be a number, at least 0"),
        ("weight_decay=inf", "weight_decay=inf: must be a number, at least 0"),
    ],
)
def test_muons_arguments_are_checked(arguments, message):
    with pytest.raises(BadInput, match=re.escape(message)) as problem:
        make_optimizer(config(name="muon", arguments=tuple(arguments.split())), lambda count: 0.1)
    assert str(problem.value).startswith("optimizer.arguments: ")


def test_muon_needs_a_hidden_matrix_that_no_group_gives_to_another():
    with pytest.raises(BadInput, match=r"leave optimizer\.name = muon no hidden matrix"):
        make_optimizer(config(name="muon", groups=("kernel: name=adam",)), lambda count: 0.1).init(PARAMS)


def test_a_group_with_the_usual_learning_rate_excepts_parameters_from_later_ones():
    excepted = config(groups=("kernel: learning_rate=1x", "encoder/: learning_rate=2x"))
    path = "encoder/layers_0/inner/kernel"
    np.testing.assert_allclose(updated(excepted)[path], updated(config())[path], rtol=1e-6)


@pytest.mark.parametrize("positions", ENCODINGS)
def test_hidden_matrices_are_the_kernels_of_the_stacks(positions):
    tokens = np.ones((1, 2), np.int32)
    model = small(positions=positions, tie_embeddings="none", output_bias=True, activation="swiglu")
    params = by_shape(jax.eval_shape(Transformer(model).init, jax.random.key(0), tokens, tokens)["params"])
    hidden = {path for path in params if HIDDEN.search(path)}
    assert {path.split("/")[-2] for path in hidden} >= {"query", "key", "value", "output", "inner", "gate", "outer"}
    assert all(len(params[path]) == 2 for path in hidden)
    others = {path.rpartition("/")[2] for path in params if path not in hidden}
    assert "kernel" not in others and "table" in others


def by_shape(params):
    return {path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def test_a_group_may_have_no_weight_decay_beside_any_optimizer():
    both = updated(config(name="adamw", weight_decay=0.5, groups=("table$: weight_decay=0",)))
    path = "source_embedding/table"
    np.testing.assert_allclose(both[path], updated(config())[path], rtol=1e-6)


def test_groups_of_a_muon_run_scale_both_of_its_parts():
    usual = {"name": "muon", "learning_rate": 0.1, "weight_decay": 0.0}
    halved, rate = config(**usual, groups=("inner: learning_rate=0.5x",)), updated(config(**usual), rate=0.05)
    ours = updated(halved)
    for path in ("encoder/layers_0/inner/kernel", "encoder/layers_0/inner/bias"):
        np.testing.assert_allclose(ours[path], rate[path], rtol=1e-5)
    assert dataclasses.replace(halved, groups=()) == config(**usual)
