"""A custom loss, optimizer, schedule, corpus or metric is used, or an error in one clear line."""

import dataclasses
import re

import jax
import numpy as np
import optax
import pytest

from tests.support.small_runs import Trainer, batches, experiment, objective_of, worst_difference
from transformer_jax.config import OptimizerConfig, TrainConfig
from transformer_jax.errors import BadInput
from transformer_jax.evaluation import custom_scores, load_metrics
from transformer_jax.experiment import try_out
from transformer_jax.extension import UserCodeError
from transformer_jax.update.loss import check_loss
from transformer_jax.update.optimizer import make_schedule, optimizer_of
from transformer_jax.update.step import batch_sums

HEAD = "import jax, jax.numpy as jnp, optax\nfrom transformer_jax import label_smoothed_cross_entropy\n"
# The built-in functions under custom names, but for the weight.
OURS = """
def half_weight(logits, targets, weights, epsilon, spread):
    total, count = label_smoothed_cross_entropy(logits, targets, weights, epsilon, spread)
    return total, count / 2

def schedule(peak, warmup_steps):
    return lambda count: peak * jnp.minimum((count + 1) / warmup_steps, (warmup_steps / (count + 1)) ** 0.5)

def optimizer(learning_rate):
    return optax.sgd(learning_rate)
"""


@pytest.fixture
def mine(tmp_path):
    """Writes mine.py and gives the address of a name in it."""

    def write(text, name="mine"):
        (tmp_path / "mine.py").write_text(HEAD + text)
        return f"{tmp_path}/mine.py:{name}"

    return write


def test_custom_code_makes_the_updates_that_it_defines(mine):
    """The gradient is divided by the weight that the loss returns, however the batch is divided: half the weight is
    twice the loss."""
    own = {"train__loss": "half_weight", "optimizer__name": "optimizer", "optimizer__schedule": "schedule"}
    own = {path: mine(OURS, name) for path, name in own.items()}
    run, (batch,) = Trainer(experiment(**own, optimizer__learning_rate=0.4, train__accumulate=4)), batches(1)
    before = run.new()
    plain = jax.jit(
        jax.value_and_grad(lambda params: batch_sums(experiment(), objective_of(experiment()), params, batch).loss)
    )
    loss, gradients = plain(before.params)
    after, tokens = run.train([batch]), np.sum(batch.target_output != 0)
    expected = jax.tree.map(lambda param, gradient: param - 0.1 * 2 * gradient / tokens, before.params, gradients)
    assert worst_difference(after, before.replace(params=expected)) < (1e-5,)  # warmup: a quarter of the rate
    assert float(after.sums.loss) == pytest.approx(2 * float(loss), rel=1e-5)


def use_loss(address):
    check_loss(TrainConfig(loss=address), 8)


def use_schedule(address):
    make_schedule(OptimizerConfig(schedule=address), 16, 10)(0)


def use_optimizer(address):
    optimizer_of(OptimizerConfig(name=address), lambda count: 0.1)


def use_metric(address):
    try_out(experiment(decode__metrics=(address,)))


@pytest.mark.parametrize(
    ("use", "text", "word"),
    [
        (use_loss, "def mine(a, b, c, gamma): pass", "'gamma'"),
        (use_loss, "def mine(a, b, c): return jnp.sum(a)", "(loss_sum, weight_sum)"),
        (use_loss, "def mine(a, b, c): return jnp.sum(a ** 2), c.sum()", "whose weight is not 0"),
        (use_loss, "def mine(a, b, c):\n    return a + 'x'", "raised TypeError"),
        (use_schedule, "def mine(peak, speed): pass", "'speed'"),
        (use_schedule, "def mine(peak): return peak", "not callable"),
        (use_optimizer, "def mine(rate): pass", "learning_rate"),
        (use_optimizer, "def mine(learning_rate, speed): pass", "raised TypeError"),
        (use_metric, "def mine(hypotheses): pass", "too many positional"),
        (use_metric, "def mine(h, r): return None", "gave None"),
        (use_metric, "def mine(h, r): return float('nan')", "gave nan"),
        (use_metric, "def mine(h, r):\n    return len(h) / 0", "raised ZeroDivisionError"),
        (use_metric, "def mine(h, r):\n    return 1 / min(map(len, h))", "raised ZeroDivisionError"),  # of ""
    ],
)
def test_what_cannot_be_used_is_an_error_in_one_line(mine, use, text, word):
    address = mine(text)
    with pytest.raises(BadInput) as caught:
        use(address)
    line = str(caught.value)
    assert word in line and "mine.py" in line and "\n" not in line
    if "\n" in text:
        assert isinstance(caught.value, UserCodeError) and text.splitlines()[-1] in caught.value.traceback


def test_a_schedule_gets_what_it_asks_for(mine):
    text = "def mine(steps, d_model, peak):\n    return lambda count: peak * d_model * (1 - count / steps)"
    settings = OptimizerConfig(schedule=mine(text), learning_rate=0.5)
    assert float(make_schedule(settings, d_model=16, steps=10)(5)) == 4.0


