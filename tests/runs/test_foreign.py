"""Folders that hold something else: no command begins to write there, and what is there stays as it is."""

import json
import os
from pathlib import Path

import pytest

from tests.support.finished_sweeps import make_sweep
from tests.support.small_runs import experiment
from tests.support.translating_runs import make_run
from transformer_jax.cli import main
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import write_json
from transformer_jax.runs.export import new_folder
from transformer_jax.runs.folder import RunFolder, refuse_foreign
from transformer_jax.sweeps.folder import SweepFolder

# Where it is not refused, it ends soon.
CONFIG_FLAGS = ["--config=preset:demo", "--config.data.task.train_size=20", "--config.train.hours=1e-9"]
VERSIONS = {"python": "3.11", "platform": "Linux", "command": "train"}
CONFIG = dict.fromkeys(("seed", "model", "data", "optimizer", "mesh", "train", "decode"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return RunFolder(make_run(tmp_path_factory.mktemp("runs") / "run")).averaged


@pytest.mark.parametrize("command", ["train", "prepare"])
def test_an_exported_folder_is_refused_and_stays_as_it_is(exported, command, capsys):
    before = contents(exported)
    assert main([command, *CONFIG_FLAGS, f"--workdir={exported}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {exported}: is an exported folder, whose config.json")
    assert contents(exported) == before


@pytest.mark.parametrize(
    "names", [["config.json"], ["metrics.jsonl"], ["notes.txt", ".lock"], ["versions.json"]], ids=str
)
@pytest.mark.parametrize("command", ["train", "prepare", "sweep preset:table3"])
def test_a_folder_with_other_files_is_refused_and_stays_as_it_is(tmp_path, names, command, capsys):
    for name in names:
        (tmp_path / name).write_text('{"mine": 1}')
    before = contents(tmp_path)
    config = ["--dry-run"] if "sweep" in command else CONFIG_FLAGS
    assert main([*command.split(), *config, f"--workdir={tmp_path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith((f"error: {tmp_path}: is no ", f"error: {tmp_path}: is not ")) and "not empty" in line
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "names",
    [
        [],
        [".lock"],
        [".lock", "data.lock", "data.partial", "data"],
        [".worker.lock", "log.txt", "attempt.json.1f3a.unfinished", "data"],
    ],
    ids=str,
)
def test_what_a_killed_start_leaves_is_no_other_thing(tmp_path, names):
    refuse_foreign(tmp_path / "missing")
    for name in names:
        (tmp_path / name).mkdir() if name.startswith("data") else (tmp_path / name).touch()
    refuse_foreign(tmp_path)


def test_a_run_is_known_by_any_of_its_files(tmp_path):
    """Also when a disk has damaged the others."""
    (tmp_path / "page.html").touch()
    for name, content in {
        "versions.json": VERSIONS,
        "attempt.json": {"state": "running", "host": "h", "pid": 1},
    }.items():
        write_json(tmp_path / name, content)
        refuse_foreign(tmp_path)
        (tmp_path / name).write_text(json.dumps(content)[:-4])
        with pytest.raises(BadInput, match="is not a run of this library"):
            refuse_foreign(tmp_path)
    write_json(tmp_path / "config.json", CONFIG)
    with pytest.raises(BadInput, match="is not a run of this library"):
        refuse_foreign(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    refuse_foreign(tmp_path)


def test_a_sweep_does_not_take_the_lock_of_others(tmp_path):
    (tmp_path / "theirs").touch()
    (tmp_path / ".lock").write_text("theirs")
    with pytest.raises(BadInput, match="is not a sweep, and not empty"), SweepFolder(tmp_path).held():
        pass
    assert contents(tmp_path) == {"theirs": b"", ".lock": b"theirs"}


@pytest.mark.parametrize("name", ["index.html", "table.csv", "report.md", "report.json"])
def test_a_report_replaces_reports_only(tmp_path, name, capsys):
    sweep, output = make_sweep(tmp_path / "sweep", seeds=(0,), sentences=5), tmp_path / "docs"
    output.mkdir()
    (output / name).write_text('{"mine": 1}')
    assert main(["report", str(sweep), f"--output={output}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {output}: has {name}, not of a report")
    assert contents(output) == {name: b'{"mine": 1}'}
    (output / name).rename(output / "other.txt")
    for _ in range(2):  # the second replaces the first
        assert main(["report", str(sweep), f"--output={output}"]) == 0
    assert set(os.listdir(output)) == {
        *("index.html", "table.csv", "runs.csv", "report.md", "report.json", "other.txt"),
    }


def test_a_folder_that_fails_to_be_written_leaves_nothing(tmp_path):
    (tmp_path / "model.unfinished").mkdir()  # of the user
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "model") as unfinished:
        (unfinished / str(1 // 0)).touch()
    assert [path.name for path in tmp_path.iterdir()] == ["model.unfinished"]
    with new_folder(tmp_path / "model") as unfinished:
        (unfinished / "file").touch()
    with pytest.raises(BadInput, match="exists already"), new_folder(tmp_path / "model"):
        pass
    with new_folder(tmp_path / "model", replace=True):
        pass
    assert not list((tmp_path / "model").iterdir())


def test_unfinished_preparation_is_removed_only_where_it_is_ours(tmp_path):
    (tmp_path / "data.partial").mkdir()
    (tmp_path / "data.partial" / "theirs").touch()
    task = {"data__corpus": "copy", "data__tokenizer": "words", "data__task__train_size": 20}
    with pytest.raises(BadInput, match=r"data\.partial: .* contains something else"):
        prepare(experiment(**task), tmp_path / "data")
    assert contents(tmp_path) == {"data.partial/theirs": b""}


@pytest.mark.parametrize("names", [["data/train.txt"], ["sweep.json"]])
def test_a_sweep_leaves_nothing_where_it_does_not_begin(tmp_path, names):
    """Not even its lock: data of other kinds, or a sweep.json that is not ours."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    before = contents(tmp_path)
    with pytest.raises(BadInput, match="is not a "), SweepFolder(tmp_path).held():
        pass
    assert contents(tmp_path) == before
