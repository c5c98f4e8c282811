"""Folders of runs and of models that a disk has spoilt, or a stranger has made: never a silent wrong result."""

import json
import random
import shutil
import types

import jax
import numpy as np
import pytest

from tests.support.translating_runs import make_run
from transformer_jax.cli import main
from transformer_jax.commands.run_page import run_numbers
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput
from transformer_jax.files.record import sealed
from transformer_jax.runs.export import SavedWeights
from transformer_jax.runs.folder import RunFolder
from transformer_jax.translation.load import read_weights


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def flipped(path, dice):
    content = bytearray(path.read_bytes())
    bit = dice.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def truncated(path, dice):
    content = path.read_bytes()
    path.write_bytes(content[: dice.randrange(len(content))])


def deleted(path, dice):
    path.unlink()


def of_weights(run):
    """All that a translation depends on."""
    found = read_weights(run / "averaged")
    texts = [path.read_bytes() for path in found.tokenizers.values()]
    return [found.config, found.steps, texts, *map(np.asarray, jax.tree.leaves(found.params))]


def of_data(run):
    """All that a training and an evaluation depend on."""
    prepared = Prepared.open(run / "data")
    prepared.verify()
    files = [path.read_bytes() for path in prepared.tokenizer_files.values()]
    return [prepared.fingerprint, prepared.vocab_size, files, prepared.texts("test"), prepared.texts("valid")]


@pytest.mark.parametrize("damage", [flipped, truncated, deleted])
@pytest.mark.parametrize(("part", "read"), [("averaged", of_weights), ("data", of_data)])
def test_each_file_in_turn(whole, run, part, read, damage, capfd):
    wanted, dice, told = read(whole), random.Random(0), []
    files = sorted(path.name for path in (run / part).iterdir())
    for name in files:
        for _ in range(8 if damage is flipped else 1):
            shutil.copy(whole / part / name, run / part / name)
            damage(run / part / name, dice)
            capfd.readouterr()
            try:
                found = read(run)
            except BadInput as problem:
                told.append(str(problem))
            else:
                same = all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
                assert same or "warning: " in capfd.readouterr().err, name
        shutil.copy(whole / part / name, run / part / name)
    assert len(told) >= len(files) / 2
    assert all(str(run) in line and "\n" not in line for line in told)


def test_a_config_that_was_changed_is_told_of(run, capfd):
    """One digit: JSON as good as before, and a beam that nobody chose."""
    config = run / "averaged/config.json"
    config.write_text(config.read_text().replace('"beam": 4', '"beam": 5'))
    read_weights(run, "averaged")
    assert (
        capfd.readouterr().err
        == f"warning: {config} is not what was written there (changed by hand, or damaged); taken as it is\n"
    )
    config = run / "config.json"
    RunFolder(run).warn_of_changed_config()
    assert capfd.readouterr().err == ""
    config.write_text(config.read_text().replace('"beam": 4', '"beam": 5'))
    RunFolder(run).warn_of_changed_config()
    assert f"warning: {config} is not what was written there" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", 7, {}])
@pytest.mark.parametrize("record", ["averaged/weights.json", "data/manifest.json"])
def test_no_record_leads_out_of_its_folder(run, record, name):
    content = json.loads((run / record).read_text())
    content.pop("crc32")
    if "manifest" in record:
        content["tokenizers"]["source"]["file"] = name
    else:
        content["tokenizers"]["source"] = name
    (run / record).write_text(json.dumps(sealed(content)))
    with pytest.raises(BadInput, match="is not the name of a file in this folder"):
        (of_data if "manifest" in record else of_weights)(run)


@pytest.mark.parametrize("character", list("[]*?\\"))
def test_a_path_below_which_no_checkpoint_could_be_read_is_refused(tmp_path, character, capsys):
    workdir = tmp_path / f"a{character}b" / "run"
    assert main(["train", "--config=preset:demo", f"--workdir={workdir}"]) == 2
    assert capsys.readouterr().err == (
        f"error: {workdir}: has {character} in its path, where no checkpoint could be read back; rename it\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_diverged_runs_numbers_are_told():
    """Its perplexity is null: no number at all."""
    lines = [{"step": 1, "valid_perplexity": 7.0}, {"step": 2, "loss": None, "valid_perplexity": None}]
    told = run_numbers(types.SimpleNamespace(params={"a": np.zeros(3)}), lines)
    assert told == {"validation perplexity": "7.000", "updates": "2", "parameters": "3"}


@pytest.mark.parametrize("noted", ["right", "other"])
def test_data_that_was_prepared_anew_is_noticed(run, monkeypatch, capsys, noted):
    """Its tokenizer may be another one than the model's."""
    fingerprint = Prepared.open(run / "data").fingerprint
    record = {"notes": {"data": fingerprint if noted == "right" else "0"}}
    config, params = (getattr(read_weights(run / "averaged"), name) for name in ("config", "params"))

    class Saved(SavedWeights):
        def __init__(self, folder):
            self.config, self._checkpoints = config, types.SimpleNamespace(record=lambda step: record)
            self._data = folder.data(config)

        def newest(self):
            return 7, params

    monkeypatch.setattr("transformer_jax.translation.load.SavedWeights", Saved)
    assert read_weights(run).steps == [7]
    assert ("is not the data that the checkpoint of step 7" in capsys.readouterr().err) == (noted == "other")
