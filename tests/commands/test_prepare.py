"""prepare: the data is written to the run's folder, and its summary is printed."""

from tests.support.sweep_runs import BASE
from transformer_jax import cli


def test_the_summary_is_printed_and_a_second_call_finds_the_data(tmp_path, capsys):
    config = tmp_path / "tiny.py"
    config.write_text(f"def get_config():\n    return {BASE!r}\n")
    command = ["prepare", f"--config={config}", f"--workdir={tmp_path / 'run'}"]
    assert cli.main(command) == 0
    summary = capsys.readouterr().out
    assert "300" in summary and (tmp_path / "run/data").is_dir()
    assert cli.main(command) == 0
    assert capsys.readouterr().out == summary
