"""Our differences beside those of the literature: signs, significance, ranks."""

import pytest

from tests.support.finished_sweeps import VARIANTS, Report, make_sweep, variant
from transformer_jax.report.literature import Comparison, VariantComparison
from transformer_jax.report.metrics import BLEU
from transformer_jax.report.statistics import Difference


def row(name, value, published, is_significant=False, seed_spread="own", is_verified=True):
    p = 0.01 if is_significant else 0.5
    ours = Difference(value, 1.0, 5.0, value - 1, value + 1, p, p, 2.0, (3, 3), seed_spread)
    return VariantComparison(name, ours, published, is_verified)


def test_counts_and_correlation_in_a_sentence():
    rows = [row("a", 1.0, 2.0, True), row("b", -1.0, 0.5, True), row("c", -2.0, 0.1), row("d", 0.5, 0.0, True)]
    sentence = Comparison(BLEU, rows).sentence()
    assert "1 of 4 have" in sentence and "opposite sign: b." in sentence and "0.40 (n = 4)" in sentence
    assert Comparison(BLEU, rows[:1]).sentence().endswith("opposite sign: none.")  # of one, no ranks
    of_one_seed = Comparison(BLEU, [row("b", -1.0, 0.5, True, "none")])
    assert "of one seed" in of_one_seed.sentence()
    assert Comparison(BLEU, [row("x", 1.0, 2.0, is_verified=False)]).sentence().endswith(": x.")


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
    (line,) = [line for line in whole.markdown.partition(heading)[2].splitlines() if line.startswith("| A h=1 |")]
    cells = [cell.strip(" *") for cell in line.split("|")[2:-1]]
    assert (cells[1], cells[2], cells[3]) == ("−0.90", "yes", "yes") and cells[5] == "+7.5 %"


def test_nothing_published_nothing_compared(tmp_path):
    report = Report(make_sweep(tmp_path, (VARIANTS[0], variant("other", -1.0)), sentences=20))
    assert report.json["published"] == [] and report.content.literature is None
