"""The shipped ablations: each loads at each scale, says what the paper says, and its parts do what they promise."""

import copy
import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import finished_sweeps
from tests.support.places import ROOT
from tests.support.small_models import SOURCE, TARGET, assert_close, numbers_for, small
from tests.support.small_runs import experiment, objective_of
from tests.support.translating_runs import made_run, make_run
from tests.test_table3 import MILLIONS
from transformer_jax import Transformer, load_run, shipped
from transformer_jax.config import PartsConfig
from transformer_jax.data.batching import Batch
from transformer_jax.data.tokenizer import BOS, PAD
from transformer_jax.errors import BadInput
from transformer_jax.experiment import TestSet, evaluate_run
from transformer_jax.extension import load_module
from transformer_jax.sweeps.resolved import load, parameters, training_flops
from transformer_jax.table3 import TABLE_3
from transformer_jax.translation.beam_cache import Stepper
from transformer_jax.update.step import batch_sums

EXPERIMENTS = ROOT / "experiments"
# Of all others 3.
SEEDS = {
    ("table3", "eight_seeds"): 8,
    ("tutorial_mistakes", "demo"): 1,
    ("regularization", "little"): 5,
    ("sentence_lengths", "multi30k"): 4,
    ("sentence_lengths", "recipe"): 4,
}
FILES = sorted(file.stem for file in EXPERIMENTS.glob("*.py") if file.stem not in shipped.NOT_EXPERIMENTS)


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@functools.cache
def definition(name, scale):
    return load(f"experiments/{name}.py", scale)


def module(name):
    return load_module(str(EXPERIMENTS / f"{name}.py"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.drill)], ids=["", "other scales"])
def test_every_file_loads(name, others):
    scales = module(name).SCALES
    for scale in scales[1:] if others else scales[:1]:
        found = definition(name, scale)
        assert found.sweep.name == name
        assert len(found.experiments) == len(found.sweep.variants) >= 2
        assert len(found.seeds) == SEEDS.get((name, scale), 3)
    assert f"sweep experiments/{name}.py --scale=" in module(name).__doc__
    # A sweep's folder names no path of the machine but where the sweep was started.
    assert str(ROOT) not in json.dumps({**definition(name, scales[0]).to_json(), "directory": None})


def test_the_best_rate_is_the_vertex_of_a_parabola_over_the_logarithm():
    best_rate = module("mup").best_rate
    rates = [0.001 * 2 ** (0.5 * step) for step in range(6)]
    losses = {rate: 2 + 0.1 * np.log(rate / 0.0025) ** 2 for rate in rates}
    rate, is_edge = best_rate(losses)
    assert (round(rate, 7), is_edge) == (0.0025, False)
    assert best_rate({rate: rate for rate in rates}) == (0.001, True)


def test_table3_is_the_papers_at_its_scale():
    found = definition("table3", "paper")
    assert {variant.name: dict(variant.changes) for variant in found.sweep.variants} == TABLE_3
    printed = {v.name: v.published["parameters"] / 1e6 for v in found.sweep.variants if "parameters" in v.published}
    assert printed == MILLIONS
    assert found.experiments["big"].train.steps == 300_000
    assert found.sweep.tests == ("valid",)  # newstest2013


def test_modern_compares_at_equal_parameters_and_compute():
    found = definition("modern", "demo")
    base = found.experiments["base"]
    for variant in found.sweep.variants:
        config = found.experiments[variant.name]
        size = parameters(config.model) / parameters(base.model)
        compute = training_flops(config) / training_flops(base)
        for what, ratio in (("parameters", size), ("compute", compute)):
            is_equal = ratio == pytest.approx(1, abs=0.01)
            assert is_equal or what not in variant.name
            assert is_equal == (f"{ratio:.2f} x the {what.replace('compute', 'FLOPs')}" not in variant.note)
    names = " ".join(variant.name for variant in found.sweep.variants)
    assert "shared layers, equal parameters and compute" in names and "multi-query, equal parameters" in names
    assert found.tune == (0.5, 1, 2) and found.experiments["modern"].model.inner_width < base.model.d_ff