def test_a_custom_optimizer_gets_optimizer_kwargs(mine):
    address = mine("def mine(learning_rate, speed=1.0): return optax.sgd(lambda n: speed * learning_rate(n))")
    settings = OptimizerConfig(name=address, kwargs={"speed": 2})
    optimizer = optimizer_of(settings, lambda count: 0.1)
    params = {"kernel": np.ones((2, 2), np.float32)}
    changes, _ = optimizer.update(params, optimizer.init(params))
    np.testing.assert_allclose(optax.apply_updates(params, changes)["kernel"], 0.8, rtol=1e-6)
    with pytest.raises(BadInput, match="sped"):
        optimizer_of(dataclasses.replace(settings, kwargs={"sped": 2}), lambda count: 0.1)


@pytest.mark.parametrize("way", ["path_aware_map", "tree_map_with_path", "multi_transform"])
def test_a_custom_optimizer_may_choose_parameters_by_name(mine, way):
    text = """
from flax import traverse_util

def mine(learning_rate):
    return optax.multi_transform({"slow": optax.sgd(0.0), "fast": optax.sgd(learning_rate)}, labels)

def slow(name):
    return "slow" if "embedding" in name else "fast"

def labels(params):
    if WAY == "path_aware_map":
        return traverse_util.path_aware_map(lambda path, _: slow(path[0]), params)
    if WAY == "tree_map_with_path":
        return jax.tree_util.tree_map_with_path(lambda path, _: slow(path[0].key), params)
    return {name: slow(name) for name in params}
"""
    config = experiment(optimizer__name=mine(text.replace("WAY", repr(way))))
    try_out(config)
    run, (batch,) = Trainer(config), batches(1)
    before, (after, _) = run.new(), (run.train([batch]), None)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before.params, after.params)
    assert {name: any(jax.tree.leaves(of)) for name, of in moved.items()} == {
        name: "embedding" not in name for name in moved
    }


@pytest.mark.parametrize(
    ("option", "text", "error"),
    [
        ("optimizer__name", "def mine(learning_rate):\n    return optax.stateless(lambda u, p: p['no'])", "KeyError"),
        ("optimizer__schedule", "def mine(peak):\n    return lambda n: peak if n < 3 else 0.0", "TracerBoolConversion"),
    ],
)
def test_an_error_in_an_optimizer_or_a_schedule_is_shown_where_it_is(mine, option, text, error):
    with pytest.raises(UserCodeError, match=rf"^\S+/mine\.py raised {error}") as caught:
        try_out(experiment(**{option: mine(text)}))
    assert text.splitlines()[-1].strip() in caught.value.traceback


def test_a_custom_optimizer_may_be_any_object_with_init_and_update(mine):
    try_out(experiment(optimizer__name=mine("def mine(learning_rate): return optax.MultiSteps(optax.sgd(0.1), 2)")))
    with pytest.raises(BadInput, match=r"mine: must return an optax.GradientTransformation, not float"):
        try_out(experiment(optimizer__name=mine("def mine(learning_rate): return 0.1")))


def test_a_loss_may_know_the_vocabulary(mine):
    text = "def mine(a, b, c): return label_smoothed_cross_entropy(a + jnp.zeros((1, 1, 20)), b, c)"
    try_out(experiment(train__loss=mine(text), model__vocab_size=20))


PARTS = """
from flax import linen as nn
from transformer_jax import FeedForward, MultiHeadAttention

class Attention(MultiHeadAttention):
    pass

class OfOneToken(FeedForward):
    def __call__(self, x_BTD, deterministic=True):
        return x_BTD + jnp.ones((1, 1, x_BTD.shape[1]))

class InTraining(FeedForward):
    def __call__(self, x_BTD, deterministic=True):
        return x_BTD if deterministic else self.noise(x_BTD)

    def noise(self, x_BTD):
        return x_BTD + jax.random.normal(self.make_rng("noise"), x_BTD.shape)
"""


@pytest.mark.parametrize(("name", "line"), [("OfOneToken", "jnp.ones"), ("InTraining", "make_rng")])
def test_custom_modules_are_tried_in_training_and_on_several_tokens(mine, tmp_path, name, line):
    """The file with the error is named, of the two."""
    (tmp_path / "sound.py").write_text(HEAD + PARTS)
    parts = {"attention": f"{tmp_path}/sound.py:Attention", "feed_forward": mine(PARTS, name)}
    try_out(experiment(model__parts={"attention": parts["attention"]}, model__attention_implementation="cudnn"))
    with pytest.raises(UserCodeError, match=r"mine\.py raised") as caught:
        try_out(experiment(model__parts=parts))
    assert line in caught.value.traceback


def test_a_metric_may_ask_for_the_sources_and_is_known_by_its_file(mine):
    address = mine("def longer(hypotheses, references, sources): return len(sources[0]) / len(hypotheses[0])", "longer")
    (measure,) = custom_scores(load_metrics([address]), ["abcd"], ["ab"], ["x"]).values()
    assert measure.score == 2.0
    assert re.fullmatch(re.escape("mine.py:longer") + r"\|sha256:[0-9a-f]{12}", measure.signature)


def test_a_metric_has_a_name_of_its_own(mine, tmp_path):
    first = mine("def mine(h, r): return 1.0")
    (tmp_path / "other.py").write_text(
        "def mine(h, r): return 1.0\ndef bleu(h, r): return 1.0\nsteps = time = seed = mine\n"
    )
    other = f"{tmp_path}/other.py"
    for others in (
        [first, f"{other}:mine"],
        [f"{other}:bleu"],
        *([f"{other}:{name}"] for name in ("steps", "time", "seed")),
    ):
        with pytest.raises(BadInput, match="another metric"):
            load_metrics(others)
