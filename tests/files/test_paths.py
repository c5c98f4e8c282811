"""Paths: `~` is the home directory, URLs are refused, and a run finds its files from every working directory."""

import argparse
import json
import os
from pathlib import Path

import pytest

from tests.support.small_runs import experiment
from tests.support.sweep_runs import BASE, sweep
from transformer_jax import cli, schema
from transformer_jax.commands import arguments
from transformer_jax.config import DataConfig, ExperimentConfig, from_config_dict
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.files import paths
from transformer_jax.runs.folder import RunFolder
from transformer_jax.sweeps import resolved
from transformer_jax.sweeps.folder import SweepFolder, data_key
from transformer_jax.sweeps.launch import merged
from transformer_jax.sweeps.run import digest

# What may stand for a path on a command line, by how --help calls it.
PATH_NAMES = {"RUN", "OTHER", "SWEEP", "DIR", "FILE", "FILE.html", "SOURCE", "TARGET", "WHICH"}
FILE_NAMES = {"FILE.py", "FILE.py[:ARGUMENT]"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def parsers(parser: argparse.ArgumentParser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def test_every_flag_that_is_a_path_is_read_as_one():
    wrong, seen = [], set()
    for parser in parsers(cli._parser(None)):
        for action in parser._actions:
            wanted = dict.fromkeys(PATH_NAMES, arguments.path) | dict.fromkeys(FILE_NAMES, arguments.python_file)
            if action.metavar in wanted and action.type is not wanted[action.metavar]:
                wrong.append(f"{parser.prog} {action.dest}")
            seen.add(action.metavar)
    assert not wrong and seen >= PATH_NAMES | FILE_NAMES


def test_every_option_that_is_a_path_is_declared_as_one():
    declared = {option.path for option in schema.options(ExperimentConfig) if option.is_path}
    sides = {f"data.{split}{side}" for split in ("", "valid_", "test_") for side in ("source", "target")}
    others = {"corpus_folder", "tfds_data_dir", "tokenizer_file", "target_tokenizer_file", "directory", "tests"}
    assert declared == sides | {f"data.{name}" for name in others} | {"train.compile_cache"}


@pytest.mark.parametrize("where", ["--workdir=", "--config.data.directory=", "--config.data.source=", "--config="])
def test_a_url_is_refused_in_one_line(tmp_path, monkeypatch, capsys, where):
    monkeypatch.chdir(tmp_path)
    flags = {"--config=": "preset:demo", "--workdir=": "run"} | {where: "s3://bucket/x"}
    assert cli.main(["train", *(name + value for name, value in flags.items())]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "s3://bucket/x: is a URL" in line
    assert not list(tmp_path.iterdir())


def test_home_is_expanded_wherever_a_path_is_given(home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert arguments.path("~/run") == f"{home}/run"
    assert RunFolder("~/run").path == home / "run" and SweepFolder("~/sweep").path == home / "sweep"
    assert DataConfig(source=("~/a", "b"), target=("~/c", "d")).source == (f"{home}/a", "b")
    assert from_config_dict({"data": {"directory": "~/data"}}).data.directory == f"{home}/data"
    small = ["--config.data.corpus=copy", "--config.data.tokenizer=words", "--config.data.task.train_size=20"]
    assert cli.main(["prepare", "--config=preset:text", "--workdir=x", "--config.data.directory=~/d", *small]) == 0
    assert (home / "d/manifest.json").is_file() and os.listdir(tmp_path) == ["home"]
    with pytest.raises(BadInput, match=r"~nobody-of-that-name/x: there is no user nobody-of-that-name"):
        RunFolder("~nobody-of-that-name/x")


def test_a_default_below_home_is_the_same_for_every_user(home, tmp_path):
    """A run that others use does not send them to the cache of whoever trained it."""
    config = experiment(data__corpus="copy", train__compile_cache="~/.cache/transformer_jax")
    RunFolder(tmp_path / "run").path.mkdir()
    RunFolder(tmp_path / "run").record(config)
    recorded = json.loads((tmp_path / "run/config.json").read_text())
    assert recorded["train"]["compile_cache"] == "~/.cache/transformer_jax"


def test_a_run_records_where_its_files_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    RunFolder("run").record(experiment(data__directory="shared", data__source=("a.en", "/b.en")))
    recorded = json.loads(Path("run/config.json").read_text())["data"]
    assert recorded["directory"] == f"{tmp_path}/shared" and recorded["source"] == [f"{tmp_path}/a.en", "/b.en"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    config = RunFolder("../run").load_config()
    assert RunFolder("../run").data(config) == tmp_path / "shared"
    assert config.data.source == (f"{tmp_path}/a.en", "/b.en")


def test_a_run_that_is_resumed_elsewhere_keeps_the_places_of_its_texts(tmp_path, monkeypatch):
    (tmp_path / "start").mkdir()
    monkeypatch.chdir(tmp_path / "start")
    for name in ("a.en", "a.de", "b.en", "b.de"):
        Path(name).touch()
    config = experiment(
        data__source=("a.en",), data__target=("a.de",), data__tests={"b": {"source": "b.en", "target": "b.de"}}
    )
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.record(config)
    (run.checkpoints / "6").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    Path("a.de").touch()
    RunFolder(tmp_path / "run").record(config)
    recorded = json.loads((tmp_path / "run/config.json").read_text())["data"]
    start = tmp_path / "start"
    assert recorded["source"] == [f"{start}/a.en"] and recorded["target"] == [f"{tmp_path}/a.de"]
    assert recorded["tests"] == {"b": {"source": [f"{start}/b.en"], "target": [f"{start}/b.de"]}}


def test_where_files_are_does_not_make_it_another_run(tmp_path):
    """What is in them is compared elsewhere: prepared data with its text, and a checkpoint with its data."""
    run = RunFolder(tmp_path / "run")
    (run.checkpoints / "6").mkdir(parents=True)
    run.record(experiment(data__source=("a.en",), data__target=("a.de",)))
    moved = experiment(data__source=("/copy/a.en",), data__target=("/copy/a.de",), data__directory="/copy/data")
    assert run.compare_run(moved)
    with pytest.raises(BadInput, match=r"data\.corpus"):
        run.compare_run(experiment(data__corpus="copy"))


def test_a_sweep_keeps_paths_as_they_were_given(tmp_path, monkeypatch):
    """So its digests are those of earlier versions, and it may be copied together with its data."""
    files = {"source": ["a.en"], "target": ["a.de"]}
    base = {**BASE, "data": {**files, "tokenizer": "words", "tokens_per_batch": 256}}
    (tmp_path / "first").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    definition = resolved.resolve(sweep(base=base), "file.py")
    SweepFolder("sweep").save(definition)
    recorded = json.loads(Path("sweep/sweep.json").read_text())
    assert recorded["base"]["data"]["source"] == ["a.en"] and recorded["directory"] == str(tmp_path / "first")
    config = definition.experiment("base", 0)
    keys = data_key(config), digest(config)
    (tmp_path / "second").mkdir()
    (tmp_path / "first/sweep").rename(tmp_path / "second/sweep")
    monkeypatch.chdir(tmp_path / "second")
    definition = resolved.resolve(sweep(base=base), "file.py")
    config = merged(SweepFolder("sweep"), definition).experiment("base", 0)
    assert (data_key(config), digest(config)) == keys


def test_a_sweep_goes_to_where_it_began(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    SweepFolder("sweep").save(resolved.resolve(sweep(), "file.py"))
    monkeypatch.chdir(tmp_path / "second")
    with SweepFolder("../first/sweep").in_original_directory() as folder:
        assert os.getcwd() == str(tmp_path / "first") and folder.definition_file.is_file()
    assert os.getcwd() == str(tmp_path / "second")
    (tmp_path / "first").rename(tmp_path / "gone")
    with SweepFolder("../gone/sweep").in_original_directory() as folder:
        assert os.getcwd() == str(tmp_path / "second") and folder.definition_file.is_file()


def test_copies_of_buckets_stay_where_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSFORMER_JAX_BUCKETS", "copies")
    assert paths.bucket_copies() == tmp_path / "copies"
    monkeypatch.chdir("/")
    assert paths.bucket_copies() == tmp_path / "copies" == Path(os.environ["TRANSFORMER_JAX_BUCKETS"])


def test_problems_are_of_the_option_and_the_path():
    with pytest.raises(ConfigError) as caught:
        from_config_dict({"data": {"source": ["a", "hdfs://b"]}})
    assert caught.value.problems[0].startswith("data.source = hdfs://b: is a URL")
    assert paths.problem("a:b") is None and paths.problem("./~x") is None and paths.problem("C:/x") is None


@pytest.mark.parametrize("name", ["", "..", "/etc/passwd", "a//b", "a/../b", "./a", "a/", "a\0b", "x" * 300, "é" * 200])
def test_a_name_of_somebody_else_stays_inside(tmp_path, name):
    with pytest.raises(BadInput, match="is not the name of a file in this folder"):
        paths.inside(tmp_path, name, "record.json")
    assert paths.inside(tmp_path, "a/b..c", "record.json") == tmp_path / "a" / "b..c"
