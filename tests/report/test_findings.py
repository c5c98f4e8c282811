"""Which runs are compared, with what, and by which unit."""

import json

import numpy as np
import pytest

from tests.support.finished_sweeps import Report, edit, make_sweep, record_file, variant
from transformer_jax.report.findings import find
from transformer_jax.report.results import load_sweep


def test_different_vocabularies_are_compared_by_word(sweep):
    for seed in (0, 1):
        path = record_file(sweep, "A h=1", seed)
        record = json.loads(path.read_text())
        record["sentences"]["tokens"] = [2 * count for count in record["sentences"]["tokens"]]
        record["perplexity"]["per_token"] **= 0.5
        edit(path, **record)
    findings = find(load_sweep(sweep))[0]
    assert findings.unit == "word"
    words = {name: np.mean(np.log(values)) for name, values in findings.scores["word_perplexity"].items()}
    expected = words["A h=1"] - words["base"]
    assert findings.by_metric["perplexity"].differences["A h=1"].value == pytest.approx(expected, abs=1e-6)
    report = Report(sweep)
    assert "Perplexity per word" in report.words and "vocabularies differ" in report.page


def test_variant_on_another_test_set_is_not_compared(sweep):
    for seed in (0, 1):
        edit(record_file(sweep, "A h=1", seed), test_set_sha256="0")
    report = Report(sweep)
    assert "A h=1: another test set" in report.words
    assert list(report.json["tests"][0]["bleu_differences"]) == ["A h=4"]


def test_mean_is_over_one_test_set(sweep):
    """A seed that was evaluated on another one is left out, and the report says so."""
    edit(record_file(sweep, "A h=1", 1), test_set_sha256="0")
    findings = find(load_sweep(sweep))[0]
    assert len(findings.by_metric["bleu"].scores["A h=1"]) == len(findings.by_metric["bleu"].scores["base"]) - 1
    assert findings.not_compared == {"A h=1": "1 of its runs: another test set"}


def test_variant_may_have_its_own_baseline(tmp_path):
    variants = (variant("base"), variant("a", 0.5, slug="a"), variant("b", 0.5, slug="b", baseline="a"))
    findings = find(load_sweep(make_sweep(tmp_path, variants)))[0]
    means = {name: np.mean(values) for name, values in findings.by_metric["bleu"].scores.items()}
    assert findings.by_metric["bleu"].differences["b"].value == pytest.approx(means["b"] - means["a"])
