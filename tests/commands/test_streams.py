"""Standard streams: closed, full, without a reader, or in another encoding."""

import io
import json
import os
import subprocess
import sys

import pytest

from tests.support.places import ROOT
from transformer_jax import cli


def shell(command, **variables):
    """A command in a separate process, with Python's usual buffers."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    line = f"{sys.executable} -m transformer_jax.cli {command}"
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, env={**environment, **variables}
    )


def test_a_closed_pipe_is_no_error():
    done = shell("inspect --options | head -n 1")
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_output_to_a_full_disk_is_a_failure(monkeypatch, capsys):
    done = shell("inspect --options > /dev/full")
    assert done.returncode == 1 and done.stderr.startswith("failed: ") and done.stderr.count("\n") == 1
    for command in (["--version"], ["plot", "--help"]):
        with open("/dev/full", "w") as full:
            monkeypatch.setattr("sys.stdout", full)
            assert cli.main(command) == 1 and capsys.readouterr().err.startswith("failed: ")


def test_closed_streams():
    done = shell("inspect --options >&-")
    assert done.returncode == 2 and "stdout" in done.stderr
    done = shell("inspect --config=missing.py 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_messages_in_a_locale_without_unicode():
    done = shell("inspect --config=été.py", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 2 and done.stderr.isprintable() is False and "no such config file" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_what_is_printed_is_utf_8_whatever_the_locale(folder, loaded, monkeypatch, tmp_path, encoding):
    written, text = io.BytesIO(), "été 🦜 \u2028"
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))
    (tmp_path / "in.txt").write_bytes(text.encode() + b"\n")
    assert cli.main(["translate", f"--workdir={folder}", "--json", str(tmp_path / "in.txt")]) == 0
    assert json.loads(written.getvalue())["source"] == text
