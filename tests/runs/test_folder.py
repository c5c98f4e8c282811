"""A run's folder: read back, also when it was damaged or changed; locked; never begun in a folder of something else."""

import errno
import json
import os
import re
import shutil
import socket
from types import SimpleNamespace

import jax
import pytest

from tests.support.small_runs import experiment
from transformer_jax import cli
from transformer_jax.config import from_config_dict
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import write_json
from transformer_jax.processes.compilation import use_cache
from transformer_jax.runs.folder import RunFolder, refuse_foreign
from transformer_jax.runs.state import status_of_run


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "config.json: is not JSON"),
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
    with pytest.raises(BadInput, match=r"name too long|Not a directory"), RunFolder(tmp_path / name).held():
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
        with pytest.raises(Failed, match=re.escape(holder)), RunFolder(folder.path).held():
            pass
        (folder.path / "data").mkdir()
    assert sorted(folder.path.iterdir()) == [folder.path / "data"]
    with folder.held():
        assert folder.lock.is_file()


def test_a_lock_of_another_machine_is_waited_for(tmp_path, monkeypatch):
    """It may have died, and its lock goes away later."""
    folder, paused = RunFolder(tmp_path / "run"), []
    with folder.held():
        monkeypatch.setattr("socket.gethostname", lambda: "another")
        monkeypatch.setattr("transformer_jax.runs.folder.time", SimpleNamespace(sleep=paused.append))
        with pytest.raises(Failed, match="is training here"), RunFolder(folder.path).held():
            pass
    assert sum(paused) == 120


def test_an_interrupted_training_was_stopped_and_has_not_failed(tmp_path):
    folder = RunFolder(tmp_path / "run")

    def interrupted():
        with folder.held():
            folder.record(experiment())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert status_of_run(folder.path)["state"] == "stopped"


def test_a_training_whose_folder_was_removed_ends_and_makes_nothing_anew(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.held():
        run.config.touch()
        run.refuse_other_training()
        shutil.rmtree(run.path)
        with pytest.raises(Failed, match="was removed or renamed"):
            run.refuse_other_training()
    assert not run.path.exists()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, None])
def test_whose_folder_was_taken_over_stops_where_locks_do_not_work(tmp_path, monkeypatch, number, capsys):
    """Or only within a machine, without an error."""

    def flock(file, operation):
        if number is not None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.held():
        first.config.touch()
        first.checkpoints.mkdir()
        first.refuse_other_training()
        with second.held():
            second.refuse_other_training()
            with pytest.raises(Failed, match=f"process {os.getpid()} on {socket.gethostname()} has begun to train"):
                first.refuse_other_training()
        with pytest.raises(Failed, match="has begun to train"):
            first.refuse_other_training()
    assert ("locks do not work on this file system" in capsys.readouterr().err) == (number is not None)


def test_a_run_without_its_checkpoints_does_not_start_again(tmp_path):
    folder, config = RunFolder(tmp_path), from_config_dict({"train": {"checkpoint_every": 10, "eval_every": 10}})
    folder.record(config)
    assert not folder.compare_run(config)
    folder.metrics.write_text('{"step": 1, "loss": 1.0}\n')
    folder.checkpoints.mkdir()
    folder.note_checkpoint()  # there is none
    assert not folder.compare_run(config)
    (folder.checkpoints / "10").mkdir()
    folder.note_checkpoint()
    (folder.checkpoints / "10").rmdir()
    with pytest.raises(BadInput, match="its checkpoints are gone"):
        folder.compare_run(config)
    (folder.checkpoints / "10").mkdir()
    assert folder.compare_run(config)
    folder.config.unlink()
    with pytest.raises(BadInput, match=r"has checkpoints up to step 10 but no config\.json"):
        folder.compare_run(config)


def test_must_resume_never_starts_a_run(tmp_path, capsys):
    assert cli.main(["train", "--must-resume", *FLAGS, f"--workdir={tmp_path}/run"]) == 1
    assert "has no checkpoint to resume from" in capsys.readouterr().err and not (tmp_path / "run").exists()


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


