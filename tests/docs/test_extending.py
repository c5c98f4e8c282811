"""A custom loss, optimizer, schedule, corpus or metric is used, or refused in one clear line."""

import dataclasses
import re

import numpy as np
import optax
import pytest

from tests.support.small_runs import Trainer, batches, experiment, trainer, worst_difference
from transformer_jax.config import DataConfig, OptimizerConfig, TrainConfig
from transformer_jax.data.corpora import open_corpus
from transformer_jax.data.prepare import differences, recipe_of
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.evaluation import custom_scores, load_metrics
from transformer_jax.extension import UserCodeError
from transformer_jax.update.loss import check_loss
from transformer_jax.update.optimizer import make_optimizer, make_schedule

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


@pytest.mark.slow
def test_custom_code_that_does_the_same_makes_the_same_updates(mine):
    """The gradient is divided by the weight that the loss returns, however the batch is divided: half the weight is
    twice the loss, and half the learning rate of SGD makes up for it."""
    own = {"train__loss": "half_weight", "optimizer__name": "optimizer", "optimizer__schedule": "schedule"}
    own = {path: mine(OURS, name) for path, name in own.items()}
    ours = Trainer(experiment(**own, optimizer__learning_rate=0.1, train__accumulate=4)).train(batches(3))
    theirs = trainer(optimizer__name="sgd", optimizer__learning_rate=0.2).train(batches(3))
    assert worst_difference(ours, theirs) < (1e-5,)
    assert float(ours.sums.loss) == pytest.approx(2 * float(theirs.sums.loss), rel=1e-5)
    assert float(ours.sums.nll) == pytest.approx(float(theirs.sums.nll), rel=1e-5)


def refuses(call, message):
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def mine(logits, targets): pass", "cannot be called as mine(logits, targets, weights): too many positional"),
        (
            "def mine(a, b, c, gamma): pass",
            "missing a required argument: 'gamma'; it may also take, by name, epsilon",
        ),
        ("def mine(a, b, c): return jnp.sum(a)", "(loss_sum, weight_sum)"),
        ("def mine(a, b, c): return a.sum(-1), c", "(loss_sum, weight_sum)"),
        ("def mine(a, b, c): return jnp.sum(a ** 2), c.sum()", "whose weight is not 0"),
    ],
)
def test_an_invalid_loss_is_refused(mine, text, message):
    address = mine(text)
    problem = refuses(lambda: check_loss(TrainConfig(loss=address)), message)
    assert str(problem).startswith(f"train.loss = {address}: ")


def test_what_a_loss_raises_is_reported_with_its_traceback(mine):
    with pytest.raises(UserCodeError, match=r"mine\.py raised TypeError") as caught:
        check_loss(TrainConfig(loss=mine("def mine(a, b, c):\n    return a + 'x'")))
    assert "return a + 'x'" in caught.value.traceback


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def mine(peak, speed): pass",
            "cannot be called as mine(): missing a required argument: 'speed'; it may also",
        ),
        ("def mine(peak): return peak", "must return a function of the updates made"),
        ("def mine(): return lambda count: -1.0", "finite number >= 0"),
        ("def mine(steps): return lambda count: 1.0 / (steps // 2 - count)", "inf"),
    ],
)
def test_an_invalid_schedule_is_refused(mine, text, message):
    settings = dataclasses.replace(OptimizerConfig(), schedule=mine(text))
    assert str(refuses(lambda: make_schedule(settings, 16, 10), message)).startswith("optimizer.schedule = ")


def test_a_schedule_gets_what_it_asks_for(mine):
    text = "def mine(steps, d_model, peak):\n    return lambda count: peak * d_model * (1 - count / steps)"
    settings = dataclasses.replace(OptimizerConfig(), schedule=mine(text), learning_rate=0.5)
    assert float(make_schedule(settings, d_model=16, steps=10)(5)) == 4.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def mine(rate): pass", "must be a function that takes learning_rate"),
        ("def mine(learning_rate, speed): pass", "mine.py raised TypeError"),
    ],
)
def test_an_invalid_optimizer_is_refused(mine, text, message):
    settings = dataclasses.replace(OptimizerConfig(), name=mine(text))
    refuses(lambda: make_optimizer(settings, lambda count: 0.1), message)


