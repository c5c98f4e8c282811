"""The shipped ablations: each loads at each scale, says what the paper says, and its parts do what they promise."""

import copy
import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.places import ROOT
from tests.support.small_models import SOURCE, TARGET, assert_close, numbers_for, small
from tests.support.small_runs import batch_of, experiment, sentences
from tests.support.translating_runs import make_run
from tests.test_table3 import MILLIONS
from transformer_jax import Transformer, load_run, scaled_dot_product_attention
from transformer_jax.config import PartsConfig
from transformer_jax.errors import BadInput
from transformer_jax.experiment import TestSet, evaluate_run
from transformer_jax.extension import load_module
from transformer_jax.model.sinusoid import sinusoid
from transformer_jax.model.size import parameter_counts
from transformer_jax.sweeps.spec import load
from transformer_jax.table3 import TABLE_3
from transformer_jax.translation.score import attention_of_pair
from transformer_jax.translation.stepper import Stepper
from transformer_jax.update.step import batch_sums

EXPERIMENTS = ROOT / "experiments"
FILES = sorted(file.stem for file in EXPERIMENTS.glob("*.py") if file.stem != "bases")
SCALES = ("demo", "multi30k", "paper")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@functools.cache
def definition(name, scale):
    return load(f"experiments/{name}.py", scale)


def module(name):
    return load_module(str(EXPERIMENTS / f"{name}.py"))


# Definitions


def test_all_that_were_promised_are_there():
    promised = "heads norm positions regularization table3 tutorial_mistakes vocabulary width"
    assert promised.split() == FILES


@pytest.mark.parametrize(
    "scale", [pytest.param(scale, marks=() if scale == "demo" else pytest.mark.slow) for scale in SCALES]
)
@pytest.mark.parametrize("name", FILES)
def test_every_file_loads_at_every_scale(name, scale):
    found = definition(name, scale)
    assert found.sweep.name == name
    assert len(found.experiments) == len(found.sweep.variants) >= 6
    assert len(found.seeds) == 3
    changes = [dict(variant.changes) for variant in found.sweep.variants]
    assert all(changes.count(change) == 1 for change in changes)  # no two variants are the same run
    assert f"sweep experiments/{name}.py --scale=demo" in module(name).__doc__


@pytest.mark.parametrize("name", FILES)
def test_a_sweep_folder_names_no_path_of_the_machine_but_where_it_was_begun(name):
    assert str(ROOT) not in json.dumps({**definition(name, "demo").to_json(), "directory": None})


def test_own_parts_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = load(str(EXPERIMENTS / "positions.py"), "demo")
    assert found.experiments["fraction"].model.parts.positions == f"{EXPERIMENTS / 'positions.py'}:Fraction"


def test_an_unknown_scale_is_refused():
    with pytest.raises(BadInput, match="--scale=huge"):
        definition("table3", "huge")


# Table 3


def test_table3_is_the_papers_at_its_scale():
    found = definition("table3", "paper")
    assert {variant.name: dict(variant.changes) for variant in found.sweep.variants} == TABLE_3
    printed = {v.name: v.published["parameters"] / 1e6 for v in found.sweep.variants if "parameters" in v.published}
    assert printed == MILLIONS
    assert found.experiments["big"].train.steps == 300_000
    assert found.sweep.tests == ("valid",)  # newstest2013


def counted(model, rows):
    return sum(parameter_counts(dataclasses.replace(model, vocab_size=rows, attention_bias=True)).values()) / 1e6


@pytest.mark.parametrize("row", [row for row in MILLIONS if row not in ("base", "big")])
def test_table3_has_the_papers_parameters(row):
    """As differences from base at the 41,000 rows that the paper's column fits; big fits 36,000 (see test_table3)."""
    found = definition("table3", "paper").experiments
    difference = counted(found[row].model, 41_000) - counted(found["base"].model, 41_000)
    assert abs(difference - (MILLIONS[row] - MILLIONS["base"])) < 1.0


