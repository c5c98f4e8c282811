"""Figures as files: one column wide, with embedded fonts, and the same bytes each time."""

import re

import matplotlib
import pytest
from matplotlib.text import Text

from transformer_jax.report.figures import Curve, Curves, Forest, Interval
from transformer_jax.report.paper_figures import STYLE, drawn, figure_of

ROWS = [Interval("h=1", -1.0, -2.0, -0.1, "", "worse"), Interval(r"cost $\frac$ & <b>", 0.1, -0.3, 0.5, "", "", 0.2)]
FOREST = Forest("BLEU", ROWS, r"Δ $\frac$")
BASE = Curve(r"$\frac$", [1, 2], [9.0, 3.0], [8.0, 2.0], [10.0, 4.0], True)
CURVES = Curves("loss", [BASE], r"$\step$", r"$\loss$", log=True)


@pytest.mark.parametrize("plot", [FOREST, CURVES], ids=["forest", "curves"])
def test_files_are_one_column_wide_and_their_fonts_embedded(plot):
    svg, pdf = (drawn(plot, form, "the maker") for form in ("svg", "pdf"))
    assert svg == drawn(plot, "svg", "the maker") and pdf == drawn(plot, "pdf", "the maker")
    assert b'width="218.16pt"' in svg and re.search(rb"/MediaBox \[ ?0 0 218.16 ", pdf)
    assert b"<text" not in svg and b"/FontFile2" in pdf and b"/Type3" not in pdf  # outlines; TrueType
    assert b"the maker" in svg and b"the maker" in pdf


LONG = ("RMSNorm_rotary & 100%", "pre-norm RMSNorm, rotary, h=16", "MAXIMUM_WIDTH_MMWW_" * 3, "A")


@pytest.mark.parametrize(
    "plot",
    [
        Forest(
            "", [Interval(n, -0.2, -0.5, 0.02, "") for n in LONG], "Δ perplexity per token in %, log scale (← better)"
        ),
        Curves("", [Curve(n, [1, 2], [9.0, 3.0], [8.0, 2.0], [10.0, 4.0]) for n in LONG], "updates", "perplexity"),
    ],
    ids=["forest", "curves"],
)
def test_long_names_and_titles_are_inside_the_figure(plot):
    with matplotlib.rc_context(STYLE):
        figure = figure_of(plot)
        figure.draw_without_rendering()
    inside = figure.bbox
    texts = [text for text in figure.findobj(Text) if text.get_visible() and re.search("[a-z]", text.get_text())]
    assert any(text.get_text().startswith("RMSNorm_rotary") for text in texts)
    for box in (text.get_window_extent() for text in texts):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= inside.x1 and box.y1 <= inside.y1
