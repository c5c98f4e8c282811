"""import: what is printed of the model. The formats: tests/interop."""

from tests.support.marian_folders import unpacked
from transformer_jax import cli


def test_the_size_and_the_languages_are_printed(tmp_path, capsys):
    folder = unpacked("shared", tmp_path / "folder")
    assert cli.main(["import", "marian", str(folder), f"--workdir={tmp_path / 'run'}"]) == 0
    printed = capsys.readouterr()
    assert "a source must begin with the target language: >>deu<< >>nds<<" in printed.err
    assert "2 + 1 layers of width 16" in printed.out