def test_table3_at_demo_scale_changes_by_the_papers_factors():
    """There base has h 8, d_k 8, N 3, d_model 64, d_ff 256."""
    found = definition("table3", "demo")
    changes = {variant.name: dict(variant.changes) for variant in found.sweep.variants}
    assert changes.keys() == TABLE_3.keys() and changes["A h=16"] == TABLE_3["A h=16"]
    assert changes["B d_k=16"] == {"model.d_k": 2}
    wide = {"model.d_model": 128, "model.d_ff": 512, "model.num_heads": 16, "model.dropout": 0.3}
    assert changes["big"] == {**wide, "train.steps": 3 * found.base.train.steps}


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


# Without jit, and always on arrays of the same shapes: an operation is compiled once for all models.


def logits_of(name, source=SOURCE, target=TARGET, variables=None):
    model, usual = model_of(name)
    return model.apply(usual if variables is None else variables, source, target)


def encoded(name, source=SOURCE, variables=None):
    model, usual = model_of(name)
    return model.apply(usual if variables is None else variables, source, method="encode")


def changed(tokens, place, token=9):
    """Another token at one place of the first sentence."""
    tokens = np.array(tokens)
    tokens[0, place] = token
    return tokens


def sums_of(name, params, **changes):
    """What training would sum over a batch."""
    parts = {f"model__parts__{role}": address for role, address in parts_of(name).items()} if name else {}
    batch = Batch(source=SOURCE, target_input=TARGET, target_output=np.roll(TARGET, -1, axis=1))
    config = experiment(**parts, **SMALL, **changes)
    return batch_sums(config, objective_of(config), params, batch)


def difference(a, b):
    return float(jnp.abs(a - b).max())


# The others are the long form.
FEW = ("masks ignored", "last token alone", "concatenated")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FEW else pytest.mark.drill)
        for name in (*(name for name in MISTAKES if parts_of(name)), *OTHERS)
    ],
)
def test_every_part_trains_and_decodes(name):
    """Decoding word by word computes what training does, or not, where that is the mistake."""
    model, variables = model_of(name)
    jax.eval_shape(jax.grad(lambda params: sums_of(name, params).loss), variables["params"])

    @jax.jit
    def computed(params):
        stepper = Stepper(model.config, params)
        cache = stepper.start(jnp.asarray(SOURCE), TARGET.shape[1])
        _, steps_TBN = jax.lax.scan(lambda cache, tokens: stepper.step(tokens, cache)[::-1], cache, jnp.array(TARGET.T))
        return logits_of(name, variables={"params": params})[0], steps_TBN[:, 0]

    whole_TN, steps_TN = computed(variables["params"])
    if name in DECODES_OTHERWISE:
        assert difference(steps_TN[1:], whole_TN[1:]) > 1e-3
    else:
        assert_close(steps_TN, whole_TN, within=1e-4)


@pytest.mark.parametrize(
    ("name", "side", "place", "others", "seen", "usually"),
    [
        ("masks ignored", "target", 3, slice(3), True, False),  # the decoder sees ahead
        ("no padding masks", "target", 3, slice(3), False, False),
        ("no transpose", "source", 1, slice(2, None), False, True),
        ("self-attention to the encoder", "target", 0, slice(1, None), False, True),  # it knows the last word only
    ],
)
def test_which_words_see_a_word(name, side, place, others, seen, usually):
    for mistake, is_seen in ((name, seen), (None, usually)):
        if side == "source":
            before, after = (encoded(mistake, source)[0] for source in (SOURCE, changed(SOURCE, place)))
        else:
            before, after = (logits_of(mistake, target=target)[0] for target in (TARGET, changed(TARGET, place)))
        assert difference(before[place], after[place]) > 1e-3
        assert (difference(before[others], after[others]) > 1e-3) == is_seen


@pytest.mark.parametrize(
    ("name", "in_encoder", "in_decoder"),
    [(None, 0, 0), ("masks ignored", 1, 1), ("no padding masks", 1, 1), ("no cross mask", 0, 1)],
)
def test_padding_of_the_source_is_seen_where_a_mask_is_missing(name, in_encoder, in_decoder):
    """What padding is embedded as matters to the words of a sentence that has two of it, three words and three more."""
    variables = copy.deepcopy(model_of(name)[1])
    table = variables["params"]["source_embedding"]["table"]
    variables["params"]["source_embedding"]["table"] = table.at[PAD].add(1.0)
    assert (difference(encoded(name)[1, :3], encoded(name, variables=variables)[1, :3]) > 1e-3) == in_encoder
    logits_TN, other_TN = logits_of(name)[1, :3, 1:], logits_of(name, variables=variables)[1, :3, 1:]
    assert (difference(logits_TN, other_TN) > 1e-3) == in_decoder


