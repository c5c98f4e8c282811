"""Commands: help that teaches, and bad input answered in one clear line with exit status 2."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.places import ROOT
from transformer_jax import cli
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
    (["inspect", BASE, "--config.mesh.replicate=("], "replicate = '(': is not a regular expression"),
    (["inspect", BASE, "--config.optimizer.name=addam"], "optax has no such optimizer; did you mean adam?"),
    (["inspect", BASE, "--config.data.vocab_size=9"], "did you mean model.vocab_size?"),
    (["inspect", f"--config={ROOT}"], "no such config file (its name must end in .py)"),
    (["inspect", f"--config={ROOT}/README.md"], "no such config file"),
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
    (["inspect", BASE, "--config.model.dropout=nan"], "--config.model.dropout = nan: must be 0 or a finite number"),
    (["inspect", BASE, "--config.model.norm=after"], "--config.model.norm = 'after': there are: post, pre"),
    (["inspect", BASE, "--config.model.positions=sinusoid"], "did you mean sinusoidal?"),
    (["inspect", BASE, "--config.model.attention_bias=perhaps"], "must be true or false"),
    (["inspect", BASE, "--config.model.d_model=510", "--config.model.num_heads=4"], "num_heads to 3"),
    (["inspect", BASE, "--config.seed=-1"], "--config.seed = -1: must be at least 0"),
    (["inspect", BASE, "--config.optimizer.final_fraction=0.1"], "schedule = cosine, linear, wsd or a custom one"),
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
    ("arguments", "message"),
    BAD_COMMAND_LINES,
    ids=lambda value: " ".join(value[-1:]) if isinstance(value, list) else "",
)
def test_bad_command_line(run, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, "one line"
    assert "Traceback" not in err


def test_python_m_is_the_command():
    ended = subprocess.run([sys.executable, "-P", "-m", "transformer_jax", "--version"], capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout == f"transformer-jax {__version__}\n"


def test_an_internal_error_is_one_line_and_exit_1(run, monkeypatch):
    monkeypatch.setattr("transformer_jax.commands.inspect.options_table", lambda: {}["key"])
    status, _, err = run("inspect", "--options")
    assert status == 1
    assert "Traceback" not in err
    assert "Traceback" in Path(err.split()[-1]).read_text()


def test_two_dashes_are_no_value(capsys):
    """argparse of Python 3.11 makes an empty list of them."""
    assert cli.main(["plot", "attention", "--workdir=run", "--text=--", "--output=a.png"]) == 2
    assert capsys.readouterr().err == "error: --text=--: -- is not a value\n"


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
