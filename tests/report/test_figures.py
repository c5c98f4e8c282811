"""Figures: what they show, one column wide with embedded fonts, and the same bytes each time."""

import json
import re

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text

from tests.support.finished_sweeps import VARIANTS, Report, make_sweep, seed_folder, variant
from transformer_jax.report.figures import (
    MOST_POINTS,
    STYLE,
    Curve,
    Curves,
    Forest,
    drawn,
    figure_of,
    learning_curve,
    learning_curves,
    reach,
)
from transformer_jax.report.metrics import BLEU, PERPLEXITY
from transformer_jax.report.results import load_sweep
from transformer_jax.report.statistics import Difference


def difference(value, low, high, p=0.5):
    return Difference(value, 1.0, 5.0, low, high, p, p, 2.0, (3, 3), "own")


ROWS = {"h=1": difference(-1.0, -2.0, -0.1, 0.01), r"cost $\frac$ & <b>": difference(0.1, -0.3, 0.5)}
FOREST = Forest("", BLEU, ROWS, r"Δ $\frac$")
BASE = Curve(r"$\frac$", [1, 2], [9.0, 3.0], [8.0, 2.0], [10.0, 4.0], True)
CURVES = Curves("loss", [BASE], r"$\step$", r"$\loss$", log=True)
POINTS = [Curve("base", [1e12], [20.0]), Curve(r"$\frac$", [2e12, 5e13], [21.0, 25.0])]
SCATTER = Curves("s", POINTS, "FLOPs", "BLEU", is_scatter=True)


@pytest.mark.parametrize("plot", [FOREST, CURVES, SCATTER], ids=["forest", "curves", "scatter"])
def test_files_are_one_column_wide_and_their_fonts_embedded(plot):
    svg, pdf = (drawn(plot, form, "the maker") for form in ("svg", "pdf"))
    assert svg == drawn(plot, "svg", "the maker") and pdf == drawn(plot, "pdf", "the maker")
    assert b'width="218.16pt"' in svg and re.search(rb"/MediaBox \[ ?0 0 218.16 ", pdf)
    assert b"<text" not in svg and b"/FontFile2" in pdf and b"/Type3" not in pdf  # outlines; TrueType
    assert b"the maker" in svg and b"the maker" in pdf


LONG = ("RMSNorm_rotary & 100%", "pre-norm RMSNorm, rotary, h=16", "MAXIMUM_WIDTH_MMWW_" * 3, "A")


LONG_FOREST = Forest("", PERPLEXITY, dict.fromkeys(LONG, difference(-0.2, -0.5, 0.02)), "Δ perplexity in % (← better)")
ALL_MARKS = {"one": difference(-1, -2, -0.1, 0.01), "other": difference(1, 0.1, 2, 0.01), "third": difference(0, -1, 1)}
MANY_MARKS = Forest("", BLEU, ALL_MARKS, "x", margin=(-0.5, 0.5))
LONG_CURVES = Curves("", [BASE._replace(name=name) for name in LONG], "updates", "perplexity")


@pytest.mark.parametrize("plot", [LONG_FOREST, LONG_CURVES, MANY_MARKS], ids=["forest", "curves", "legend"])
def test_long_names_and_titles_are_inside_the_figure(plot):
    with matplotlib.rc_context(STYLE):
        figure = figure_of(plot)
        figure.draw_without_rendering()
    inside = figure.bbox
    texts = [text for text in figure.findobj(Text) if text.get_visible() and re.search("[a-z]", text.get_text())]
    for box in (text.get_window_extent() for text in texts):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= inside.x1 and box.y1 <= inside.y1


def test_one_wide_interval_does_not_squeeze_the_others():
    left, right = reach([difference(0.5, 0.2, 0.8)] * 5 + [difference(0.1, -900.0, 900.0)])
    assert -3 < left < -0.8 and 0.8 < right < 3
    left, right = reach([difference(-2.5, -12.0, 7.0)])
    assert left < -12 and right > 7  # whole


