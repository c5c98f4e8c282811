"""The report as text: what every format says, and characters that a format or a terminal would interpret."""

import json

import numpy as np
import pytest
from markupsafe import Markup

from tests.support.finished_sweeps import make_sweep, record_file, variant
from transformer_jax import cli
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
from transformer_jax.report.texts import ASTERISK, terminal_table, to_markdown


def rendered(*blocks):
    return to_markdown(Document("T", "Q", [Text("S")], True, [Part("P", blocks)]))


def test_blocks_in_order():
    columns = [Column("x"), Column("empty")]
    rows = [Row("a", [Cell("1"), Cell()], note="n"), Row("b", [Cell("2", 2.0, "[1, 3]", "better"), Cell()])]
    legend = ASTERISK.replace("*", r"\*")
    text = rendered(Heading("H"), Text("t"), Bullets(["i"]), Facts({"k": "v`w"}), Table(columns, rows, "name"))
    table = f"| name | x |\n|---|--:|\n| a (n) | 1 |\n| b | 2 [1, 3] \\* |\n\n{legend}"
    assert text == f"# T\n\nQ\n\nS\n\n## P\n\n### H\n\nt\n\n- i\n\n- k: `v w`\n\n{table}\n"
    assert legend not in rendered(Table(columns, rows[:1]))


def test_figures_and_folded_details_are_left_out():
    figure = Figure("f", Markup("<svg/>"))
    assert rendered(Figures([figure]), Folded("more", [Text("hidden")]), Code("{}")) == "# T\n\nQ\n\nS\n"


def test_markup_is_escaped():
    text = rendered(Text("<b> a|b `c` *d* _e_ $f$ ~g~ [h](i) [j]: k\n# l & \\"))
    assert r"&lt;b> a\|b \`c\` \*d\* \_e\_ \$f\$ \~g\~ [h\](i) [j\]: k # l &amp; \\" in text


def test_means_and_deviations_are_over_seeds(whole):
    line = next(line for line in whole.lines if (line["test"], line["variant"]) == ("test_long", "A h=1"))
    records = [record_file(whole.content.sweep.path, "A h=1", seed, "test_long") for seed in range(3)]
    scores = [json.loads(record.read_text())["measures"]["bleu"]["score"] for record in records]
    assert float(line["bleu_mean"]) == pytest.approx(np.mean(scores))
    assert float(line["bleu_sd"]) == pytest.approx(np.std(scores, ddof=1))
    shown = f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}"
    assert shown in whole.markdown and shown.replace(" ±", "<small>±") in whole.page


def test_all_formats_have_the_same_difference(whole):
    line = next(line for line in whole.lines if (line["test"], line["variant"]) == ("test", "A h=1"))
    found = whole.json["tests"][0]["bleu_differences"]["A h=1"]
    assert float(line["bleu_difference_value"]) == found["value"]
    assert float(line["bleu_difference_corrected_p"]) == found["corrected_p"]
    value, interval = f"{found['value']:+.2f}", f"[{found['low']:+.2f}, {found['high']:+.2f}]"
    assert rf"{value} {interval} \*".replace("-", "−") in whole.markdown
    assert f">{value}<small>{interval}</small>".replace("-", "−") in whole.page
    assert found["seeds"] == [3, 3] and found["seed_spread"] == "own"
    assert r"\*: a significant difference, for better or worse" in whole.markdown and "▲" in whole.page
    assert found["resolved"] is True  # the name of this key in reports of all versions


def test_the_costs_of_training_are_defined_beside_the_table(whole):
    costs = "time: training with its compilation, without start-up, validation and tests; tokens/s: target tokens per"
    assert costs in whole.markdown and whole.page.count(costs) == 3  # of two test sets and of all runs


def test_table_keeps_within_the_width(whole):
    table = whole.content.tables[0]
    wide, narrow = terminal_table(table, 300), terminal_table(table, 60)
    assert "d_ff" in wide.splitlines()[0] and "publ." in wide
    assert "d_ff" not in narrow.splitlines()[0] and "BLEU" in narrow
    assert max(map(len, terminal_table(table, 150).splitlines())) <= 150


def test_control_characters_are_escaped(tmp_path, capsys):
    made = make_sweep(tmp_path, (variant("base"), variant("red\x1b[31m\nline", slug="r")), sentences=20)
    assert cli.main(["report", str(made)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"red\x1b[31m\nline" in out
