"""Folders in buckets: a mirror on each machine; a run there is the run on a disk. More in drills/test_bucket.py."""

import dataclasses
import os
import shutil

import pytest

from tests.support.cloud_storage import bucket
from tests.support.prepared_data import experiment
from tests.support.training_runs import metrics, train_here, weights
from transformer_jax import cli
from transformer_jax.config import from_json, to_json
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput, Failed
from transformer_jax.extras import MissingPackages
from transformer_jax.files import remote
from transformer_jax.runs.folder import RunFolder


@pytest.fixture(scope="module")
def url():
    with bucket() as url:
        yield url


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Goes to a machine: each has mirrors of its own."""
    monkeypatch.setattr(remote, "_mirrored", [])

    def go(name):
        monkeypatch.setenv("TRANSFORMER_JAX_BUCKETS", str(tmp_path / name))

    go("one")
    return go


def test_a_mirror_and_the_bucket_follow_each_other(url, machine):
    place = f"{url}/checkpoints/mirror"
    path = RunFolder(remote.mirrored(place)).path
    (path / "inner").mkdir(parents=True)
    for name in ("a", "inner/b", "inner/c.lock", "half.unfinished", "checkpoints"):
        (path / name).write_text(name)
    (path / "link").symlink_to("inner", target_is_directory=True)
    remote.push(path)
    assert remote.url_of(path / "a") == f"{place}/a" and remote.read_text(path / "a") == "a"

    machine("two")
    other = RunFolder(remote.mirrored(place)).path
    assert other != path and {file.name for file in other.rglob("*")} == {"a", "inner", "b", "link"}
    assert (other / "link" / "b").read_text() == "inner/b"
    (other / "a").write_text("changed there")
    (other / "inner/b").unlink()
    remote.push(other)

    machine("one")
    (path / "own").write_text("not written back yet")
    remote.pull(path)
    assert (path / "a").read_text() == "changed there" and not (path / "inner/b").exists()
    assert (path / "own").is_file() and (path / "inner/c.lock").is_file()
    shutil.rmtree(path)
    remote.push(path)
    assert remote.read_text(path / "a") == "changed there"


def test_a_link_brings_what_it_leads_to(url, machine):
    path = RunFolder(remote.mirrored(f"{url}/sweep")).path
    (path / "data").mkdir(parents=True)
    (path / "data/tokens").write_text("1 2")
    (path / "runs").mkdir()
    (path / "runs/data").symlink_to("../data", target_is_directory=True)
    remote.push(path)
    machine("two")
    assert (RunFolder(remote.mirrored(f"{url}/sweep/runs")).path / "data/tokens").read_text() == "1 2"


def test_text_in_a_bucket_is_fetched_once_by_each_machine(url, machine, tmp_path, monkeypatch):
    config = experiment(tmp_path, tokenizer="words")
    there = {f"train.{side}": f"{url}/text/train.{side}" for side in ("en", "de")}
    for name, place in there.items():
        remote._files().pipe_file(place, (tmp_path / name).read_bytes())
    source, target = ((place,) for place in there.values())
    remotely = dataclasses.replace(config, data=dataclasses.replace(config.data, source=source, target=target))
    assert from_json(to_json(remotely).encode(), "config.json") == remotely
    fetched, get = [], remote._files().get_file
    monkeypatch.setattr(remote._files(), "get_file", lambda *names: fetched.append(names) or get(*names))
    made = prepare(remotely, tmp_path / "data")
    assert made.fingerprint == prepare(config, tmp_path / "local").fingerprint
    assert [each["file"] for each in made.manifest["sources"]] == list(there.values())
    prepare(remotely, tmp_path / "data")
    assert len(fetched) == 2
    machine("two")
    prepare(remotely, tmp_path / "data")
    assert len(fetched) == 4
    remote._files().pipe_file(there["train.en"], b"other text\n")
    with pytest.raises(BadInput, match="the train text has changed"):
        prepare(remotely, tmp_path / "data")
    remote._files().rm_file(there["train.en"])
    with pytest.raises(BadInput, match=r"gs://bucket/text/train\.en: there is no such file"):
        prepare(remotely, tmp_path / "other")


def test_a_training_that_another_machine_takes_over_stops(url, machine):
    first = RunFolder(remote.mirrored(f"{url}/taken"))
    with first.held():
        first.config.touch()
        first.refuse_other_training()
        machine("two")
        with RunFolder(remote.mirrored(f"{url}/taken")).held():
            machine("one")
            with pytest.raises(Failed, match="has begun to train here"):
                first.refuse_other_training()
            machine("two")
        machine("one")


def test_a_bucket_that_does_not_answer_is_a_failure_in_one_line(machine, monkeypatch):
    def files():
        raise OSError("Service Unavailable, 503")

    monkeypatch.setattr(remote, "require", lambda *_: None)
    monkeypatch.setattr(remote, "_files", files)
    with pytest.raises(Failed, match="503"):
        remote.mirrored("gs://bucket/x")


def test_a_missing_package_is_named(machine, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackages, match=r"transformer_jax\[gcs\]"):
        remote.mirrored("gs://bucket/x")


def test_a_run_in_a_bucket_is_the_run_on_a_disk(url, machine, tmp_path):
    """Interrupted, gone on with on another machine, and evaluated on a third one."""
    often, flags = "train.log_every=6", [f"--workdir={url}/run"]
    train_here(tmp_path / "disk", often)
    train_here(tmp_path / "run", often, "train.steps=12", flags=flags)
    machine("two")
    assert "resuming from the checkpoint of step 12" in train_here(tmp_path / "run", often, flags=flags)
    there = RunFolder(remote.mirrored(f"{url}/run")).path
    assert metrics(there) == metrics(tmp_path / "disk") and not (there / "checkpoints").exists()
    ours, theirs = weights(there), weights(tmp_path / "disk")
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    shutil.rmtree(os.environ["TRANSFORMER_JAX_BUCKETS"])
    assert cli.main(["evaluate", *flags, "--config.decode.beam=1", "--config.decode.extra_length=2"]) == 0
    machine("three")
    assert (RunFolder(remote.mirrored(f"{url}/run")).path / "translations").is_dir()