def test_table3_base_and_big_have_the_papers_parameters():
    found = definition("table3", "paper").experiments
    assert round(counted(found["base"].model, 41_000)) == MILLIONS["base"]
    assert round(counted(found["big"].model, 36_000)) == MILLIONS["big"]


# At the demo scale base has h 8, d_k 8, N 3, d_model 64, d_ff 256: each row by the paper's factor.
DEMO = {
    "A h=1": {"model.num_heads": 1},
    "A h=4": {"model.num_heads": 4},
    "A h=16": {"model.num_heads": 16},
    "A h=32": {"model.num_heads": 32},
    "B d_k=16": {"model.d_k": 2},
    "B d_k=32": {"model.d_k": 4},
    "C N=2": {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1},
    "C N=4": {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2},
    "C N=8": {"model.num_encoder_layers": 4, "model.num_decoder_layers": 4},
    "C d_model=256": {"model.d_model": 32},
    "C d_model=1024": {"model.d_model": 128},
    "C d_ff=1024": {"model.d_ff": 128},
    "C d_ff=4096": {"model.d_ff": 512},
    "D P_drop=0": {"model.dropout": 0.0},
    "D P_drop=0.2": {"model.dropout": 0.2},
    "D eps_ls=0": {"train.label_smoothing": 0.0},
    "D eps_ls=0.2": {"train.label_smoothing": 0.2},
    "E learned positions": {"model.positions": "learned"},
}


def test_table3_at_demo_scale_changes_by_the_papers_factors():
    found = definition("table3", "demo")
    changes = {variant.name: dict(variant.changes) for variant in found.sweep.variants}
    steps = found.base.train.steps
    wide = {"model.d_model": 128, "model.d_ff": 512, "model.num_heads": 16, "model.dropout": 0.3}
    assert changes == {"base": {}, **DEMO, "big": {**wide, "train.steps": 3 * steps}}
    assert found.variant("B d_k=16").note == "here d_k = 2"


def test_table3_on_multi30k_moves_dropout_by_the_papers_differences():
    found = definition("table3", "multi30k")
    dropout = {name: config.model.dropout for name, config in found.experiments.items()}
    assert {name: dropout[name] for name in ("base", "D P_drop=0", "D P_drop=0.2", "big")} == {
        "base": 0.3,
        "D P_drop=0": 0.0,
        "D P_drop=0.2": 0.4,
        "big": 0.5,
    }
    assert [found.experiments[f"A h={h}"].model.num_heads for h in (1, 4, 16, 32)] == [1, 2, 8, 16]
    assert [found.experiments[f"C N={n}"].model.num_decoder_layers for n in (2, 4, 8)] == [1, 3, 5]


# Positions


def test_concatenated_keeps_the_embedding_and_the_position_apart():
    kind = module("positions").Concatenated(small())
    x_BTD = jax.random.normal(jax.random.key(0), (2, 4, 16))
    out_BTD = kind.embed(x_BTD, jnp.arange(4)[None])
    np.testing.assert_array_equal(out_BTD[..., :12], x_BTD[..., :12])
    np.testing.assert_array_equal(out_BTD[1, :, 12:], sinusoid(jnp.arange(4), 4))


def test_fraction_goes_from_zero_to_one():
    kind = module("positions").Fraction(small(max_length=8))
    x_BTD = jnp.zeros((1, 3, 4))
    out_BTD, variables = kind.init_with_output(jax.random.key(0), x_BTD, jnp.array([[0, 4, 8]]), method="embed")
    direction_D = variables["params"]["direction"]
    assert_close(out_BTD[0], jnp.stack([0 * direction_D, direction_D / 2, direction_D]))


# Mistakes

MISTAKES = {variant.name: dict(variant.changes) for variant in module("tutorial_mistakes").mistakes()}
OTHERS = {"concatenated": "Concatenated", "fraction": "Fraction"}
# The sizes of `model_of`, as changes to `experiment`.
SMALL = {"model__vocab_size": 24, "model__num_heads": 2, "model__d_model": 8, "model__d_ff": 12}
DECODES_OTHERWISE = ("masks ignored", "last token alone")  # than it was trained


