"""report: the table in the terminal, and the files."""

from tests.support.finished_sweeps import make_sweep
from transformer_jax import cli


def test_the_table_is_printed_and_the_files_are_written(tmp_path, capsys):
    sweep = make_sweep(tmp_path / "sweep", sentences=20)
    assert cli.main(["report", str(sweep), f"--output={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    assert "A h=1" in printed and printed.endswith(
        f"{tmp_path / 'out/index.html'}, report.md, table.csv, report.json\n"
    )
    for name in ("index.html", "report.md", "table.csv", "report.json"):
        assert (tmp_path / "out" / name).is_file()


def test_a_folder_without_a_sweep_is_refused(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
