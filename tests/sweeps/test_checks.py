"""A sweep whose runs would answer nothing raises an error before any of them starts."""

import math

import pytest

from tests.support.places import ROOT
from tests.support.sweep_runs import BASE, FOUR, defined
from transformer_jax.errors import ConfigError
from transformer_jax.report import table
from transformer_jax.sweeps import Variant
from transformer_jax.sweeps.checks import PUBLISHED

WIDE = {"model.d_ff": 64}
SHORT = {**BASE, "train": {"steps": 1}}


def problems(*variants, **changes):
    with pytest.raises(ConfigError) as error:
        defined(*variants, **changes)
    return list(error.value.problems)


def test_an_error_in_a_typed_test_set_is_not_the_files():
    (found,) = problems(overrides=[("data.tests.9x.source", "a.en"), ("data.tests.9x.target", "a.de")])
    assert found.startswith("--config.data.tests.9x: must be a letter")


def test_all_that_is_wrong_is_reported_at_once():
    found = problems(
        Variant("a", {"model.num_head": 4}),
        Variant("a", {"model.num_heads": 3, "seed": 1}),
        Variant("b", {"optimizer.name": "addam"}, baseline="bse"),
        overrides=[("train.step", "9"), ("model.dropout", "much")],
        baseline="bas",
        seeds=0,
        tests=(),
        analyses={"heads": "missing.py:f"},
        primary="blue",
        margin={"bleu": 0},
        contrasts={"heads": {"a": 1, "c": -2}},
        weights="newest",
    )
    expected = [
        "--config.train.step",
        "--config.model.dropout = 'much'",
        "file.py: seeds = 0",
        "file.py: variants 'a' and 'a'",
        "file.py: baseline = 'bas'",
        "file.py: baseline = 'bse'",
        "file.py: tests = ()",
        "file.py: missing.py",
        "file.py: weights = 'newest'",
        "file.py: contrasts['heads']: no variant 'c'",
        "file.py: contrasts['heads'] = {'a': 1, 'c': -2}",
        "file.py: variant 'a': model.num_head",
        "file.py: variant 'a': seed",
        "file.py: variant 'a': model.num_heads = 3",
        "file.py: variant 'b': optimizer.name = 'addam'",
        "file.py: primary = 'blue'",
        "file.py: margin = {'bleu': 0}",
    ]
    assert len(found) == len(expected)
    assert all(map(str.startswith, found, expected)), found


RATES = {"optimizer.learning_rate": ("log_uniform", 1e-4, 1e-2)}


