"""Folders of runs and of models that a disk has spoilt, or a stranger has made: never a silent wrong result."""

import errno
import json
import random
import shutil
import types

import jax
import numpy as np
import pytest
from safetensors.numpy import save

from tests.support.translating_runs import make_run
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import write_record
from transformer_jax.files.digests import file_sha256
from transformer_jax.files.record import read_record
from transformer_jax.runs import export
from transformer_jax.runs.checkpoint import Checkpoints, DamagedCheckpoint
from transformer_jax.runs.code import CodeSnapshots
from transformer_jax.runs.export import SavedWeights, new_folder
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import Criterion
from transformer_jax.translation.load import read_weights


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def test_a_checkpoint_that_the_disk_does_not_return_is_a_failure_and_no_bad_input(tmp_path):
    def unreadable(*_):
        raise DamagedCheckpoint("input/output error") from OSError(errno.EIO, "input/output error")

    weights = SavedWeights.__new__(SavedWeights)
    weights._checkpoints = types.SimpleNamespace(
        steps=[3], directory=tmp_path, restore=unreadable, is_deleted=lambda step: False
    )
    weights._wanted = None
    with pytest.raises(Failed, match="is damaged"):
        weights.average([3])


def test_the_best_checkpoint_is_found_although_the_newest_record_is_damaged(tmp_path):
    def record(step):
        if step == 6:
            raise DamagedCheckpoint("its record is not what was saved")
        return {"notes": {"best": Criterion("valid_loss", "lowest")._asdict()}}

    lines = [json.dumps({"step": step, "valid_loss": float(step)}) for step in (3, 6)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    weights = SavedWeights.__new__(SavedWeights)
    weights._checkpoints = types.SimpleNamespace(steps=[3, 6], record=record, is_deleted=lambda step: False)
    weights._folder = types.SimpleNamespace(metrics=tmp_path / "metrics.jsonl")
    assert weights.best_steps(1) == [3]


def test_training_deletes_a_checkpoint_while_it_is_read(run):
    folder = RunFolder(run)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), export._abstract(folder.load_config()))

    def trained(step):
        with Checkpoints(folder.checkpoints) as checkpoints:
            checkpoints.save(step, state, {"best": Criterion("valid_loss", "lowest")._asdict(), "data": ""})

    trained(3)
    weights = SavedWeights(folder)
    trained(6)
    for read in (weights.newest, lambda: weights.average([3])):
        with pytest.raises(Failed, match="training deleted it while it was being read"):
            read()


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
def test_each_file_in_turn(whole, run, part, read, damage):
    wanted, dice, told = read(whole), random.Random(0), []
    files = sorted(path.name for path in (run / part).iterdir())
    for name in files:
        for _ in range(8 if damage is flipped else 1):
            shutil.copy(whole / part / name, run / part / name)
            damage(run / part / name, dice)
            try:
                found = read(run)
            except BadInput as problem:
                told.append(str(problem))
            else:
                same = all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
                assert same, name
        shutil.copy(whole / part / name, run / part / name)
    assert len(told) >= len(files) / 2
    assert all(str(run) in line and "\n" not in line for line in told)


def test_a_config_that_was_changed_is_told_of(run, capfd):
    """One digit: JSON as good as before, and a beam that nobody chose."""
    for config in (run / "config.json", run / "averaged/config.json"):
        config.write_text(config.read_text().replace('"beam": 4', '"beam": 5'))
    RunFolder(run).warn_of_changed_config()
    assert f"warning: {run / 'config.json'} was changed by hand, or is damaged" in capfd.readouterr().err
    with pytest.raises(BadInput, match="changed by hand"):
        read_weights(run, "averaged")


def test_a_link_to_a_disk_that_is_not_there_is_not_replaced(tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "disk")
    with pytest.raises(BadInput, match="exists already"), new_folder(tmp_path / "model"):
        pass
    assert (tmp_path / "model").is_symlink()


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
    (tmp_path / "model/translations").mkdir()
    (tmp_path / "model/translations/test.latest.json").touch()
    with new_folder(tmp_path / "model", replace=True) as unfinished:
        (unfinished / "new").touch()
    assert (tmp_path / "model/translations/test.latest.json").exists() and (tmp_path / "model/new").exists()


