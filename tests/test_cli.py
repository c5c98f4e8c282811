"""Commands: help that teaches, and bad input answered in one clear line with exit status 2."""

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.places import ROOT
from transformer_jax import cli
from transformer_jax.commands import streams
from transformer_jax.errors import Failed
from transformer_jax.files.progress import tell
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
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_help_teaches_with_an_example(run):
    for command in cli.COMMANDS:
        status, out, _ = run(command, "--help")
        assert status == 0
        assert f"transformer-jax {command}" in out.partition("\n\n")[2], "an example beside the usage line"


def test_help_lists_every_command(run):
    _, out, _ = run("--help")
    assert all(command in out for command in cli.COMMANDS)


def test_inspect_shows_what_differs(run):
    status, out, _ = run("inspect", BASE, "--config.model.num_heads=16")
    assert status == 0
    assert "* model.num_heads                        16   (default 8)" in out


# Each: the command line, and what the line on stderr must say.
BAD_COMMAND_LINES = [
    ([], "required: COMMAND"),
    (["inspct"], "inspct: no such command; did you mean inspect?"),
    (["--colour"], "required: COMMAND"),
    (["inspect"], "inspect needs --config=FILE.py, --workdir=RUN or --options"),
    (["inspect", BASE, "--confg=x"], "--confg=x: inspect has no such argument; did you mean --config?"),
    (["train", BASE, "--workdir=a", "--num_heads=8"], "--num_heads=8: train has no such argument; did you mean "),
    (["inspect", BASE, "--model.num-head", "8"], "did you mean --config.model.num_heads?"),
    (["inspect", BASE, "--num_heads=8"], "did you mean --config.model.num_heads=8?"),
    (["inspect", BASE, "--tokens_per_batch=1"], "data.tokens_per_batch=1 or --config.decode.tokens_per_batch=1?"),
    (["train", BASE, "--work-dir=a"], "--work-dir=a: train has no such argument; did you mean --workdir?"),
    (["translate", "--work-dir", "a"], "--work-dir: translate has no such argument; did you mean --workdir?"),
    (["translate", "--workdir=a", "--alpha=1"], "--alpha=1: translate has no such argument; did you mean --config.dec"),
    (["translate", "--workdir=a", "--num_heads=8"], "translate has no such argument; transformer-jax translate --he"),
    (["plot", "positions", "--lenght=3"], "--lenght=3: plot positions has no such argument; did you mean --length?"),
    (["plot", "positions", "--output=a.png", "--lenght=3"], "plot positions has no such argument; did you mean --len"),
    (["inspect", BASE, "surplus"], "surplus: inspect has no such argument"),
    (["inspect", "--config"], "--config: expected one argument"),
    (["inspect", "--config=missing.py"], "missing.py: no such config file"),
    (["inspect", BASE, "--program=/no/where/step.txt"], "/no/where/step.txt: there is no directory /no/where"),
    (["train", BASE, "--workdir=run", "--profile=3"], "argument --profile: '3' is not START:STEPS, two numbers from 1"),
    (["train", BASE, "--workdir=run", "--profile=0:5"], "argument --profile: '0:5' is not START:STEPS"),
    (["train", BASE, "--workdir="], "argument --workdir: is empty; it must be a path"),
    (["inspect", BASE, "--config.seed=4294967296"], "--config.seed = 4294967296: must be at least 0 and at most"),
    (["inspect", BASE, "--config.mesh.replicate=("], "replicate: '(' is not a regular expression"),
    (["inspect", BASE, "--config.optimizer.name=addam"], "optax has no such optimizer; did you mean adam?"),
    (["inspect", BASE, "--config.data.vocab_size=9"], "did you mean model.vocab_size?"),
    (["inspect", f"--config={ROOT}"], "is not a config file (its name must end in .py)"),
    (["inspect", f"--config={ROOT}/README.md"], "is not a config file"),
    (["inspect", BASE, "--config.model.num_heads"], "--config.model.num_heads: needs a value"),
    (["inspect", BASE, "--config.model.num_head=4"], "--config.model.num_head: no such option; did you mean model.num"),
    (["inspect", BASE, "--config.modle.num_heads=4"], "did you mean model.num_heads?"),
    (["inspect", BASE, "--config.model=4"], "--config.model: no such option"),
    (["inspect", BASE, "--config.seed.x=4"], "--config.seed.x: no such option; did you mean seed?"),
    (["inspect", BASE, "--config.=4"], "no such option"),
    (["inspect", BASE, "--config.model.num_heads=four"], "--config.model.num_heads = 'four': must be a whole number"),
    (["inspect", BASE, "--config.model.num_heads=4.5"], "--config.model.num_heads = '4.5': must be a whole number"),
    (["inspect", BASE, "--config.model.num_heads=0"], "--config.model.num_heads = 0: must be at least 1"),
    (["inspect", BASE, "--config.model.num_heads=none"], "--config.model.num_heads = 'none': must be a whole number"),
    (["inspect", BASE, "--config.model.num_heads=7"], "num_heads = 7 does not divide d_model = 512"),
    (["inspect", BASE, "--config.model.dropout=-0.1"], "--config.model.dropout = -0.1: must be at least 0 and below 1"),
    (["inspect", BASE, "--config.model.dropout=1"], "--config.model.dropout = 1.0: must be at least 0 and below 1"),
    (["inspect", BASE, "--config.model.dropout=nan"], "--config.model.dropout = nan: must be a finite number"),
    (["inspect", BASE, "--config.model.norm=after"], "--config.model.norm = 'after': there are: post, pre"),
    (["inspect", BASE, "--config.model.positions=sinusoid"], "did you mean sinusoidal?"),
    (["inspect", BASE, "--config.model.attention_bias=perhaps"], "must be true or false"),
    (["inspect", BASE, "--config.model.d_model=510", "--config.model.num_heads=4"], "num_heads to 3"),
    (["inspect", BASE, "--config.seed=-1"], "--config.seed = -1: must be at least 0"),
    (["inspect", BASE, "--config.optimizer.final_fraction=0.1"], "it needs optimizer.schedule = cosine or linear"),
    (["inspect", BASE, "--config.data.task.alphabet=4"], "it needs data.corpus = copy, reverse or sort"),
    (["inspect", BASE, "--config.data.valid_source=a"], "it needs text files (data.source)"),
    (["inspect", BASE, "--config.model.max_length=9"], "it needs model.positions = learned"),
    (["inspect", BASE, "--workdir=run"], "--workdir=run: has no effect with --config"),
    (["inspect", "--options", BASE], "--options: lists the defaults of all options"),
    (["train", BASE, "--workdir=run", "--init-weights=best"], "--init-weights=best: has no effect without --init-from"),
    (["evaluate", "--workdir=run", "--split=test", "--source=a", "--target=b"], "and --source=a: both name"),
    (["inspect", BASE, "--config.model.target_vocab_size=9"], "tie_embeddings = 'all' needs one vocabulary"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "told"), BAD_COMMAND_LINES, ids=lambda value: " ".join(value[-1:]) if isinstance(value, list) else ""
)
def test_bad_command_line(run, arguments, told):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert told in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, "one line"
    assert "Traceback" not in err