def test_a_part_whose_file_is_nowhere_is_named(with_own_part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start/mine.py").unlink()
    with pytest.raises(BadInput, match=r"model.parts.positions = mine.py:Mine: is not there"):
        with_own_part.load_config()


@pytest.mark.parametrize(
    ("changes", "is_another"),
    [
        ({"train": {"steps": 9, "accumulate": 2, "log_every": 1}, "mesh": {"fsdp": 2}, "decode": {"beam": 1}}, False),
        ({"data": {"directory": "/elsewhere"}, "model": {"attention_implementation": "plain"}}, False),
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


def test_another_version_or_rounding_is_told_when_a_run_is_resumed(tmp_path, monkeypatch, capsys):
    config = from_config_dict({})
    folder = RunFolder(tmp_path)
    folder.record(config)
    (folder.checkpoints / "6").mkdir(parents=True)
    folder.record(config)
    assert capsys.readouterr().err == "" and folder.notes() == []
    (some, *others) = os.sched_getaffinity(0)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {some, *others, -1})
    folder.record(config)
    assert f"cores changed from {len(others) + 1} to {len(others) + 2}" in capsys.readouterr().err
    assert folder.notes() == [f"steps up to 6 were made by cores {len(others) + 1}"]
    monkeypatch.undo()
    folder.record(config)  # the other number of cores made no step
    assert folder.notes() == []
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {some, *others, -1})
    folder.record(config)
    write_json(folder.path / "versions.json", {**folder.versions(), "earlier": [], "jax": "0.1"})
    folder.record(config)
    folder.record(config)
    assert folder.notes() == ["steps up to 6 were made by jax 0.1"]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Where it is not refused, it ends soon.
FLAGS = ["--config=preset:demo", "--config.data.task.train_size=20", "--config.train.hours=1e-9"]


@pytest.mark.parametrize("names", [["config.json"], ["notes.txt", ".lock"], ["versions.json"], ["model.safetensors"]])
@pytest.mark.parametrize("command", ["train", "prepare"])
def test_a_folder_with_other_files_is_refused_and_stays_as_it_is(tmp_path, names, command, capsys):
    for name in names:
        (tmp_path / name).write_text('{"mine": 1}')
    before = contents(tmp_path)
    assert cli.main([command, *FLAGS, f"--workdir={tmp_path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}: is ")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["a killed start", "a killed worker"])
def test_what_a_killed_start_leaves_is_no_other_thing(tmp_path, kind):
    refuse_foreign(tmp_path / "missing")
    started = [".lock", "data.lock", "data.partial", "data"]
    worker = [".worker.lock", "log.txt", "attempt.json.1f3a.unfinished", "data"]
    for name in started if kind == "a killed start" else worker:
        (tmp_path / name).mkdir() if name.startswith("data") else (tmp_path / name).touch()
    refuse_foreign(tmp_path)


def test_a_run_is_known_by_any_of_its_files(tmp_path):
    """Also when a disk has damaged the others."""
    (tmp_path / "page.html").touch()
    of_runs = {"versions.json": {"transformer_jax_sha256": "0"}, "attempt.json": {"state": "running", "host": "h"}}
    for name, content in of_runs.items():
        write_json(tmp_path / name, content)
        refuse_foreign(tmp_path)
        (tmp_path / name).write_text(json.dumps(content)[:-4])
        with pytest.raises(BadInput, match="is not a run of this library"):
            refuse_foreign(tmp_path)
    (tmp_path / "config.json").touch()
    (tmp_path / "checkpoints").mkdir()
    refuse_foreign(tmp_path)


@pytest.mark.parametrize("character", list("[]*?\\"))
def test_a_path_below_which_no_checkpoint_could_be_read_is_refused(tmp_path, character):
    with pytest.raises(BadInput, match="in its path"), RunFolder(tmp_path / f"a{character}b" / "run").held():
        pass
    assert list(tmp_path.iterdir()) == []


def test_wsd_can_end_at_another_update_before_it_decays(tmp_path):
    wsd = {"optimizer__schedule": "wsd", "optimizer__decay_fraction": 0.4}
    longer, shorter = (experiment(**wsd, train__steps=steps) for steps in (24, 20))
    folder = RunFolder(tmp_path / "run")
    (folder.checkpoints / "12").mkdir(parents=True)
    folder.record(longer, 24)
    assert folder.compare_run(shorter, lambda train: train.steps)
    (folder.checkpoints / "18").mkdir()
    with pytest.raises(BadInput, match="since update 14"):
        folder.compare_run(shorter, lambda train: train.steps)


def test_a_path_that_is_not_utf8_is_refused_before_a_training(tmp_path):
    folder = tmp_path / os.fsdecode(b"by\xff")
    with pytest.raises(BadInput, match="is not UTF-8"), RunFolder(folder).held():
        pass
    assert not folder.exists()


def test_a_user_without_a_home_directory_has_runs(tmp_path, monkeypatch):
    """Such as an arbitrary number of a user in a container."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("TRANSFORMER_JAX_BUCKETS", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert os.path.expanduser("~") == "~"
    before = jax.config.jax_compilation_cache_dir
    use_cache(experiment().train.compile_cache or "~/.cache/transformer_jax")
    assert jax.config.jax_compilation_cache_dir == before
    with RunFolder(tmp_path / "run").held():
        assert (tmp_path / "run").is_dir()
