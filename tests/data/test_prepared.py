"""A prepared corpus on disk: what it holds, and every kind of damage to it."""

import os
import shutil

import numpy as np
import pytest

from tests.support.prepared_data import decoded, experiment
from transformer_jax.config import DataConfig, ExperimentConfig
from transformer_jax.data import prepare as prepare_module
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import Prepared
from transformer_jax.data.tokenizer import train_symbols
from transformer_jax.errors import BadInput


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    return prepare(experiment(directory), directory / "data").directory


LABELLED = """
def pairs(split):
    labels = {"train": [], "valid": [{}] * 3, "test": [{"kind": "new", "cluster": str(i % 2)} for i in range(3)]}[split]
    return [("a b", str(i), *labels[i : i + 1]) for i in range(3)]
"""


def test_labels_of_test_examples_are_kept_and_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "BLOCK", 2)
    (tmp_path / "mine.py").write_text(LABELLED)
    config = ExperimentConfig(data=DataConfig(corpus=f"{tmp_path / 'mine.py'}:pairs", tokenizer="words"))
    prepared = prepare(config, tmp_path / "data")
    assert prepared.groups("test") == [{"kind": "new"}] * 3 and prepared.clusters("test") == ["0", "1", "0"]
    assert prepared.groups("valid") is None and prepared.clusters("valid") is None
    prepared.verify()
    (tmp_path / "some.py").write_text(LABELLED.replace('"cluster": str(i % 2)', '**({"cluster": "a"} if i else {})'))
    config = ExperimentConfig(data=DataConfig(corpus=f"{tmp_path / 'some.py'}:pairs", tokenizer="words"))
    alone, *others = prepare(config, tmp_path / "some").clusters("test")
    assert others == ["a", "a"] != [alone] * 2
    path = tmp_path / "data" / "test.groups.jsonl"
    path.write_text(path.read_text().replace("new", "old"))
    for check in (prepared.verify, lambda: prepared.groups("test")):
        with pytest.raises(BadInput, match=r"test\.groups\.jsonl"):
            check()


@pytest.fixture
def data(made, tmp_path):
    """A copy of it, which the test may damage."""
    return shutil.copytree(made, tmp_path / "data")


def test_references_never_pass_a_tokenizer(tmp_path):
    pairs = [(f"Ａ ﬁ  {i} ", f" ² ⁇ {i}\u2028") for i in range(100)]
    config = experiment(tmp_path, pairs, vocab_size=290, normalization="nmt_nfkc")
    prepared = prepare(config, tmp_path / "data")
    sources, references = prepared.texts("test")
    assert set(zip(sources, references, strict=True)) < set(pairs)
    assert decoded(prepared, "test") != list(zip(sources, references, strict=True))
    with pytest.raises(BadInput, match="no texts of the split 'train'; there are: valid, test"):
        prepared.texts("train")
    with pytest.raises(BadInput, match="no texts of the split 'dev'"):
        prepared.texts("dev")


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path):
    pairs = [(" ".join(f"{i:x}" for i in range(1000 * k, 1000 * k + 1000)), f"{k}") for k in range(70)]
    config = experiment(tmp_path, pairs, tokenizer="words", valid_size=0, test_size=0)
    prepared = prepare(config, tmp_path / "data")
    assert prepared.vocab_size >= 70_004
    assert prepared.pairs("train").source_tokens.dtype == np.int32
    assert decoded(prepared, "train")[-1] == pairs[-1]


def test_damage_is_noticed(data):
    """A flipped bit by verify; another size, a missing file or another tokenizer on opening."""
    prepared = Prepared.open(data)
    prepared.verify()
    model = (data / "tokenizer.model").read_bytes()
    train_symbols(["a"], "words").save(data / "tokenizer.model")
    with pytest.raises(BadInput, match=r"tokenizer\.model"):
        Prepared.open(data)
    (data / "tokenizer.model").write_bytes(model)
    path = data / "train.target.tokens"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"train\.target\.tokens"):
        prepared.verify()
    path = data / "valid.target.offsets"
    for size in (path.stat().st_size - 2, 0):
        os.truncate(path, size)
        with pytest.raises(BadInput, match=r"valid\.target\.offsets"):
            Prepared.open(data)
    path.unlink()
    with pytest.raises(BadInput, match=r"valid\.target\.offsets"):
        Prepared.open(data)


@pytest.mark.parametrize("content", ["", "[]", '{"format": 99}'])
def test_a_damaged_manifest_is_refused(data, content):
    (data / "manifest.json").write_text(content)
    with pytest.raises(BadInput, match=r"manifest\.json"):
        Prepared.open(data)
    with pytest.raises(BadInput, match=r"nowhere: holds no prepared data .*: transformer-jax prepare --config"):
        Prepared.open("nowhere")
