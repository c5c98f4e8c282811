"""Standard streams: closed, full, without a reader, or in another encoding."""

import io
import json
import os
import subprocess
import sys

import pytest

from tests.support.places import ROOT
from transformer_jax import cli
from transformer_jax.commands import streams
from transformer_jax.errors import Failed
from transformer_jax.files.progress import tell


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m transformer_jax.cli inspect --options | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def shell(command, **variables):
    """A command in a separate process, with Python's usual buffers."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    line = f"{sys.executable} -m transformer_jax.cli {command}"
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, env={**environment, **variables}
    )


FULL = "failed: stdout: the disk is full; the output is incomplete\n"


def test_output_to_a_full_disk_is_a_failure(monkeypatch, capsys):
    done = shell("inspect --options > /dev/full")
    assert (done.returncode, done.stderr) == (1, FULL)
    for command in (["--version"], ["plot", "--help"]):
        with open("/dev/full", "w") as full:
            monkeypatch.setattr("sys.stdout", full)
            assert (cli.main(command), capsys.readouterr().err) == (1, FULL)


def test_a_closed_stdout_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout", None)  # as Python has it after >&-
    assert cli.main(["inspect", "--options"]) == 2
    message = "error: stdout: is closed; redirect it to a file, or to /dev/null if the output is not needed\n"
    assert capsys.readouterr().err == message


def test_with_a_closed_stderr_messages_do_not_go_to_stdout():
    done = shell("inspect --config=missing.py 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize("buffering", [1, 0], ids=["a buffer", "none"])
def test_messages_that_cannot_be_written_do_not_stop_the_work_but_are_not_forgotten(monkeypatch, buffering):
    with open("/dev/full", "wb", buffering=0) as device:
        full = io.TextIOWrapper(io.BufferedWriter(device) if buffering else device, write_through=True)
        monkeypatch.setattr("sys.stderr", full)
        with streams.ready():
            tell("a warning")
            with pytest.raises(Failed, match="stderr: messages could not be written"):
                streams.finish()


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
