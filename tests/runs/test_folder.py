"""A run's folder read back, also when somebody has been at it: one clear line, and no line of metrics made up."""

import json
import os
import re
import socket

import pytest

from tests.support.translating_runs import make_run
from transformer_jax import cli, load_run
from transformer_jax.config import from_config_dict
from transformer_jax.errors import BadInput
from transformer_jax.runs.folder import RunFolder


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "config.json:1: is not JSON"),
        (b"\xff", "config.json: is not UTF-8 text (byte 0)"),
        (b'{"modle": {}}', "config.json: modle: no such option; did you mean model?"),
    ],
)
def test_a_damaged_config_is_named(tmp_path, content, told):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadInput) as caught:
        RunFolder(tmp_path).load_config()
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "file/run"])
def test_a_folder_that_cannot_be_made(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"the name is too long|is a file"), RunFolder(tmp_path / name).held():
        pass


def test_what_comes_to_nothing_leaves_nothing(tmp_path):
    for place in (tmp_path / "new/run", tmp_path / "there"):
        (tmp_path / "there").mkdir(exist_ok=True)
        with RunFolder(place).held():
            assert RunFolder(place).lock.is_file()
    assert not (tmp_path / "new").exists() and not list((tmp_path / "there").iterdir())


def test_a_folder_of_one_training_keeps_others_out(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.held():
        holder = f"process {os.getpid()} on {socket.gethostname()} is training here"
        with pytest.raises(BadInput, match=re.escape(holder)), RunFolder(folder.path).held():
            pass
        (folder.path / "data").mkdir()
    assert sorted(folder.path.iterdir()) == [folder.path / "data"]
    with folder.held():
        assert folder.lock.is_file()


@pytest.fixture
def with_own_part(tmp_path):
    """A run that was started in a directory of its own, where a file of its model's parts lies."""
    (tmp_path / "start").mkdir()
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (tmp_path / "start/mine.py").touch()
    names = {"data": {"corpus": "copy"}, "model": {"parts": {"positions": "mine.py:Mine"}}, "train": {"loss": "l.py:l"}}
    folder.config.write_text(json.dumps({**names, "decode": {"metrics": ["mine.py:measure", "m.py:other"]}}))
    (folder.path / "versions.json").write_text(json.dumps({"directory": str(tmp_path / "start")}))
    return folder


def test_files_of_ones_own_are_found_where_the_training_was_started(with_own_part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = with_own_part.load_config()
    assert config.model.parts.positions == f"{tmp_path}/start/mine.py:Mine"
    assert config.decode.metrics == (f"{tmp_path}/start/mine.py:measure", "m.py:other")
    assert config.train.loss == "l.py:l"  # is in neither; who needs it will say so
    (tmp_path / "mine.py").touch()
    assert with_own_part.load_config().model.parts.positions == "mine.py:Mine"  # here comes first


def test_a_part_whose_file_is_nowhere_is_told_with_the_places(with_own_part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start/mine.py").unlink()
    with pytest.raises(BadInput) as caught:
        with_own_part.load_config()
    told = str(caught.value)
    assert "model.parts.positions = mine.py:Mine" in told and str(tmp_path) in told and f"{tmp_path}/start" in told


@pytest.mark.parametrize(
    ("changes", "is_another"),
    [
        ({"train": {"steps": 9, "accumulate": 2, "log_every": 1}, "mesh": {"fsdp": 2}, "decode": {"beam": 1}}, False),
        ({"data": {"directory": "/elsewhere"}, "model": {"attention_implementation": "jax"}}, False),
        ({"model": {"max_length": 99}, "data": {"task": {"alphabet": 3}}}, False),  # without effect: see the positions
        ({"model": {"max_length": 99, "positions": "learned"}}, True),
        ({"train": {"label_smoothing": 0.2}}, True),
        ({"data": {"max_length": 99}}, True),
        ({"seed": 1}, True),
    ],
)
def test_a_run_is_resumed_unless_an_option_differs_that_affects_its_result(tmp_path, changes, is_another):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    before = {"optimizer": {"warmup_steps": 1}}
    folder.record(from_config_dict(before))
    (folder.checkpoints / "1").mkdir(parents=True)
    changed = from_config_dict({**before, **changes})
    if is_another:
        with pytest.raises(BadInput, match="holds another run"):
            folder.record(changed)
    else:
        folder.record(changed)


def test_a_run_notes_where_it_was_started(tmp_path):
    RunFolder(tmp_path).record(from_config_dict({"data": {"corpus": "copy"}}))
    assert json.loads((tmp_path / "versions.json").read_text())["directory"] == os.getcwd()


def test_another_rounding_is_told_when_a_run_is_resumed(tmp_path, monkeypatch, capsys):
    config = from_config_dict({})
    folder = RunFolder(tmp_path)
    folder.record(config)
    (folder.checkpoints / "6").mkdir(parents=True)
    folder.record(config)
    assert capsys.readouterr().err == "" and folder.notes() == []
    (some, *others) = os.sched_getaffinity(0)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {some, *others, -1})
    folder.record(config)
    assert f"cores {len(others) + 1} there, {len(others) + 2} here" in capsys.readouterr().err
    assert folder.notes() == [f"steps up to 6 were made by cores {len(others) + 1}"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


def test_an_exported_folder_has_only_one_set_of_weights(run):
    with pytest.raises(BadInput, match=r"--weights=best: .* is an exported folder"):
        load_run(RunFolder(run).averaged, "best")


def test_a_manifest_without_tokenizers_is_damaged(run, tmp_path):
    manifest = json.loads((run / "data/manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "tokenizers": {}}))
    from transformer_jax.data.prepared import Prepared

    with pytest.raises(BadInput, match="is damaged"):
        Prepared.open(tmp_path)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["evaluate", "--n-best=2"], "--n-best=2: evaluate has no such argument"),
        (["evaluate", "--config.decode.n_best=2"], "has no effect on evaluate"),
        (["score", "a", "b", "--config.decode.beam=2"], "has no effect on score"),
    ],
    ids=str,
)
def test_options_that_would_be_ignored_are_refused(run, capsys, command, told):
    assert cli.main([*command, f"--workdir={run}"]) == 2
    assert told in capsys.readouterr().err