@pytest.mark.parametrize(
    ("variants", "changes", "option"),
    [
        ([], {"seeds": True}, "seeds"),
        ([FOUR], {"seeds": [1_000_000], "tune": (1, 2)}, "seeds"),
        ([], {"variants": ["base"]}, "variants"),
        ([Variant("Base", FOUR.changes)], {}, "'base' and 'Base'"),
        ([Variant("..")], {}, "name"),
        ([Variant("n" * 256)], {}, "name: is 256 bytes long"),
        ([Variant("기" * 86)], {}, "name: is 258 bytes long"),
        ([Variant("\u00e9"), Variant("e\u0301")], {}, "would have the same folder"),
        ([], {"analyses": {"a/b": "missing.py:f"}}, "analyses['a/b']: must be the name of a file"),
        ([], {"analyses": {"기" * 80: "missing.py:f"}}, "must be the name of a file"),
        (
            [],
            {"analyses": {"word_perplexity": f"{ROOT}/experiments/heads.py:what_heads_do"}},
            "analyses['word_perplexity']: is the name of",
        ),
        ([FOUR], {"tune": (0, 2)}, "tune = (0, 2): must be two or more different positive factors"),
        ([Variant("small", {"model.vocab_size": 100})], {}, "model.vocab_size has no effect here"),
        ([FOUR], {"base": SHORT}, "train.steps = 1"),  # once, not for each variant
        ([], {"overrides": [("train.best_metric", "exact_match")]}, "train.best_metric"),
        ([FOUR], {"tune": (1 / 3, 0.333333)}, "tune"),
        (
            [Variant("a", {"optimizer.learning_rate": None, "optimizer.warmup_share": 0.1})],
            {"tune": (1, 2)},
            "tune also needs optimizer.learning_rate",
        ),
        ([Variant("a", FOUR.changes, published={"blue": 27.5})], {}, "published['blue']"),
        ([Variant("a", FOUR.changes, published={"bleu": math.nan})], {}, "published['bleu']"),
        ([Variant("a", FOUR.changes, published={"bleu": "27.5"})], {}, "published['bleu'] = '27.5'"),
        (
            [Variant("a", FOUR.changes, published={"perplexity": 0})],
            {},
            "published['perplexity'] = 0: must be positive",
        ),
        ([Variant("a", FOUR.changes, published={"bleu": 1.0}, unverified=["perplexity"])], {}, "unverified"),
        ([Variant("a", {"model.gated_width": "two_thirds"})], {}, "model.gated_width has no effect"),
        ([Variant("a")], {}, "variants 'base' and 'a'"),
        ([Variant("a", {"model.parts.positions": Variant})], {}, "model.parts.positions"),
        ([Variant("a", {"data.order_seed": 1})], {}, "data.order_seed: a variant cannot"),
        ([], {"margin": 0.5}, "needs primary"),
        ([Variant("again", same_as="bse")], {}, "same_as = 'bse'"),
        ([Variant("again", same_as="base"), Variant("more", same_as="again")], {}, "same_as = 'again'"),
        ([Variant("again", FOUR.changes, same_as="base")], {}, "same_as: a control has no changes"),
        ([Variant("a", {**WIDE, "train.keep_best": 0})], {"weights": "best"}, "keep_best"),
        ([Variant("a", {**WIDE, "train.keep_latest": 1})], {"weights": "averaged"}, "keep_latest"),
        ([], {"overrides": [("decode.metrics", f"{ROOT}/examples/exact_match.py:exact_match")]}, "choose another name"),
        ([FOUR], {"answered_by": "all"}, "answered_by = 'all': must be one of differences, effects"),
        ([FOUR], {"answered_by": "simple_effects"}, "no variant has levels"),
        ([FOUR], {"answered_by": "contrasts"}, "answered_by = 'contrasts': there are none"),
        (
            [FOUR],
            {"contrasts": {"mine": {"base": 5e-7, "h = 4": 0}}},
            "contrasts['mine'] = {'base': 5e-07",
        ),
        ([FOUR], {"contrasts": {"mine": {}}}, "contrasts['mine'] = {}: must be weights, not all 0"),
        (
            [Variant("a", FOUR.changes, levels={"h": "4"}), Variant("b", WIDE, levels={"h": "4"})],
            {},
            "variants 'a' and 'b' have the same levels",
        ),
        ([FOUR], {"weights": "ema"}, "optimizer.ema"),
        ([FOUR], {"tune": (1, 2), "search": RATES, "trials": 9}, "tune and search: leave one out"),
        ([FOUR], {"seeds": [1_000_001], "search": RATES, "trials": 9}, "seeds"),
        ([FOUR], {"search": RATES}, "trials = None: must be the number of settings to try"),
        ([FOUR], {"trials": 9}, "search = {}: must have a range"),
        ([FOUR], {"search": RATES, "trials": 9, "propose": "missing.py:f"}, "missing.py"),
        ([FOUR], {"search": {"optimizer.ema": ("choice", [0.9], 0.99)}, "trials": 9}, "choices must be numbers"),
        ([], {"search": {"optimizer.decay_fraction": ("uniform", 0.1, 0.5)}, "trials": 9}, "has no effect here"),
        ([], {"search": {"model.num_heads": ("choice", 2, 3)}, "trials": 9}, "search: setting 1 of variant 'base', {"),
        ([Variant("a", {"model": {"d_ff": 64}})], {}, "variant 'a': model: no such option"),
        ([], {"vary": ["dropout"]}, "vary"),
        ([], {"vary": ["order"], "overrides": [("data.order_seed", "1")]}, "data.order_seed = 1"),
    ],
)
def test_what_would_answer_nothing_is_named_in_a_line(variants, changes, option):
    (problem,) = problems(*variants, **changes)
    assert option in problem and problem.startswith("file.py: ")