def test_the_right_words_share_of_epsilon_is_missing():
    arguments = jnp.zeros((1, 1, 5)), jnp.array([[3]]), jnp.ones((1, 1))
    loss, count = module("tutorial_mistakes").smoothed_with_a_remainder(*arguments, 0.2)
    assert_close(loss, 0.96 * jnp.log(5.0))
    assert count == 1


def test_a_second_softmax_gives_probabilities_in_place_of_logits():
    assert_close(logits_of("softmax before the loss").sum(-1), jnp.ones(TARGET.shape))


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
    """Of different lengths, 8 and 9 tokens, that are padded to one: whatever is computed is compiled once."""
    sources = ["a cat sees the dog", "the red dog sees a cat"]
    return TestSet("two", "two", sources, ["the red dog sees a cat", "the cat sees a dog"])


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


def test_a_masked_head_is_one_whose_output_counts_nothing(heads, subject, tiny_run, test_set):
    assert subject.loss(subject.whole) == pytest.approx(scored(tiny_run, test_set), rel=1e-5)
    for head in (("encoder", 0, 1), ("cross", 1, 0)):
        by_hand = without_head(tiny_run, *head)
        assert subject.loss(subject.without(head)) == pytest.approx(scored(by_hand, test_set), rel=1e-5)
        assert abs(subject.loss(subject.without(head)) - subject.loss(subject.whole)) > 1e-4
        jax.tree.map(
            np.testing.assert_array_equal, heads.masked(tiny_run.params, subject.without(head)), by_hand.params
        )


def test_importance_is_the_slope_of_each_sentences_loss(heads, tiny_run, test_set):
    head, step = ("cross", 1, 1), 2e-3
    slopes = []
    for source, reference in zip(test_set.sources, test_set.references, strict=True):
        alone = heads.Subject(tiny_run, TestSet("one", "one", [source], [reference]))
        below, above = alone.whole, alone.whole
        below[head[0]][head[1:]], above[head[0]][head[1:]] = 1 - step, 1 + step
        slopes.append(abs(alone.loss(above) - alone.loss(below)) / (2 * step))
    found = heads.head_importance(heads.Subject(tiny_run, test_set))
    assert float(found["cross"][1, 1]) == pytest.approx(np.mean(slopes), rel=1e-2)


def test_entropy_and_distance_are_those_of_the_attention(heads, tiny_run, test_set):
    entropy, distance = heads.head_attention(heads.Subject(tiny_run, test_set))
    sides = [tiny_run.tokenizer.encode_batch(texts) for texts in (test_set.sources, test_set.references)]
    sources, targets = (np.array([[*tokens, 2, *[0] * (9 - len(tokens))] for tokens in side]) for side in sides)
    run = jax.jit(functools.partial(Transformer(tiny_run.config.model).apply, mutable=["intermediates"]))
    _, state = run({"params": tiny_run.params}, sources, np.insert(targets, 0, 1, axis=1)[:, :-1])
    weights_BHTS = state["intermediates"]["decoder"]["layers_1"]["cross_attention"]["weights"][0]
    entropies, distances = [], []
    for weights_TS, source, target in zip(np.asarray(weights_BHTS[:, 0]), *sides, strict=True):
        for t, row in enumerate(weights_TS[: len(target) + 1, : len(source) + 1]):
            entropies.append(-(row * np.log2(row)).sum())
            distances.append((row * np.abs(np.arange(len(row)) - t)).sum())
    assert float(entropy["cross"][1, 0]) == pytest.approx(np.mean(entropies), rel=1e-4)
    assert float(distance["cross"][1, 0]) == pytest.approx(np.mean(distances), rel=1e-4)


RATE = "optimizer.learning_rate"


def test_mups_losses_are_of_each_width_and_rate(tmp_path):
    rates, widths = (0.001, 0.002), (64, 128)
    variants = [
        {**finished_sweeps.variant(f"{width} {rate}"), "group": f"muP, d_model={width}", "changes": {RATE: rate}}
        for width, rate in itertools.product(widths, rates)
    ]
    finished_sweeps.make_sweep(tmp_path, variants, seeds=(0,), baseline="64 0.001")
    losses = module("mup").losses_of(tmp_path)
    assert losses == {("muP", width): dict.fromkeys(rates, 1.0) for width in widths}


