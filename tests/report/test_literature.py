"""Our differences beside those of the literature: signs, significance, ranks."""

from types import SimpleNamespace

import pytest

from tests.support.finished_sweeps import VARIANTS, Report, make_sweep, variant
from transformer_jax.report.literature import Comparison, VariantComparison
from transformer_jax.report.metrics import BLEU
from transformer_jax.report.text import words


def row(name, value, published, is_significant=False, verified=True):
    agrees = value * published > 0 if value * published else None
    return VariantComparison(name, value, published, verified, agrees, is_significant)


def sentence(*rows):
    return words("notes", SimpleNamespace(differences={}, by_metric={}, not_compared={}), [Comparison(BLEU, rows)])[0]


def test_counts_and_correlation_in_a_sentence():
    rows = [row("a", 1.0, 2.0, True), row("b", -1.0, 0.5, True), row("c", -2.0, 0.1), row("d", 0.5, 0.0, True)]
    assert Comparison(BLEU, rows).contradicted == ["b"]
    assert "1 of 4 have" in sentence(*rows) and "sign: b." in sentence(*rows) and "0.40 (n = 4)" in sentence(*rows)
    assert sentence(rows[0]).endswith("opposite sign: none.")  # of one, no ranks
    assert sentence(row("x", 1.0, 2.0, verified=False)).endswith(": x.")


def test_every_format_has_the_comparison(whole):
    """Of the variants with published scores, A h=1 was made clearly worse, as it is in the paper."""
    heading = "Compared with the published figures"
    assert heading in whole.page and f"## {heading}" in whole.markdown
    bleu, perplexity = whole.json["published"]
    assert [each["variant"] for each in bleu["rows"]] == ["A h=1", "A h=4"]
    one = bleu["rows"][0]
    assert one["published"] == pytest.approx(-0.9) and one["agrees"] and one["significant"]
    assert one["difference"] == whole.json["tests"][0]["bleu_differences"]["A h=1"]["value"]
    assert perplexity["measure"] == "perplexity" and perplexity["n"] == 2
    lines = [line for line in whole.markdown.partition(heading)[2].splitlines() if line.startswith("| A h=1 |")]
    cells = [[cell.strip(" *") for cell in line.split("|")[3:-1]] for line in lines]
    assert cells[0] == ["−0.90", "yes", "yes"] and cells[1][0] == "+7.5 %"


def test_nothing_published_nothing_compared(tmp_path):
    report = Report(make_sweep(tmp_path, (VARIANTS[0], variant("other", -1.0)), sentences=20))
    assert report.json["published"] == [] and report.content.literature == []
    assert "exact publ." not in report.page + report.markdown  # empty columns are dropped
