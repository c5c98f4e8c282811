"""The table in the terminal: its width, and text that a terminal would interpret."""

from tests.support.finished_sweeps import make_sweep, variant
from transformer_jax import cli
from transformer_jax.report.terminal import terminal_table


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
