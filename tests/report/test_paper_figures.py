"""Figures as files: one column wide, with embedded fonts, and the same bytes each time."""

import re

import pytest

from transformer_jax.report.figures import Curve, Curves, Forest, Interval
from transformer_jax.report.paper_figures import drawn

ROWS = [Interval("h=1", -1.0, -2.0, -0.1, "", "worse"), Interval(r"cost $\frac$ & <b>", 0.1, -0.3, 0.5, "", "", 0.2)]
FOREST = Forest("BLEU", ROWS, r"Δ $\frac$")
BASE = Curve(r"$\frac$", [1, 2], [9.0, 3.0], [8.0, 2.0], [10.0, 4.0], True)
CURVES = Curves("loss", [BASE], r"$\step$", r"$\loss$", log=True)


@pytest.mark.parametrize("plot", [FOREST, CURVES], ids=["forest", "curves"])
def test_files_are_one_column_wide_and_their_fonts_embedded(plot):
    svg, pdf = (drawn(plot, form, "the maker") for form in ("svg", "pdf"))
    assert svg == drawn(plot, "svg", "the maker") and pdf == drawn(plot, "pdf", "the maker")
    assert b'width="234pt"' in svg and re.search(rb"/MediaBox \[ ?0 0 234 ", pdf)
    assert b"<text" not in svg and b"/FontFile2" in pdf and b"/Type3" not in pdf  # outlines; TrueType
    assert b"the maker" in svg and b"the maker" in pdf