def test_the_seed_of_a_sweep_is_no_option():
    assert problems(overrides=[("seed", "5")]) == [
        "--config.seed: has no effect on a sweep, whose seeds are set by --seeds"
    ]
    assert defined(overrides=[("seed", "5")], vary=["order"]).base.seed == 5


def test_the_published_figures_are_those_that_reports_read():
    assert {*PUBLISHED} == {quantity.key for quantity in table.PUBLISHED}


def test_a_default_may_undo_what_the_base_sets():
    base = {**BASE, "model": {**BASE["model"], "activation": "geglu", "gated_width": "two_thirds"}}
    back = {"model.activation": "relu", "model.gated_width": "d_ff"}
    assert defined(Variant("relu", back, published={"bleu": 27.5, "parameters": 65_000_000}), base=base)
    assert len(problems(Variant("relu", back), Variant("the same", {"model.activation": "relu"}), base=base)) == 1


def test_a_custom_module_must_fit(tmp_path):
    part = tmp_path / "part.py"
    part.write_text("from flax import linen as nn\nclass Small(nn.Module):\n    pass\n")
    assert "model.parts.feed_forward" in problems(Variant("own", {"model.parts.feed_forward": f"{part}:Small"}))[0]


def test_tune_needs_a_schedule_with_a_peak(tmp_path):
    path = tmp_path / "schedule.py"
    path.write_text(
        "def own(steps):\n    return lambda count: 1e-3\ndef peaked(peak):\n    return lambda count: peak\n"
    )
    own, peaked = (Variant(name, {"optimizer.schedule": f"{path}:{name}"}) for name in ("own", "peaked"))
    defined(own, peaked, tune=())
    (problem,) = problems(own, peaked, tune=(1, 2))
    assert problem.startswith("file.py: variant 'own': optimizer.schedule")


def test_all_wrong_ranges_are_reported_at_once():
    ranges = {
        "model.dropuot": (("uniform", 0, 1), "no such option"),
        "seed": (("choice", 1, 2), "cannot be searched"),
        "data.valid_size": (("uniform", 5, 9), "cannot be searched: a search is of options that change the training"),
        "decode.beam": (("choice", 1, 4), "cannot be searched"),
        "model.num_heads": (("choice", 2, 4), "the variant 'h = 4' changes it"),
        "model.dropout": (("uniform", 0, 1), "1.0: must be at least 0 and below 1"),
        "train.label_smoothing": (("uniform", 0.2, 0.1), "the first number must be below the second"),
        "optimizer.learning_rate": (("log_uniform", 0, 1), "the first number must be below the second, and above 0"),
        "optimizer.beta1": (
            (0.8, 0.99),
            'must be one of ("uniform", low, high), ("log_uniform", low, high), ("choice"',
        ),
        "optimizer.beta2": ("uniform", 'must be one of ("uniform", low, high)'),
        "optimizer.weight_decay": (("uniform", 0, "much"), "must be one of"),
        "optimizer.epsilon": ((), "must be one of"),
        "model.activation": (("choice", "relu", "glue"), "'glue': must be"),
        "model.d_ff": (("uniform", 16, 32.5), "32.5: must be a whole number"),
    }
    found = problems(FOUR, search={path: given for path, (given, _) in ranges.items()}, trials=1)
    assert found.pop(0).startswith("file.py: trials = 1: must be the number of settings to try: at least 2")
    for problem, (path, (given, message)) in zip(found, ranges.items(), strict=True):
        assert problem.startswith(f"file.py: search[{path!r}] = {given!r}: ") and message in problem