def test_a_custom_optimizer_gets_optimizer_kwargs(mine):
    address = mine("def mine(learning_rate, speed=1.0): return optax.sgd(lambda n: speed * learning_rate(n))")
    settings = dataclasses.replace(OptimizerConfig(), name=address, kwargs={"speed": 2})
    optimizer = make_optimizer(settings, lambda count: 0.1)
    params = {"kernel": np.ones((2, 2), np.float32)}
    changes, _ = optimizer.update(params, optimizer.init(params))
    np.testing.assert_allclose(optax.apply_updates(params, changes)["kernel"], 0.8, rtol=1e-6)
    settings = dataclasses.replace(settings, kwargs={"sped": 2})
    refuses(lambda: make_optimizer(settings, lambda count: 0.1), "sped")


PAIRS = """
FILES = []

def mine(split):
    if split == "train":
        for number in range(5):
            yield f"source {number}", f"target {number}"
"""


def test_a_corpus_is_read_in_order_and_has_the_splits_it_yields(mine):
    corpus = open_corpus(DataConfig(corpus=mine(PAIRS)))
    chunks = list(corpus.chunks("train", 2))
    assert [len(chunk.pairs) for chunk in chunks] == [2, 2, 1]
    assert [target for chunk in chunks for _, target in chunk.pairs] == [f"target {number}" for number in range(5)]
    assert chunks[2].place(0).endswith("mine.py:mine/train:5")
    assert corpus.splits == ("train",)
    assert open_corpus(DataConfig(corpus=mine("mine = {'train': [('a', 'b')], 'test': [('c', 'd')]}.get")))


def test_a_corpus_is_identified_by_its_code_and_the_files_it_names(tmp_path):
    text = tmp_path / "words.txt"
    text.write_text("one")

    config = experiment(data__corpus=f"{tmp_path}/mine.py:mine")

    def recipe(code):
        (tmp_path / code).write_text(PAIRS.replace("FILES = []", f"FILES = [{str(text)!r}]"))
        return recipe_of(config, open_corpus(config.data).identity())

    first = recipe("mine.py")
    assert differences(first, recipe("mine.py"), config) == []
    text.write_text("two")
    assert [line.partition(" was ")[0] for line in differences(first, recipe("mine.py"), config)] == [
        f"checksum of {text} of the corpus"
    ]
    text.unlink()
    refuses(lambda: recipe("mine.py"), f"FILES names {text}, and there is no such file")


def test_a_measure_may_ask_for_the_sources_and_is_known_by_its_file(mine):
    address = mine("def longer(hypotheses, references, sources): return len(sources[0]) / len(hypotheses[0])", "longer")
    (measure,) = custom_scores(load_metrics([address]), ["abcd"], ["ab"], ["x"]).values()
    assert measure.score == 2.0
    assert re.fullmatch(re.escape(address) + r"\|sha256:[0-9a-f]{12}", measure.signature)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("def mine(hypotheses): pass", "mine", "cannot be called as mine(hypotheses, references): too many positional"),
        ("def bleu(h, r): return 1.0", "bleu", "there is another metric called bleu, the library's; choose another"),
        ("def mine(h, r): return None", "mine", "gave None; must be one finite number"),
        ("def mine(h, r): return float('nan')", "mine", "gave nan; must be one finite number"),
    ],
)
def test_an_invalid_metric_is_refused(mine, text, name, message):
    address = mine(text, name)
    refuses(lambda: custom_scores(load_metrics([address]), ["a"], ["b"], ["c"]), message)


def test_two_measures_of_one_name_are_refused(mine, tmp_path):
    first = mine("def mine(h, r): return 1.0")
    (tmp_path / "other.py").write_text("def mine(h, r): return 1.0")
    refuses(lambda: load_metrics([first, f"{tmp_path}/other.py:mine"]), f"another metric called mine, {first}")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("optimizer__schedule", "cosin", "optimizer.schedule = 'cosin': did you mean cosine?, or path/to/file.py:Name"),
        (
            "optimizer__schedule",
            "mine.py",
            "must be inverse_sqrt | cosine | linear | constant | wsd | path/to/file.py:Name",
        ),
        ("train__loss", "focal", "train.loss = 'focal': must be path/to/file.py:Name or none"),
        ("decode__metrics", ("mine.py:",), "must be comma-separated path/to/file.py:Name"),
    ],
)
def test_an_invalid_address_is_refused_by_the_schema(path, value, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        experiment(**{path: value})
