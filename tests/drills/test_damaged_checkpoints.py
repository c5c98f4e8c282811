"""Drill: each file of the newest checkpoint is damaged in turn. Never a silent wrong restore: an exact one, or the one
before with the damage named."""

import shutil

import numpy as np
import pytest

from tests.runs.test_checkpoint import assert_equal, restored, saved, state_of
from transformer_jax.errors import BadInput
from transformer_jax.runs.checkpoint import Checkpoints


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path):
    path.write_bytes(b"")


def deleted(path):
    path.unlink()


def flipped(path, dice=None):
    content = bytearray(path.read_bytes())
    if content:
        bit = (dice or np.random.default_rng(len(content))).integers(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def often_flipped(path):
    return [lambda path, seed=seed: flipped(path, np.random.default_rng(seed)) for seed in range(5)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "checkpoints"
    saved(directory, [1, 2], {1: 1.0, 2: 2.0}, keep_latest=2, keep_best=1)
    return directory


def files(directory):
    return sorted(path.relative_to(directory) for path in (directory / "2").rglob("*") if path.is_file())


def test_every_file_in_every_way(whole, tmp_path):
    outcomes = {}
    for file in files(whole):
        for damage in (truncated, emptied, deleted, flipped, *often_flipped(file)):
            directory = tmp_path / "checkpoints"
            shutil.copytree(whole, directory)
            damage(directory / file)
            found = restored(directory)
            assert_equal(found.state, state_of(found.step))
            assert found.notes == {"of": found.step}
            if found.step == 1 and (directory / "2").is_dir() and not _is_marker(file):
                assert list(found.damaged) == [2] and found.damaged[2], (file, damage)
            outcomes[str(file), damage.__name__] = found.step
            # And the run goes on: what is damaged is set aside, and the next checkpoint is saved and restored.
            with Checkpoints(directory, keep_latest=2, keep_best=1) as checkpoints:
                for step in found.damaged:
                    checkpoints.set_aside(step)
                checkpoints.save(3, state_of(3), {"of": 3})
            assert restored(directory).step == 3
            shutil.rmtree(directory)
            shutil.rmtree(tmp_path / "damaged_checkpoints", ignore_errors=True)
    assert {*outcomes.values()} == {1, 2}  # some damage does no harm, some does


def _is_marker(file):
    """Without its marker a directory is no checkpoint, and there is nothing to warn of but its absence."""
    return file.name in ("_CHECKPOINT_METADATA", "commit_success.txt")


def test_both_damaged(whole, tmp_path):
    directory = tmp_path / "checkpoints"
    shutil.copytree(whole, directory)
    for step in ("1", "2"):
        for path in (directory / step / "state").rglob("*"):
            if path.is_file():
                truncated(path)
    with pytest.raises(BadInput, match="every checkpoint is damaged"):
        restored(directory)
