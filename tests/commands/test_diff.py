"""diff: what differs between two runs, in a terminal of 80 columns."""

import shutil

import pytest

from transformer_jax import cli
from transformer_jax.commands.diff import metrics_table
from transformer_jax.files.atomic import write_record
from transformer_jax.files.record import read_record
from transformer_jax.runs.difference import Row


@pytest.fixture
def other(folder, tmp_path):
    """A copy of the run with other options, one of them long."""
    shutil.copytree(folder, tmp_path / "other")
    config = tmp_path / "other/config.json"
    names = ", ".join(f'"/data/corpus/part-{number}.source"' for number in range(9))
    text = config.read_text().replace('"num_heads": 2', '"num_heads": 4')
    config.write_text(text.replace('"valid_source": []', f'"valid_source": [{names}]'))
    return tmp_path / "other"


def test_differences_fit_a_terminal_of_80_columns(folder, other, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    versions = read_record(other / "versions.json")
    write_record(other / "versions.json", {**versions, "flax": "0.0.1\x1b[31m"})
    assert cli.main(["diff", str(folder), str(other)]) == 0
    options, code, data, metrics = capsys.readouterr().out.split("\n\n")[1:]
    assert options.startswith("options: 2 different\n") and data == "data: the same"
    assert "  model.num_heads    2  4\n" in options and options.count("/data/corpus/part-") == 9
    assert r"0.0.1\x1b[31m" in code, "escaped"
    assert all(len(line) <= 80 for text in (options, code, metrics) for line in text.splitlines())
    assert metrics.split()[:5] == ["metrics", "A", "B", "B", "-"]


def test_the_last_column_is_the_second_run_minus_the_first():
    rows = [Row("updates", 1000, 1200), Row("loss", 2.5, 2.0), Row("bleu", None, 31.25)]
    assert [line.split() for line in metrics_table(rows).splitlines()[1:]] == [
        ["updates", "1,000", "1,200", "+200"],
        ["loss", "2.5", "2", "-0.5"],
        ["bleu", "-", "31.25"],
    ]


def test_what_is_not_a_run_gets_one_line(folder, tmp_path, capsys):
    assert cli.main(["diff", str(folder), str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}: is not a run (it has no config.json); transformer-jax train makes one\n"
    )
