"""Every file of examples/ does what it says."""

import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.places import ROOT
from tests.support.small_models import assert_close
from transformer_jax import Context, MultiHeadAttention, causal_mask, label_smoothed_cross_entropy
from transformer_jax.extension import load_object

EXAMPLES = ROOT / "examples"


def custom(address):
    return load_object(f"{EXAMPLES}/{address}")


def test_log_distance_is_its_formula():
    kind, positions = custom("log_distance.py:LogDistance")(), np.arange(5)[None]
    call = (jnp.zeros((1, 5, 2, 6)), positions, positions)
    bias_BHTS, variables = kind.init_with_output(jax.random.key(0), *call, method="bias")
    params = variables["params"]
    assert params["depth"].shape == params["width"].shape == (1, 2, 1, 1)
    depth, width = (np.log1p(np.exp(params[name][0, 1, 0, 0])) for name in ("depth", "width"))
    assert bias_BHTS[0, 1, 4, 1] == pytest.approx(-depth * np.log(1 + width * 3), rel=1e-5)


def test_linear_attention_is_its_formula_whichever_way_it_adds_up():
    q, k, v = (jax.random.normal(jax.random.key(i), (2, 5, 2, 6)) for i in range(3))
    attend = custom("linear_attention.py:LinearAttention")(num_heads=2).attend
    phi = lambda x: jnp.where(x > 0, x + 1, jnp.exp(x))  # noqa: E731
    products_BHTS = jnp.einsum("bthk,bshk->bhts", phi(q), phi(k))
    seen_B11S = jnp.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)[:, None, None]
    seen_1H1S = jnp.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], bool)[None, :, None]
    for mask in (None, seen_B11S, seen_1H1S, causal_mask(5) & seen_B11S):
        weights_BHTS = products_BHTS if mask is None else jnp.where(mask, products_BHTS, 0)
        weights_BHTS = weights_BHTS / weights_BHTS.sum(axis=-1, keepdims=True)
        assert_close(attend(q, k, v, Context(mask)), jnp.einsum("bhts,bshv->bthv", weights_BHTS, v))
    assert not attend(q, k, v, Context(jnp.zeros((2, 1, 1, 5), bool))).any()  # nothing to attend to


def test_linear_attention_decodes_step_by_step_what_it_computes_at_once():
    attention = custom("linear_attention.py:LinearAttention")(num_heads=2)
    assert issubclass(type(attention), MultiHeadAttention)
    x = jax.random.normal(jax.random.key(0), (2, 4, 8))
    whole, variables = attention.init_with_output(jax.random.key(1), x, x, causal_mask(4))
    cache, steps = attention.new_cache(2, 4, 8), []
    for t in range(4):
        x_B1D = x[:, t : t + 1]
        step, cache = attention.apply(variables, x_B1D, x_B1D, Context(cache=cache), method="with_context")
        steps.append(step)
    assert_close(jnp.concatenate(steps, axis=1), whole)


def test_focal_loss_is_cross_entropy_times_what_is_missing():
    logits, targets = jax.random.normal(jax.random.key(0), (1, 1, 5)), jnp.array([[3]])
    cross_entropy, _ = label_smoothed_cross_entropy(logits, targets, jnp.ones((1, 1)), epsilon=0.0)
    total, count = custom("focal_loss.py:focal")(logits, targets, jnp.ones((1, 1)))
    assert total == pytest.approx(float((1 - jnp.exp(-cross_entropy)) ** 2 * cross_entropy), rel=1e-5)
    assert count == 1


def test_sums_are_right_and_in_one_split_each():
    splits = {split: custom("sums.py:sums")(split) for split in ("train", "valid", "test")}
    everything = [pair for pairs in splits.values() for pair in pairs]
    assert len(set(everything)) == len(everything) == 10_000
    assert all(sum(map(int, source.split("+"))) == int(target) for source, target in everything)


@pytest.mark.drill
def test_a_translator_writes_what_the_tutorial_shows(capsys):
    runpy.run_path(str(EXAMPLES / "english_to_korean.py"), run_name="__main__")
    shown = f"python examples/english_to_korean.py\n```\n\n```text\n{capsys.readouterr().out}```\n"
    for folder in ("docs/tutorial", "docs/ko/tutorial"):
        assert shown in (ROOT / folder / "8_learning.md").read_text()


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("language_model.py", "It is what it is, said the bee in the tea. It is"),
        pytest.param("classifier.py", "9", marks=pytest.mark.drill),
        pytest.param(
            "nnx_language_model.py",
            "7 8 9 10 11 12 13 14 15 16 17 18 19\n12 13 14 15 16 17 18 19\n",
            marks=pytest.mark.drill,
            id="nnx_language_model.py",
        ),
    ],
)
def test_a_model_of_the_same_parts_learns(file, said, capsys):
    runpy.run_path(str(EXAMPLES / file), run_name="__main__")
    assert capsys.readouterr().out.startswith(said)