def parts_of(name):
    """The parts of a variant: its classes, by role."""
    file, changes = "tutorial_mistakes", MISTAKES.get(name)
    if name in OTHERS:
        file, changes = "positions", {"model.parts.positions": f":{OTHERS[name]}"}
    return {
        path.rpartition(".")[2]: f"experiments/{file}.py:{value.rpartition(':')[2]}"
        for path, value in changes.items()
        if path.startswith("model.parts.")
    }


@functools.cache
def model_of(name=None, **changes):
    """A small model with a mistake, and numbers for it. d_k = d_v = d_model / h, as some of the mistakes need."""
    config = small(vocab_size=24, d_k=4, d_v=4, parts=PartsConfig(**(parts_of(name) if name else {})), **changes)
    model = Transformer(config)
    return model, numbers_for(jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET))


@functools.cache
def program(name, method=None):
    """The compiled forward pass, or another method, of `model_of(name)`: a function of variables and tokens."""
    return jax.jit(functools.partial(model_of(name)[0].apply, method=method))


def logits_of(name, source, target):
    return program(name)(model_of(name)[1], source, target)


def encoded(name, source):
    return program(name, "encode")(model_of(name)[1], source)


def changed(tokens, place, token=9):
    tokens = np.array(tokens)
    tokens[(..., place)] = token
    return tokens


def difference(a, b):
    return float(jnp.abs(a - b).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(name for name in MISTAKES if parts_of(name)), *OTHERS])
def test_every_part_trains_a_step(name):
    """A step down the gradient, and the loss is less. Not jitted: there is far less to compile."""
    changes = {f"model__parts__{role}": address for role, address in parts_of(name).items()}
    config = experiment(**changes, **SMALL)
    params, batch = model_of(name)[1]["params"], batch_of(sentences(2))

    def loss(params):
        return batch_sums(config, None, params, batch, None).loss

    slope = jax.grad(loss)(params)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slope))
    after = jax.tree.map(lambda leaf, down: leaf - 1e-4 * down, params, slope)
    assert float(loss(after)) < float(loss(params))


@pytest.mark.parametrize("name", [*(name for name in MISTAKES if parts_of(name)), *OTHERS])
def test_decoding_word_by_word_computes_what_training_does_or_not(name):
    model, variables = model_of(name)
    whole_BTN = logits_of(name, SOURCE[:1], TARGET[:1])
    stepper = Stepper(model.config, variables["params"])
    cache, steps = jax.jit(stepper.start, static_argnums=1)(jnp.asarray(SOURCE[:1]), TARGET.shape[1]), []
    step = jax.jit(stepper.step)
    for token in TARGET[0]:
        logits_BN, cache = step(jnp.array([token]), cache)
        steps.append(logits_BN[0])
    if name in DECODES_OTHERWISE:
        assert difference(jnp.stack(steps)[1:], whole_BTN[0, 1:]) > 1e-3
    else:
        assert_close(jnp.stack(steps), whole_BTN[0], within=1e-4)


def test_masks_ignored_let_the_decoder_see_ahead():
    for name, sees in (("masks ignored", True), ("no padding masks", False), (None, False)):
        before, after = (logits_of(name, SOURCE[:1], t) for t in (TARGET[:1], changed(TARGET[:1], 3)))
        assert (difference(before[:, :3], after[:, :3]) > 1e-3) == sees, name


@pytest.mark.parametrize(
    ("name", "in_encoder", "in_decoder"),
    [
        (None, False, False),
        ("masks ignored", True, True),
        ("no padding masks", True, True),
        ("no cross mask", False, True),
    ],
)
def test_padding_of_the_source_is_seen_where_a_mask_is_missing(name, in_encoder, in_decoder):
    padded = np.pad(SOURCE[:1], ((0, 0), (0, 3)))
    memory, padded_memory = (encoded(name, source) for source in (SOURCE[:1], padded))
    assert (difference(memory, padded_memory[:, : SOURCE.shape[1]]) > 1e-3) == in_encoder
    logits, padded_logits = (logits_of(name, source, TARGET[:1]) for source in (SOURCE[:1], padded))
    assert (difference(logits, padded_logits) > 1e-3) == in_decoder