def test_updates_and_seconds_are_those_to_the_loss_that_every_run_reached(tmp_path, capsys):
    finished_sweeps.make_sweep(tmp_path, [finished_sweeps.variant(name) for name in ("Adam", "Muon")], seeds=(0,))
    for name, losses in (("Adam", (5.0, 4.0, 3.0)), ("Muon", (4.0, 3.5, 2.0))):
        validations = [{"step": 50 * (i + 1), "valid_loss": loss} for i, loss in enumerate(losses)]
        intervals = [{"step": 100, "seconds": 8.0}, {"step": 200, "seconds": 6.0}]
        lines = sorted(validations + intervals, key=lambda line: line["step"])
        (tmp_path / "runs" / name / "seed-0" / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    optimizers = module("optimizers")
    optimizers.print_times(tmp_path)
    optimizers.print_times(tmp_path, 4.0)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[2] for line in lines if "updates" in line] == ["150", "150", "100", "50"]
    assert [line[2] for line in lines if "seconds" in line] == ["11", "11", "8", "4"]
    with pytest.raises(BadInput, match="lowest"):
        optimizers.print_times(tmp_path, 2.5)


@pytest.mark.parametrize(("name", "scale"), [("scan", "paper"), ("cogs", "paper")])
def test_scores_of_the_literature_that_nobody_verified_are_marked(name, scale):
    found = definition(name, scale).sweep.variants
    assert any(variant.published for variant in found)
    assert all(set(variant.unverified) == set(variant.published) for variant in found)


def test_the_analysis_of_heads_is_whole_and_can_be_written(heads, tiny_run, test_set):
    found = json.loads(json.dumps(heads.what_heads_do(tiny_run, tiny_run.config, {"test": test_set})))
    ranked, one_left, curve = (table["rows"] for table in found["tables"])
    assert len(ranked) == 10 and all(len(t["columns"]) == len(row) for t in found["tables"] for row in t["rows"])
    # Of two heads, leaving the best is masking the other.
    assert [row[2] for row in one_left] == [row[3] for row in ranked[1::2]]
    assert [row[0] for row in curve] == [n / 8 for n in range(9)]
    assert curve[0][1] == pytest.approx(np.exp(scored(tiny_run, test_set)), rel=1e-3)


# Vocabulary


def test_perplexity_by_unit_is_that_of_the_evaluation(tiny_run, test_set):
    whole = evaluate_run(tiny_run, dataclasses.replace(tiny_run.config.decode, beam=1), test_set).record
    record = whole["perplexity"]
    found = module("vocabulary").perplexity_by_unit(tiny_run, tiny_run.config, {"test": test_set})
    ((name, character, word, token, length, unknown),) = found["tables"][0]["rows"]
    assert name == "test" and unknown == whole["unknown_tokens"]
    expected = [record[f"per_{unit}"] for unit in ("character", "word", "token")]
    assert [character, word, token] == pytest.approx(expected, rel=1e-3)
    assert length == pytest.approx(record["characters"] / record["tokens"], abs=1e-3)


# Where the number of a verb is


def test_the_share_of_a_number_is_none_where_sentences_agree_and_all_where_the_verb_is_chosen():
    run, numbers = load_run(made_run(), "averaged"), np.random.default_rng(0).integers(4, 290, (3, 6))
    other = numbers.copy()
    other[:, 2] += 3  # the noun
    pairs = module("verb_number").Pairs(numbers, other, np.full((3, 2), BOS), numbers[:, :2])
    found = module("verb_number").shares(run, pairs)
    assert [name for name, _ in found["encoder"]] == [name for name, _ in found["decoder"]] == ["embeddings", "layer 1"]
    embedded_S, embedded_T = found["encoder"][0][1], found["decoder"][0][1]
    np.testing.assert_allclose(embedded_S, [0, 0, 1, 0, 0, 0], atol=1e-3)
    np.testing.assert_allclose(embedded_T, [0, 0], atol=1e-6)
    np.testing.assert_allclose(found["decoder"][-1][1], [0, 1], atol=1e-3)


def test_the_sentences_of_the_verbs_number_differ_in_it_alone():
    pairs = module("verb_number").sentences()
    assert ("yesterday the teacher rescued the wolf .", "gestern rettete der Lehrer den Wolf .") in [
        one for one, _ in pairs
    ]
    for (english, german), (many, viele) in pairs[::997]:
        assert len(english.split()) == len(many.split()) and (english != many) and (german != viele)
