"""A sweep whose runs would answer nothing is refused before any of them starts; a stored one still loads."""

import json
import math

import pytest

from tests.support.sweep_runs import BASE, FOUR, defined, experiment_file
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.report import table
from transformer_jax.sweeps import Variant, spec
from transformer_jax.sweeps.checks import PUBLISHED, listed

WIDTH = {"model.gated_width": "two_thirds"}
FILES = {**BASE, "data": {"source": ["none.en"], "target": ["none.de"]}}


@pytest.mark.parametrize(
    ("variants", "changes", "message"),
    [
        (
            [Variant("a", FOUR.changes, published={"blue": 27.5})],
            {},
            "variant 'a': published['blue']: no report shows it; did you mean bleu? There are: perplexity, bleu, "
            "parameters, exact_match",
        ),
        ([Variant("a", FOUR.changes, published={"x": 1})], {}, "there are: perplexity, bleu, parameters, exact_match"),
        ([Variant("a", FOUR.changes, published={"bleu": "27.5"})], {}, "published['bleu'] = '27.5': must be a finite"),
        ([Variant("a", FOUR.changes, published={"bleu": math.nan})], {}, "published['bleu'] = nan: must be a finite"),
        ([Variant("a", FOUR.changes, published={"bleu": 1.0}, unverified=["perplexity"])], {}, "unverified"),
        ([Variant("a", FOUR.changes, published=27.5)], {}, "published = 27.5: must be a dict of figures"),
        ([Variant("a", WIDTH)], {}, "variant 'a': model.gated_width has no effect here: it needs "),
        ([Variant("a")], {}, "variants 'base' and 'a': all that has an effect is the same in them; leave one out"),
        ([FOUR], {"untuned": True}, "untuned = True and tune = None: no variant has a tuned rate; give tune"),
        ([FOUR], {"untuned": True, "tune": ()}, "untuned = True and tune = (): no variant has a tuned rate"),
        ([FOUR], {"tune": (2,)}, "tune = (2,): needs at least two factors to choose among"),
        (
            [FOUR],
            {"tests": ("tset",)},
            "variants 'base', 'h = 4': tests = 'tset': its data has no such sentences; did you mean test?",
        ),
        ([FOUR], {"tests": ("train",)}, "tests = 'train': its data has no such sentences"),
    ],
)
def test_what_would_answer_nothing_is_refused_in_a_line(variants, changes, message):
    with pytest.raises(ConfigError) as error:
        defined(*variants, **changes)
    (problem,) = error.value.problems
    assert message in problem and problem.startswith("file.py: ")


def test_the_published_figures_are_those_that_reports_read():
    assert {*PUBLISHED} == {key for _, key, _ in table.PUBLISHED} | {"exact_match"}


def test_a_default_may_undo_what_the_base_sets():
    base = {**BASE, "model": {**BASE["model"], "activation": "geglu", "gated_width": "two_thirds"}}
    back = {"model.activation": "relu", "model.gated_width": "d_ff"}
    assert defined(Variant("relu", back, published={"bleu": 27.5, "parameters": 65_000_000}), base=base)
    with pytest.raises(ConfigError, match="variants 'relu' and 'the same'"):
        defined(Variant("relu", back), Variant("the same", {"model.activation": "relu"}), base=base)


def test_splits_are_refused_where_the_data_is_known():
    tests = ("test", "test_long")
    assert defined(base={**BASE, "data": {**BASE["data"], "corpus": "grammar"}}, tests=tests).sweep.tests == tests
    assert defined(base=FILES, tests=tests)  # not there yet: preparing them says so
    data = {**BASE["data"], "test_size": 0, "task": {**BASE["data"]["task"], "test_size": 0}}
    with pytest.raises(ConfigError, match="tests = 'test': its data has no such sentences; there are: valid"):
        defined(base={**BASE, "data": data})


def test_a_stored_sweep_is_not_refused():
    record = json.loads(json.dumps(defined(FOUR).to_json()))
    for variant in record["variants"]:
        variant |= {"changes": {}, "published": {"blue": 1}}
    loaded = spec.from_json({**record, "tests": ["tset"], "untuned": True, "tune": [2]}, "sweep.json")
    assert loaded.sweep.tests == ["tset"] and loaded.tune == (2,)


def test_the_command_line_may_leave_out_tuning(tmp_path):
    path = str(experiment_file(tmp_path, "Variant('h = 4', {'model.num_heads': 4})", tune=(1, 2), untuned=True))
    assert spec.load(path).sweep.untuned and not spec.load(path, tune=()).sweep.untuned


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("Sweep(untune=True)", r"x\.py: Sweep has no field 'untune'; did you mean untuned\?"),
        ("Variant('a', publish={})", r"x\.py: Variant has no field 'publish'; did you mean published\?"),
    ],
)
def test_a_misspelt_field_has_a_hint(tmp_path, call, message):
    for text in (f"def get_sweep():\n    return {call}\n", f"IT = {call}\n"):
        (tmp_path / "x.py").write_text(f"from transformer_jax.sweeps import Sweep, Variant\n{text}")
        with pytest.raises(BadInput, match=message) as error:
            spec.load(str(tmp_path / "x.py"))
        assert type(error.value) is BadInput  # without a traceback


def test_a_problem_of_several_variants_is_listed_once():
    assert listed([("a", "no"), ("b", "no"), ("a", "no"), ("b", "why")]) == [
        "variants 'a', 'b': no",
        "variant 'b': why",
    ]
