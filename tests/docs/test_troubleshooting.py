"""docs/troubleshooting.md quotes messages that the commands beside them really print."""

import re
import shlex

import pytest

from tests.docs.test_examples import blocks
from tests.support.places import ROOT
from transformer_jax import cli

PAGE = ROOT / "docs/troubleshooting.md"
QUOTED = re.findall(r"^\$ transformer-jax (.*)\n(.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("troubleshooting")
    (setup,) = (block.code for block in blocks(PAGE) if block.mark == "runnable")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(setup, {})
    return folder


@pytest.mark.parametrize(("command", "message"), QUOTED)
def test_the_message_is_what_the_command_prints(folder, command, message, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert cli.main(shlex.split(command)) == 2
    assert message in capsys.readouterr().err.splitlines()
