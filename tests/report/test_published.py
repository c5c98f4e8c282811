"""Our differences beside the published ones: signs, significance, ranks."""

import pytest

from tests.support.finished_sweeps import VARIANTS, Report, make_sweep, variant
from transformer_jax.report.metrics import BLEU
from transformer_jax.report.published import Comparison, Row
from transformer_jax.report.statistics import Difference


def difference(value, significant=False, seed_spread="own"):
    p = 0.01 if significant else 0.5
    return Difference(value, 1.0, 5.0, value - 1, value + 1, p, p, 2.0, (3, 3), seed_spread)


def test_counts_and_correlation_in_a_sentence():
    rows = [
        Row("a", difference(1.0, True), 2.0),
        Row("b", difference(-1.0, True), 0.5),
        Row("c", difference(-2.0), 0.1),
        Row("d", difference(0.5, True), 0.0),
    ]
    assert Comparison(BLEU, rows).sentence() == (
        "Published differences in BLEU: 1 of 4 have the same sign as ours. Significant with the opposite sign: b. "
        "Spearman's rank correlation: 0.40 (n = 4)."
    )
    assert Comparison(BLEU, rows[:1]).sentence().endswith("opposite sign: none.")  # of one, no ranks
    of_one_seed = Comparison(BLEU, [Row("b", difference(-1.0, True, "none"), 0.5)])
    assert "opposite sign (of one seed: perhaps a difference between seeds): b." in of_one_seed.sentence()


def test_every_format_has_the_comparison(whole):
    """Of the variants with published scores, A h=1 was made clearly worse, as it is in the paper."""
    heading = "Compared with the published figures"
    assert heading in whole.page and f"## {heading}" in whole.markdown
    bleu, perplexity = whole.json["published"]
    assert [row["variant"] for row in bleu["rows"]] == ["A h=1", "A h=4"]
    one = bleu["rows"][0]
    assert one["published"] == pytest.approx(-0.9) and one["agrees"] and one["significant"]
    assert one["difference"] == whole.json["tests"][0]["bleu_differences"]["A h=1"]["value"]
    assert perplexity["measure"] == "perplexity" and perplexity["n"] == 2
    (row,) = [line for line in whole.markdown.partition(heading)[2].splitlines() if line.startswith("| A h=1 |")]
    cells = [cell.strip(" *") for cell in row.split("|")[2:-1]]
    assert (cells[1], cells[2], cells[3]) == ("−0.90", "yes", "yes") and cells[5] == "+7.5 %"


def test_nothing_published_nothing_compared(tmp_path):
    report = Report(make_sweep(tmp_path, (VARIANTS[0], variant("other", -1.0)), sentences=20))
    assert report.json["published"] == [] and "published figures" not in report.markdown