# Each: the text of a config file, and what stderr must say.
BAD_FILES = [
    ("x = 1", "has no function get_config()"),
    ("def get_config():\n    return 7", "get_config() returned int; it must return a ConfigDict"),
    ("def get_config():\n    return {'model': 3}", "model = 3: is a group of options, not a value"),
    ("def get_config():\n    return {'modell': {}}", "modell: no such option; did you mean model?"),
    ("def get_config():\n    return {'model': {'dropout': '0.1'}}", "model.dropout = '0.1': must be a number"),
    ("def get_config():\n    return {'model': {'d_model': True}}", "model.d_model = True: must be a whole number"),
    ("def get_config():\n    return {3: 4}", "3: no such option"),
    ("def get_config():\n    return {'optimizer': {'learning_rate': 10**400}}", "must be a finite number"),
]


@pytest.mark.parametrize(("text", "told"), BAD_FILES)
def test_bad_config_file(run, tmp_path, text, told):
    file = tmp_path / "mine.py"
    file.write_text(text)
    status, out, err = run("inspect", f"--config={file}")
    assert (status, out) == (2, "")
    assert told in err
    assert str(file) in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    ["def get_config(:", "1 / 0", "import sys; sys.exit(0)", "def get_config():\n    return undefined_name"],
)
def test_an_error_in_the_users_own_file_comes_with_its_traceback(run, tmp_path, text):
    file = tmp_path / "mine.py"
    file.write_text(text)
    status, _, err = run("inspect", f"--config={file}")
    assert status == 2
    assert str(file) in err.splitlines()[-1]
    assert "line" in err
    assert "transformer_jax/extension.py" not in err, "only the user's own frames"


def test_python_m_is_the_command():
    ended = subprocess.run([sys.executable, "-P", "-m", "transformer_jax", "--version"], capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout == f"transformer-jax {__version__}\n"


def test_everything_wrong_is_told_at_once(run):
    _, _, err = run("inspect", BASE, "--config.model.num_head=4", "--config.model.dropout=2", "--config.seed=x")
    assert len(err.splitlines()) == 3


def test_the_files_argument_reaches_get_config(run, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def get_config(heads):\n    return {'model': {'num_heads': int(heads)}}")
    _, out, _ = run("inspect", f"--config={file}:16")
    assert "model.num_heads                        16" in out


def test_an_error_of_our_own_is_one_line_and_exit_1(run, monkeypatch):
    monkeypatch.setattr("transformer_jax.commands.inspect.options_table", lambda: {}["key"])
    status, _, err = run("inspect", "--options")
    assert status == 1
    assert "Traceback" not in err
    assert "Traceback" in Path(err.split()[-1]).read_text()


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m transformer_jax.cli inspect --options | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def shell(command, **variables):
    """A command as a process of its own, with Python's usual buffers."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    line = f"{sys.executable} -m transformer_jax.cli {command}"
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, env={**environment, **variables}
    )


@pytest.mark.parametrize("command", ["inspect --options", "--version", "plot --help"])
def test_output_to_a_full_disk_is_a_failure(command):
    done = shell(f"{command} > /dev/full")
    assert (done.returncode, done.stderr) == (1, "failed: stdout: the disk is full; the output is incomplete\n")


def test_a_closed_stdout_is_refused():
    done = shell("inspect --options >&-")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == "error: stdout: is closed; redirect it to a file, or to /dev/null if the output is not needed\n"
    )


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


def test_two_dashes_are_no_value(capsys):
    """argparse of Python 3.11 makes an empty list of them."""
    assert cli.main(["plot", "attention", "--workdir=run", "--text=--", "--output=a.png"]) == 2
    assert capsys.readouterr().err == "error: --text=--: -- is not a value\n"


def test_ctrl_c_is_not_lost_in_a_callback_of_jax():
    """Python swallows what is raised while it collects garbage: it was told of, and the command went on."""
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