def test_no_transpose_keeps_words_from_looking_at_each_other():
    for name, looks in (("no transpose", False), (None, True)):
        before, after = (encoded(name, s) for s in (SOURCE[:1], changed(SOURCE[:1], 1)))
        assert (difference(before[:, 2:], after[:, 2:]) > 1e-3) == looks


def test_projections_that_are_shared_or_left_out():
    def shapes(name):
        attention = model_of(name)[1]["params"]["encoder"]["layers_0"]["self_attention"]
        return {role: leaf.shape for role, (leaf,) in ((r, jax.tree.leaves(part)) for r, part in attention.items())}

    assert shapes("shared projections") == {"query": (4, 4), "key": (4, 4), "value": (4, 4), "output": (8, 8)}
    assert shapes("no output projection") == {"query": (8, 8), "key": (8, 8), "value": (8, 8)}


def test_shared_projections_multiply_each_slice_by_the_same_matrix():
    shared = module("tutorial_mistakes").SharedByHeads(2, False, jnp.float32)
    x_BTD = jax.random.normal(jax.random.key(0), (1, 3, 8))
    out_BTD, variables = shared.init_with_output(jax.random.key(1), x_BTD, 8)
    kernel_KK = variables["params"]["shared"]["kernel"]
    assert_close(out_BTD, jnp.concatenate([x_BTD[..., :4] @ kernel_KK, x_BTD[..., 4:] @ kernel_KK], axis=-1))


def test_unscaled_attention_has_scale_one():
    attention = module("tutorial_mistakes").Unscaled(num_heads=2)
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 3, 2, 4)) for i in range(3))
    found = attention.apply({}, q, k, v, None, None, True, method="attend")
    assert_close(found, scaled_dot_product_attention(q, k, v, scale=1.0)[0])


def test_wrong_exponents_are_those_of_the_tutorials():
    kind = module("tutorial_mistakes").WrongExponents(small())
    table_TD = kind.embed(jnp.zeros((1, 5, 8)), jnp.arange(5)[None])[0]
    for position in range(5):
        for i in range(4):
            assert table_TD[position, 2 * i] == pytest.approx(np.sin(position / 10_000 ** (2 * (2 * i) / 8)), abs=1e-5)
            cosine = np.cos(position / 10_000 ** (2 * (2 * i + 2) / 8))
            assert table_TD[position, 2 * i + 1] == pytest.approx(cosine, abs=1e-5)


def test_a_decoder_fed_by_the_encoder_knows_the_last_word_only():
    for name, knows in (("self-attention to the encoder", False), (None, True)):
        before, after = (logits_of(name, SOURCE[:1], t) for t in (TARGET[:1], changed(TARGET[:1], 0)))
        assert difference(before[:, 0], after[:, 0]) > 1e-3
        assert (difference(before[:, 1:], after[:, 1:]) > 1e-3) == knows


def test_a_residual_from_the_value_forgets_the_target_but_for_what_attention_asks():
    for name, remembers in (("residual from the value", False), (None, True)):
        variables = copy.deepcopy(model_of(name)[1])
        kernel = variables["params"]["decoder"]["layers_0"]["cross_attention"]["output"]
        kernel["kernel"] = jnp.zeros_like(kernel["kernel"])  # attention brings nothing: the residual is all there is
        before, after = (program(name)(variables, SOURCE[:1], t) for t in (TARGET[:1], changed(TARGET[:1], 1)))
        assert (difference(before[:, 1], after[:, 1]) > 1e-3) == remembers


def test_dropout_after_the_norm_leaves_holes():
    for name, holes in (("dropout after the norm", True), (None, False)):
        model, variables = model_of(name, dropout=0.5)
        rngs = {"dropout": jax.random.key(0)}
        memory = model.apply(variables, SOURCE[:1], deterministic=False, method="encode", rngs=rngs)
        assert bool((memory == 0).any()) == holes
        if name:
            still, usual = (model_of(n)[0].apply(variables, SOURCE[:1], TARGET[:1]) for n in (name, None))
            assert_close(still, usual)


