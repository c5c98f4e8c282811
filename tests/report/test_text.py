"""Text in the formats of a report: characters that a format or a terminal would interpret."""

import pytest

from tests.support.finished_sweeps import Report, edit, seed_folder
from transformer_jax.report.text import cell, latex, markdown, terminal_table


def test_markdown_is_escaped():
    text = markdown("<b> a|b `c` *d* _e_ $f$ ~g~ [h](i) [j]: k\n# l & \\")
    assert text == r"&lt;b> a\|b \`c\` \*d\* \_e\_ \$f\$ \~g\~ [h\](i) [j\]: k # l &amp; \\"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (
            r"50 % of $x_1^2$ & \input{y}~#",
            r"50\,\% of \$x\_1\textasciicircum{}2\$ \& \textbackslash{}input\{y\}\textasciitilde{}\#",
        ),
        ("−0.5 ± 1 [2]\nε < Δ", r"$-$0.5 $\pm$ 1 {[}2{]} $\varepsilon$ $<$ $\Delta$"),
        ("--lr ''", "-{}-lr '{}'"),
        ("*best", "{*}best"),
        ("Größe \x1b", r"Größe \textbackslash{}x1b"),
    ],
)
def test_latex_is_escaped(text, escaped):
    assert latex(text) == escaped


def test_table_keeps_within_the_width(whole):
    table = whole.content.tests[0].table
    wide, narrow, middle = (terminal_table(table, width) for width in (300, 60, 100))
    assert "Δ BLEU" in middle.splitlines()[0] and "Δ PPL" not in middle.splitlines()[0]  # the first metric's first
    assert "d_ff" in wide.splitlines()[0] and "publ." in wide
    assert "d_ff" not in narrow.splitlines()[0] and "Δ BLEU" in narrow.splitlines()[0]
    assert wide.splitlines()[-1] == "Also in index.html: FLOPs, time, tokens/s, rate." and "d_ff" in narrow
    assert max(map(len, terminal_table(table, 150).splitlines())) <= 150


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1", "-x", "@sum", "\t=1"])
def test_no_cell_of_a_csv_file_is_a_formula(text):
    assert cell(text) == f"'{text}" and cell("a=1") == "a=1" and cell(-1.5) == -1.5 and cell("-0.5") == "-0.5"


def test_a_fact_of_a_run_cannot_leave_its_code_span(sweep):
    hostile = "x`\n\n<script>alert(1)</script>\x1b[31m"
    edit(seed_folder(sweep, "base", 0) / "versions.json", **{"cpu": hostile, "<b>": "1"})
    page = Report(sweep).markdown
    assert "- cpu: `x  <script>alert(1)</script>\\x1b[31m`\n" in page and "&lt;b>: `1`" in page