def test_a_folder_that_appears_meanwhile_stays(tmp_path):
    def write():
        with new_folder(tmp_path / "model"):
            (tmp_path / "model").mkdir()
            (tmp_path / "model/thesis.tex").touch()

    with pytest.raises(BadInput, match="exists already"):
        write()
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "thesis.tex"]


def test_a_folder_takes_the_place_of_a_link(tmp_path):
    (tmp_path / "model").symlink_to("elsewhere")
    with new_folder(tmp_path / "model", replace=True) as unfinished:
        (unfinished / "new").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and (tmp_path / "model/new").is_file()


def test_a_folder_takes_the_place_of_an_old_one_that_cannot_be_removed(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/old").touch()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as on a disk where removing fails
    with new_folder(tmp_path / "model", replace=True) as unfinished:
        (unfinished / "new").touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["new"]


@pytest.mark.parametrize("name", ["../../secret", 7])
def test_no_record_leads_out_of_its_folder(run, name):
    record = run / "averaged/weights.json"
    content = read_record(record)
    content["tokenizers"]["source"] = name
    write_record(record, content)
    with pytest.raises(BadInput, match=r"is not the name of a file in this folder|must be of type str"):
        of_weights(run)


@pytest.mark.parametrize("field", ["tokenizers", "sha256"])
def test_a_record_without_the_name_of_a_file_is_damaged(run, field):
    record = run / "averaged/weights.json"
    write_record(record, {**read_record(record), field: {}})
    with pytest.raises(BadInput, match=rf"weights\.json: is damaged: {field} has no "):
        of_weights(run)


def of_8_bits():
    """A safetensors file with a type that numpy lacks."""
    header = json.dumps({"table": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda arrays: b"spam", "is not a valid safetensors file"),
        (lambda arrays: of_8_bits(), "is not a valid safetensors file"),
        (lambda arrays: save({name: array for name, array in arrays.items() if "norm" not in name}), "nothing saved"),
        (lambda arrays: save({name: array[:1] for name, array in arrays.items()}), "is of another model than config"),
        (lambda arrays: save({**arrays, "encoder/extra": arrays["source_embedding/table"]}), "encoder/extra"),
        (lambda arrays: save({**arrays, "source_embedding": arrays["source_embedding/table"]}), "source_embedding: "),
    ],
    ids=["no arrays", "8 bits", "fewer arrays", "other shapes", "more arrays", "an array where others are below"],
)
def test_weights_of_somebody_else_are_the_arrays_of_their_config(run, spoil, message):
    file, record = run / "averaged/model.safetensors", run / "averaged/weights.json"
    file.write_bytes(spoil(export.stored_arrays(file)))
    content = read_record(record)
    content["sha256"][file.name] = file_sha256(file)
    write_record(record, content)
    with pytest.raises(BadInput, match=message):
        of_weights(run)


def test_tokenizers_of_one_name_are_refused(run, tmp_path):
    weights = read_weights(run / "averaged")
    file = shutil.copy(weights.tokenizers["source"], tmp_path / weights.tokenizers["source"].name)
    both = {"source": weights.tokenizers["source"], "target": file}
    with pytest.raises(BadInput, match="each file must have a name of its own"):
        export.write_export(tmp_path / "exported", weights._replace(tokenizers=both))


def test_a_link_beside_custom_code_is_not_followed_by_an_export(run, tmp_path):
    (tmp_path / "secret").write_text("mine")
    (run / "code").mkdir()
    (run / "code" / "link").symlink_to(tmp_path / "secret")
    weights = read_weights(run / "averaged")._replace(code=CodeSnapshots(run))
    export.write_export(tmp_path / "exported", weights)
    assert (tmp_path / "exported/code/link").is_symlink()