def test_what_is_beyond_the_axes_is_marked_at_their_edge_and_the_margin_is_in_them():
    rows = {f"v{n}": difference(0.5, 0.2, 0.8) for n in range(5)} | {"wide": difference(0.1, -900.0, 900.0)}
    left, right = reach([*rows.values()], (-5.0, 5.0))
    assert left < -5 and right > 5
    plot = Forest("", BLEU, rows, "x", {"v0": [0.5, 70.0]}, (-5.0, 5.0))
    with matplotlib.rc_context(STYLE):
        (axes,) = figure_of(plot).axes
    arrows = {(line.get_marker(), *line.get_xydata()[0].tolist()) for line in axes.lines if line.get_marker() in "<>"}
    assert arrows == {("<", left, 5), (">", right, 5), (">", right, 0.28)}


def test_names_that_differ_at_their_end_are_told_apart():
    names = [
        f"positions={kind} against sinusoidal × heads=8 against 4" for kind in ("relative", "relative to the right")
    ]
    with matplotlib.rc_context(STYLE):
        (axes,) = figure_of(Forest("", BLEU, dict.fromkeys(names, ROWS["h=1"]), "x")).axes
    assert [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()] == names


def test_a_row_for_each_variant_with_its_interval(whole):
    test = whole.content.tests[0]
    forests = test.forests["differences"]
    assert list(forests) == ["bleu", "perplexity"]
    log, percents = test.findings.by_metric["perplexity"].differences["A h=1"], forests["perplexity"].differences
    assert percents["A h=1"].low == pytest.approx(100 * np.expm1(log.low))
    plot = forests["bleu"]
    assert list(plot.differences) == [variant.name for variant in whole.content.sweep.variants[1:]]
    assert plot.differences == test.findings.by_metric["bleu"].differences
    scores = test.findings.scores["bleu"]
    assert plot.seeds["A h=1"] == pytest.approx(np.array(scores["A h=1"]) - np.mean(scores["base"]))


def test_curve_is_the_mean_in_a_band_from_the_lowest_to_the_highest(sweep):
    for seed in (0, 1):
        lines = [json.dumps({"step": step, "valid_perplexity": step + seed}) for step in range(1, 1001)]
        (seed_folder(sweep, "A h=1", seed) / "metrics.jsonl").write_text("\n".join(lines))
    variants = {variant.name: variant for variant in load_sweep(sweep).variants}
    line = learning_curve(variants["A h=1"], "valid_perplexity")
    assert len(line.x) == MOST_POINTS and line.x[0] == 1 and line.x[-1] == 1000
    assert line.y == [step + 0.5 for step in line.x]
    assert (list(line.low), list(line.high)) == (list(line.x), [step + 1 for step in line.x])
    assert learning_curve(variants["A h=1"], "bleu") is None


def test_many_variants_have_a_figure_for_each_group(tmp_path):
    many = [VARIANTS[0], *(variant(f"v{n}", group=f"g{n % 2}", slug=f"v{n}") for n in range(10))]
    figures = learning_curves(load_sweep(make_sweep(tmp_path, many, seeds=(0,), sentences=5)))
    assert [figure.title for figure in figures] == ["validation perplexity: g0", "validation perplexity: g1"]
    assert all(figure.series[0].is_baseline and len(figure.series) == 6 for figure in figures)


def test_a_figure_of_hundreds_of_variants_has_as_many_as_can_be_told_apart_and_says_so(tmp_path):
    many = [VARIANTS[0], *(variant(f"v{n}", n / 60, slug=f"v{n}") for n in range(120))]
    report = Report(make_sweep(tmp_path / "sweep", many, seeds=(0, 1), sentences=3))
    forest = report.content.tests[0].forests["differences"]["bleu"]
    assert forest.title.endswith(", the 100 largest of 120") and len(forest.differences) == 100
    every = report.content.tests[0].findings.by_metric["bleu"].differences
    left_out = [abs(every[name].value) for name in every.keys() - forest.differences.keys()]
    assert max(left_out) <= min(abs(found.value) for found in forest.differences.values())
    (curves,) = learning_curves(report.content.sweep)
    assert curves.title.endswith(", the first 24 of 120") and len(curves.series) == 25
