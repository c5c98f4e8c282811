"""Forest plots of the differences from the baseline."""

from transformer_jax.report.differences import forests


def test_a_row_for_each_variant_with_its_interval(whole):
    findings = whole.content.tests[0]
    plots = forests(whole.content.sweep, findings)
    assert list(plots) == ["bleu", "perplexity"]
    rows = {row.name: row for row in plots["bleu"].rows}
    assert list(rows) == [variant.name for variant in whole.content.sweep.variants[1:]]
    found = findings.bleu_differences["A h=1"]
    row = rows["A h=1"]
    assert (row.value, row.low, row.high, row.mark) == (found.value, found.low, found.high, "worse")
    assert row.published is not None and abs(row.published - -0.9) < 1e-9
    assert rows["A h=4"].mark == ""
    assert plots["perplexity"].x == "Δ perplexity per token in %, log scale (← better)" and plots["perplexity"].is_log