def test_a_second_softmax_bounds_the_loss_that_training_sees():
    model, variables = model_of("softmax before the loss")
    logits_BTN = logits_of("softmax before the loss", SOURCE, TARGET)
    assert_close(logits_BTN.sum(-1), jnp.ones(TARGET.shape))
    loud = jax.tree.map(lambda leaf: 100 * leaf, variables["params"])  # as sure as a model can be, of something
    changes = {f"model__parts__{role}": address for role, address in parts_of("softmax before the loss").items()}
    config = experiment(**changes, **SMALL, train__label_smoothing=0.0)
    bound, n = np.log((np.e + model.config.vocab_size - 1) / np.e), batch_of(sentences(2))
    sums, usual = (
        batch_sums(c, None, loud, n, None) for c in (config, experiment(**SMALL, train__label_smoothing=0.0))
    )
    assert bound <= float(sums.loss / sums.tokens) <= bound + 1.0001  # no token is ever likelier, or less likely
    assert float(usual.loss / usual.tokens) > bound + 2


def test_decoding_from_the_last_token_alone_leaves_training_as_it_is():
    variables = model_of("last token alone")[1]
    assert_close(logits_of("last token alone", SOURCE, TARGET), program(None)(variables, SOURCE, TARGET))


# Heads


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """Random weights, two layers of two heads on the decoder's side."""
    return load_run(make_run(tmp_path_factory.mktemp("heads") / "run", num_decoder_layers=2), "averaged")


@pytest.fixture(scope="module")
def heads():
    return module("heads")


@pytest.fixture(scope="module")
def test_set():
    return TestSet("two", "two", ["the big dog sees a cat", "a tree"], ["a big dog likes the cat", "the tree"])


@pytest.fixture(scope="module")
def subject(heads, tiny_run, test_set):
    return heads.Subject(tiny_run, test_set)


def scored(run, test_set):
    """Mean negative log-likelihood of a token, sentence by sentence."""
    scores = run.score(list(zip(test_set.sources, test_set.references, strict=True)))
    return sum(-score.log_probability for score in scores) / sum(len(score.tokens) for score in scores)


def without_head(run, name, layer, head):
    """A run whose W^O has zeros for the head, put there by hand."""
    stack, attention = {"encoder": ("encoder", "self_attention"), "cross": ("decoder", "cross_attention")}[name]
    other = copy.copy(run)
    other.params = jax.tree.map(np.array, run.params)
    other.params[stack][f"layers_{layer}"][attention]["output"]["kernel"][8 * head : 8 * head + 8] = 0.0
    return other


@pytest.mark.parametrize("head", [("encoder", 0, 1), ("cross", 1, 0)])
def test_a_masked_head_is_one_whose_output_counts_nothing(subject, tiny_run, test_set, head):
    by_hand = without_head(tiny_run, *head)
    assert subject.loss(subject.whole) == pytest.approx(scored(tiny_run, test_set), rel=1e-5)
    assert subject.loss(subject.without(head)) == pytest.approx(scored(by_hand, test_set), rel=1e-5)
    assert abs(subject.loss(subject.without(head)) - subject.loss(subject.whole)) > 1e-4


def test_masked_parameters_translate_as_masked_heads_do(subject, heads, tiny_run, test_set):
    """Greedy search, word by word, with the masks given to the model itself."""
    masks = subject.without(("decoder", 0, 0), ("cross", 1, 1))
    model, params = Transformer(tiny_run.config.model), {"params": tiny_run.params}
    source = jnp.asarray([tiny_run.translations(test_set.sources[:1])[0].source.tokens])
    written, predict = [1], jax.jit(lambda target: model.apply(params, source, target, head_masks=masks))
    while len(written) < 6:
        logits = predict(jnp.asarray([written + [0] * (6 - len(written))]))
        written.append(int(logits[0, len(written) - 1].argmax()))
    other = copy.copy(tiny_run)
    other.params = heads.masked(tiny_run.params, masks)
    found = other.translations(test_set.sources[:1], beam=1)[0].hypotheses[0].tokens
    assert list(found[:5]) == written[1:6]
    assert tuple(written[1:6]) != tiny_run.translations(test_set.sources[:1], beam=1)[0].hypotheses[0].tokens[:5]


