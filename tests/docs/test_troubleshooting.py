"""docs/troubleshooting.md quotes messages that the commands beside them really print."""

import re
import shlex

import pytest

from tests.support.places import ROOT
from transformer_jax import cli

QUOTED = re.findall(r"^\$ transformer-jax (.*)\n(.*)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)


def test_a_message_is_quoted():
    assert QUOTED


@pytest.mark.parametrize(("command", "message"), QUOTED)
def test_the_message_is_what_the_command_prints(command, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(command)) == 2
    assert message in capsys.readouterr().err.splitlines()
