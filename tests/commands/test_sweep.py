"""transformer-jax sweep: its flags, and bad input answered before anything runs."""

import argparse
import dataclasses
import json
import shlex

import pytest

from tests.support.sweep_runs import defined, experiment_file, pretend_finished
from transformer_jax import cli
from transformer_jax.commands.configuration import split_overrides
from transformer_jax.commands.sweep import _definition, add_arguments, factors, seeds
from transformer_jax.errors import EXIT_UNFINISHED
from transformer_jax.report.report import Report as Content
from transformer_jax.report.results import load_sweep
from transformer_jax.sweeps import plan, resolved
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.launch import merged


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "time_update", lambda *_: plan.Timed(compiling=40.0, update=0.5))
    experiment_file(tmp_path, "Variant('h = 4', {'model.num_heads': 4}, note='more')", seeds=2)
    return tmp_path


@pytest.fixture
def run(place, capsys):
    """Runs the command; returns (exit status, stdout, stderr)."""

    def run(*arguments):
        status = cli.main(["sweep", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_dry_run_prints_everything_and_writes_nothing(run, place):
    status, out, _ = run("experiment.py", "--workdir=sweep", "--dry-run")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "tiny: Do heads matter?"
    # 37,000 rows of 16, and layers of 4 x 16 x 16 an attention, 2 x 16 x 32 + 48, norms of 32.
    assert lines[2].split("  ")[0] == "variant" and lines[3].split()[:2] == ["base", "597,376"]
    assert lines[4].split()[:5] == ["h", "=", "4", "num_heads=4", "597,376"]
    assert "2 variants, seeds 0, 1: 4 runs to train, 0 finished\n" in out and "is not prepared" in out
    assert "the order of the training pairs" in out
    assert "the order" not in run("experiment.py", "--workdir=sweep", "--dry-run", "--together")[1]
    assert "\nabout " in out and "one after the other" in out
    assert not (place / "sweep").exists()


# Each: the command line, and what the line on stderr must say.
BAD_COMMAND_LINES = [
    (["--workdir=sweep"], "sweep: is not a sweep"),
    (["--workdir=sweep", "--status"], "sweep: is not a sweep"),
    (["--workdir=sweep", "--seeds=2"], "FILE.py"),
    (["missing.py", "--workdir=sweep"], "missing.py: no such experiment file"),
    (["experiment.py", "--workdir="], "is empty"),
    (["experiment.py", "--workdir=sweep", "--config.train.step=3"], "--config.train.step: no such option"),
    (["experiment.py", "--workdir=sweep", "--seeds=0"], "seeds = 0"),
    (["experiment.py", "--workdir=sweep", "--only=x"], "--only=x"),
    (["experiment.py", "--workdir=sweep", "--tune=x"], "--tune"),
    (["--together", "experiment.py", "--workdir=sweep"], "'experiment.py'"),
    (["experiment.py", "--workdir=sweep", "--detach"], "--slurm"),
    (["experiment.py", "--workdir=experiment.py/sweep"], "Not a directory"),
    (["experiment.py", "--workdir=sweep", "--slurm"], "--slurm"),
    (["experiment.py", "--workdir=."], ".: is not a sweep"),
]


def test_a_sweep_of_some_variants_stays_one(run, place):
    """The same sweep without FILE is of the variants that it was started with, and so is its status."""
    definition = resolved.load("experiment.py")
    folder = SweepFolder("sweep")
    folder.save(dataclasses.replace(definition, only=("base",)))
    for made in folder.runs(definition, ["base"]):
        pretend_finished(made)
    assert cli.main(["status", "sweep"]) == 0
    assert run("--workdir=sweep", "--status")[::2] == (0, "")
    assert run("--workdir=sweep", "--status", "--only=h*")[0] == EXIT_UNFINISHED
    assert len(json.loads(run("--workdir=sweep", "--status", "--json")[1])) == 2
    assert "1 variant, seeds 0, 1: 0 runs to train, 2 finished" in run("--workdir=sweep", "--dry-run")[1]
    assert "2 runs to train, 2 finished" in run("experiment.py", "--workdir=sweep", "--dry-run")[1]


@pytest.mark.parametrize(("arguments", "message"), BAD_COMMAND_LINES)
def test_bad_input_is_reported_before_anything_runs(run, place, arguments, message, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)  # there is no sbatch
    for dry_run in ([], ["--dry-run"]):
        status, out, err = run(*arguments, *dry_run)
        assert (status, out) == (2, "") and message in err, err
        assert all(line.startswith("error: ") for line in err.splitlines())
    assert not (place / "sweep").exists()


def test_seeds_and_factors_as_typed():
    assert seeds("3") == 3 and seeds("0,5") == [0, 5] and seeds("5,") == [5]
    assert factors("0.5,1,2") == (0.5, 1.0, 2.0) and factors("none") == ()


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_another_sweep_is_refused_with_the_difference(run, place, dry_run):
    SweepFolder("sweep").save(defined())
    changes = "--config.train.steps=40", "--config.model.d_ff=64"
    status, _, err = run("experiment.py", "--workdir=sweep", *changes, *dry_run)
    assert status == 2
    assert "error:   base: model.d_ff: 32 there, 64 here\nerror:   base: train.steps: 12 there, 40 here\n" in err


EVERYTHING = [
    *("--scale=small", "--seeds=0,7", "--tune=0.5,2", "--only=b*", "--only=h = 4", "--together=2"),
    *("--config.train.label_smoothing=0.3", "--config.train.compile_cache=a b"),
]


@pytest.mark.parametrize("arguments", [[], ["--seeds=5,"], ["--tune=none", "--only=base"], EVERYTHING])
def test_the_stored_command_defines_the_same_sweep(place, arguments):
    """Also after launches of more seeds and variants, and without the file."""
    (place / "experiment.py").write_text(
        (place / "experiment.py").read_text().replace("get_sweep()", "get_sweep(scale='demo')")
        + "SCALES = 'demo', 'small'\n"
    )

    def launched(folder, *arguments):
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        overrides, rest = split_overrides(list(arguments))
        parsed = parser.parse_args([*rest, f"--workdir={folder.path}"])
        parsed.overrides = overrides
        definition = merged(folder, _definition(parsed, folder), parsed.together is not None, parsed.only)
        folder.save(definition)
        return definition

    first = SweepFolder(place / "first")
    launched(first, "experiment.py", *arguments)
    launched(first, "experiment.py", *arguments, "--seeds=3,4", "--only=h*")
    stored = launched(first, *(argument for argument in arguments if argument.startswith("--only")))
    command, *again = stored.to_json()["command"]
    shown = shlex.split(Content(load_sweep(first.path)).facts["command"])
    assert shown == ["transformer-jax", command, *again, f"--workdir={first.path}"]
    launched(second := SweepFolder(place / "second"), *again)
    assert command == "sweep" and json.loads(second.definition_file.read_text()) == json.loads(
        first.definition_file.read_text()
    )