def test_importance_is_the_slope_of_each_sentences_loss(heads, tiny_run, test_set):
    head, step = ("cross", 1, 1), 1e-2
    slopes = []
    for pair in zip(test_set.sources, test_set.references, strict=True):
        alone = heads.Subject(tiny_run, TestSet("one", "one", [pair[0]], [pair[1]]))
        losses = []
        for factor in (1 - step, 1 + step):
            masks = alone.whole
            masks[head[0]][head[1], head[2]] = factor
            losses.append(alone.loss(masks))
        slopes.append(abs(losses[1] - losses[0]) / (2 * step))
    found = heads.head_importance(heads.Subject(tiny_run, test_set))
    assert float(found["cross"][1, 1]) == pytest.approx(np.mean(slopes), rel=1e-2)


def test_entropy_and_distance_are_those_of_the_attention(heads, tiny_run, test_set):
    found = dict(zip(("entropy", "distance"), heads.head_attention(heads.Subject(tiny_run, test_set)), strict=True))
    entropies, distances = [], []
    for source, reference in zip(test_set.sources, test_set.references, strict=True):
        sides = [[*tiny_run.tokenizer.encode_batch([text])[0], 2] for text in (source, reference)]
        weights_TS = attention_of_pair(tiny_run.config.model, tiny_run.params, *sides).cross_NHTS[1, 0]
        entropies += [-(row * np.log2(row)).sum() for row in weights_TS]
        distances += [(row * np.abs(np.arange(len(row)) - t)).sum() for t, row in enumerate(weights_TS)]
    assert float(found["entropy"]["cross"][1, 0]) == pytest.approx(np.mean(entropies), rel=1e-4)
    assert float(found["distance"]["cross"][1, 0]) == pytest.approx(np.mean(distances), rel=1e-4)


def test_the_analysis_of_heads_is_whole_and_can_be_written(heads, tiny_run, test_set):
    found = json.loads(json.dumps(heads.what_heads_do(tiny_run, tiny_run.config, {"test": test_set})))
    each, one_left, curve = (table["rows"] for table in found["tables"])
    assert [row[:3] for row in each] == [
        [name, layer, rank]
        for name, layers in (("encoder", 1), ("decoder", 2), ("cross", 2))
        for layer in range(1, layers + 1)
        for rank in (1, 2)
    ]
    assert all(first[3] >= second[3] for first, second in zip(each[0::2], each[1::2], strict=True))
    # Of two heads, leaving the best is masking the other.
    assert [row[2] for row in one_left] == [row[3] for row in each[1::2]]
    assert [row[0] for row in curve] == [n / 8 for n in range(9)]
    assert curve[0][1] == pytest.approx(np.exp(scored(tiny_run, test_set)), rel=1e-3)
    assert all(len(table["columns"]) == len(row) for table in found["tables"] for row in table["rows"])
    assert set(found["plots"][1]["series"]) == {"encoder", "decoder", "cross"}


# Vocabulary


def test_perplexity_by_unit_is_that_of_the_evaluation(tiny_run, test_set):
    record = evaluate_run(tiny_run, tiny_run.config.decode, test_set).record["perplexity"]
    found = module("vocabulary").perplexity_by_unit(tiny_run, tiny_run.config, {"test": test_set})
    ((name, character, word, token, length),) = found["tables"][0]["rows"]
    assert name == "test"
    expected = [record[f"per_{unit}"] for unit in ("character", "word", "token")]
    assert [character, word, token] == pytest.approx(expected, rel=1e-3)
    assert length == pytest.approx(record["characters"] / record["tokens"], abs=1e-3)
