"""report: the table in the terminal, and the files."""

import json
import shutil

from tests.support.finished_sweeps import VARIANTS, make_sweep
from transformer_jax import cli


def test_the_table_is_printed_and_the_files_are_written(tmp_path, capsys):
    sweep = make_sweep(tmp_path / "sweep", sentences=20)
    assert cli.main(["report", str(sweep), f"--output={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    names = ["report.json", "report.md", "checklist.md", "table.csv", "runs.csv", "curves.csv", "index.html"]
    assert "A h=1" in printed and printed.splitlines()[-7:] == [str(tmp_path / "out" / name) for name in names]
    assert all((tmp_path / "out" / name).is_file() for name in names)


def test_the_report_as_json_is_the_file(tmp_path, capsys):
    sweep = make_sweep(tmp_path / "sweep", VARIANTS[:2], seeds=(0, 1), sentences=20)
    assert cli.main(["report", str(sweep), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((sweep / "report/report.json").read_text())


def test_other_formats_are_written_instead(tmp_path, capsys):
    sweep = make_sweep(tmp_path / "sweep", VARIANTS[:2], seeds=(0, 1), sentences=20)
    out = tmp_path / "paper"
    assert cli.main(["report", str(sweep), "--format=latex,svg", f"--output={out}"]) == 0
    figures = {"differences_bleu_test.svg", "differences_perplexity_test.svg", "curves_validation_perplexity.svg"}
    assert {file.name for file in out.iterdir()} == {"table_test.tex", *figures}
    assert cli.main(["report", str(sweep), "--format=latex", f"--output={out}"]) == 0  # replaces its own files
    (out / "table_test.tex").write_text("by hand")
    assert cli.main(["report", str(sweep), "--format=latex", f"--output={out}"]) == 2
    assert "has table_test.tex, not of a report" in capsys.readouterr().err
    assert (out / "table_test.tex").read_text() == "by hand"


def test_without_results_there_are_no_figures_and_tables(tmp_path, capsys):
    sweep = make_sweep(tmp_path / "sweep", VARIANTS[:2], seeds=(0,), sentences=20)
    shutil.rmtree(sweep / "runs")
    for form in ("pdf", "latex"):
        assert cli.main(["report", str(sweep), f"--format={form}"]) == 2
        assert "nothing is measured yet, so there are no tables and figures" in capsys.readouterr().err


def test_bad_input(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2  # no sweep
    assert cli.main(["report", str(tmp_path), "--format=latex,word"]) == 2
    no_sweep, unknown_format = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in no_sweep and "'word'" in unknown_format
