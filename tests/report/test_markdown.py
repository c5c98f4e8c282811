"""The Markdown: every block, and no character is interpreted."""

from markupsafe import Markup

from transformer_jax.report.document import (
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    Facts,
    Figure,
    Figures,
    Folded,
    Heading,
    Part,
    Row,
    Table,
    Text,
)
from transformer_jax.report.markdown import to_markdown


def rendered(*blocks):
    return to_markdown(Document("T", "Q", [Text("S")], True, [Part("P", blocks)]))


def test_blocks_in_order():
    columns = [Column("x"), Column("empty")]
    rows = [Row("a", [Cell("1"), Cell()], note="n"), Row("b", [Cell("2", 2.0, "[1, 3]", "better"), Cell()])]
    text = rendered(Heading("H"), Text("t"), Bullets(["i"]), Facts({"k": "v`w"}), Table(columns, rows, "name"))
    table = "| name | x |\n|---|--:|\n| a (n) | 1 |\n| b | **2 [1, 3]** |"
    assert text == f"# T\n\nQ\n\nS\n\n## P\n\n### H\n\nt\n\n- i\n\n- k: `v w`\n\n{table}\n"


def test_figures_and_folded_details_are_left_out():
    figure = Figure("f", Markup("<svg/>"))
    assert rendered(Figures([figure]), Folded("more", [Text("hidden")]), Code("{}")) == "# T\n\nQ\n\nS\n"


def test_markup_is_escaped():
    text = rendered(Text("<b> a|b `c` *d* _e_ $f$ ~g~ [h](i) [j]: k\n# l & \\"))
    assert r"&lt;b> a\|b \`c\` \*d\* \_e\_ \$f\$ \~g\~ [h\](i) [j\]: k # l &amp; \\" in text
