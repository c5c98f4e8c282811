"""Commands: help that teaches, bad input answered in one clear line with exit status 2, and standard streams."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.support.places import ROOT
from transformer_jax import cli
from transformer_jax.extension import load_object
from transformer_jax.version import __version__

BASE = f"--config={ROOT / 'configs/base.py'}"


@pytest.fixture
def run(capsys):
    """Runs a command; returns (exit status, stdout, stderr)."""

    def run(*arguments):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:  # argparse's own --help
            status = exit.code
        return status, *capsys.readouterr()

    return run


def test_help_teaches_with_an_example(run):
    _, out, _ = run("--help")
    assert all(command in out for command in cli.COMMANDS)
    for command in cli.COMMANDS:
        status, out, _ = run(command, "--help")
        assert status == 0
        assert f"transformer-jax {command}" in out.partition("\n\n")[2], "an example beside the usage line"


# Each: the command line, and what the line on stderr must say.
BAD_COMMAND_LINES = [
    ([], "COMMAND"),
    (["inspct"], "did you mean inspect?"),
    (["inspect"], "--config=FILE.py"),
    (["inspect", "--workdir=a", "--config.seed=1"], "--config=FILE.py"),
    (["inspect", BASE, "--options", "--data"], "not allowed with"),
    (["inspect", BASE, "--confg=x"], "did you mean --config?"),
    (["inspect", BASE, "--num_heads=8"], "did you mean --config.model.num_heads=8?"),
    (["inspect", BASE, "--model.num-heads"], "did you mean --config.model.num_heads?"),
    (["inspect", BASE, "--qqqq"], "inspect --help lists them"),
    (["translate", "--workdir=a", "--num_heads=8"], "translate has no such argument"),
    (["translate", "--workdir=a", "--alpha=1"], "--alpha=1: translate has no such argument; did you mean --config.dec"),
    (["plot", "positions", "--output=a.png", "--length=9223372036854775808"], "at most 10,000"),
    (["plot", "positions", "--output=a.png", "--d-model=7"], "even"),
    (["inspect", "--config"], "expected one argument"),
    (["inspect", "--config=missing.py"], "missing.py: no such config file"),
    (["inspect", BASE, "--program=/no/where/step.txt"], "/no/where"),
    (["train", BASE, "--workdir=run", "--profile=3"], "'3'"),
    (["average", "--workdir=run", "--last=0"], "--last"),
    (["average", "--workdir=run", "--steps=8,x"], "--steps"),
    (["train", BASE, "--workdir=run", "--init-weights=best"], "--init-from"),
    (["inspect", BASE, "--json"], "--compile-for"),
    (["average", "--workdir=run", "--last=1", "--config.seed=1"], "takes no --config"),
    (["inspect", BASE, "--config.model.num_heads"], "needs a value"),
    (["inspect", BASE, "--config.model=4"], "--config.model: no such option"),
    (["evaluate", "--workdir=run", "--split=test", "--source=a", "--target=b"], "--source"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD_COMMAND_LINES, ids=lambda value: str(value)[-40:])
def test_bad_command_line(run, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err and err.startswith("error: ") and err.count("\n") == 1


def test_python_m_is_the_command():
    ended = subprocess.run([sys.executable, "-P", "-m", "transformer_jax", "--version"], capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout == f"transformer-jax {__version__}\n"


def test_an_internal_error_is_a_traceback_and_exit_1(run, monkeypatch):
    monkeypatch.setattr("transformer_jax.commands.inspect.options_table", lambda: {}["key"])
    status, _, err = run("inspect", "--options")
    assert status == 1 and err.startswith("Traceback") and err.endswith("error: KeyError: 'key'. This is a bug\n")


def test_an_error_in_custom_code_names_its_file(run, monkeypatch, tmp_path):
    """Also where nothing expects it, as in the middle of a training."""
    (tmp_path / "mine.py").write_text("def mine(values):\n    return values['key']\n")
    mine = load_object(f"{tmp_path}/mine.py:mine")
    monkeypatch.setattr("transformer_jax.commands.inspect.options_table", lambda: mine({}))
    status, _, err = run("inspect", "--options")
    assert status == 2 and err.endswith("mine.py raised KeyError: 'key'\n")
    assert "return values['key']" in err and "inspect.py" not in err


@pytest.mark.parametrize("text", ["RESOURCE_EXHAUSTED: too large", "INTERNAL: Out of memory allocating 64 bytes."])
def test_too_little_memory_is_a_failure_and_no_bug(run, monkeypatch, text):
    monkeypatch.setattr(cli, "_run", lambda arguments: exec(f"raise RuntimeError({text!r})"))
    status, _, stderr = run("train")
    assert status == 1 and stderr.startswith("failed: not enough memory") and "bug" not in stderr


def test_a_platform_without_its_plugin_is_bad_input(run, monkeypatch):
    raising = compile("raise AssertionError", "/jax/_src/xla_bridge.py", "exec")
    monkeypatch.setattr(cli, "_run", lambda arguments: exec(raising))
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    status, _, err = run("train")
    assert status == 2 and err.startswith("error: JAX_PLATFORMS=cuda: ") and err.count("\n") == 1


def test_the_first_process_of_a_container_ends_by_sigterm(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(cli.output, "use_in_this_command", lambda: None)
    monkeypatch.setattr(cli, "_run", lambda arguments: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(SystemExit, match="1"):
            cli.entry()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_is_not_lost_in_a_callback_of_jax():
    """Python swallows what is raised while it collects garbage: the command went on."""
    with pytest.raises(KeyboardInterrupt):
        cli.interrupt(signal.SIGINT, sys._getframe())

    def _xla_gc_callback():
        cli.interrupt(signal.SIGINT, sys._getframe())

    arrived = threading.Event()
    before = signal.signal(signal.SIGINT, lambda number, frame: arrived.set())
    try:
        _xla_gc_callback()
        assert arrived.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)


def shell(command):
    """A command in a separate process, with Python's usual buffers."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    line = f"set -o pipefail; {sys.executable} -m transformer_jax.cli {command}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, env=environment)


def test_a_pipe_without_a_reader_ends_a_command_silently():
    done = shell("inspect --options | true")
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("command", ["inspect --options > /dev/full", "inspect --options >&-", "--help > /dev/full"])
def test_results_that_cannot_be_printed_are_a_failure(command):
    done = shell(command)
    assert done.returncode == 1 and done.stderr.startswith("failed: stdout: ") and done.stderr.count("\n") == 1
