"""Marian folders as a whole: what is refused on the command line, in one line, and is never opened."""

import pickle
import re

import pytest

from tests.support.marian_folders import CONFIG, WEIGHTS, Ran, refused, unpacked, without
from transformer_jax import from_marian
from transformer_jax.cli import main
from transformer_jax.errors import BadInput


def only_a_bin(folder):
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Ran()))


DAMAGES = {
    "a .bin": (only_a_bin, "pytorch_model.bin: is a pickle, which can run code, and is not opened. Where"),
    "no weights": (without(WEIGHTS), "is not a Marian folder (it has no model.safetensors)"),
    "no config": (without(CONFIG), "config.json: there is no such file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_cannot_be_right_is_refused(damage, tmp_path):
    spoil, message = DAMAGES[damage]
    refused(spoil, message, tmp_path)


def test_the_command_reports_it_in_one_line(tmp_path, capsys):
    folder = unpacked("shared", tmp_path / "folder")
    (folder / CONFIG).unlink()
    assert main(["import", "marian", str(folder), f"--workdir={tmp_path / 'run'}"]) == 2
    assert capsys.readouterr().err == f"error: {folder / CONFIG}: there is no such file\n"


def test_a_pickle_of_the_test_would_have_been_noticed():
    """The trap works: whoever opens it sets the mark."""
    pickle.loads(pickle.dumps(Ran()))
    try:
        assert Ran.ever
    finally:
        Ran.ever = False


def test_the_command_that_converts_a_bin_is_told(tmp_path):
    folder = unpacked("shared", tmp_path / "folder")
    only_a_bin(folder)
    with pytest.raises(BadInput) as error:
        from_marian(folder)
    command = re.search(r'python -c "(.*)"$', str(error.value))
    assert command is not None
    compile(command[1], "the command", "exec")


def test_a_folder_that_is_not_there_or_a_run_that_is(tmp_path, capsys):
    assert main(["import", "marian", str(tmp_path / "none"), f"--workdir={tmp_path / 'run'}"]) == 2
    assert "none: there is no such folder" in capsys.readouterr().err
    folder = unpacked("shared", tmp_path / "folder")
    assert main(["import", "marian", str(folder), f"--workdir={tmp_path}"]) == 2
    assert "exists already; give another place or remove it" in capsys.readouterr().err
