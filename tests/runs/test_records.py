"""Records of evaluations: their names, and what tells one from the one that is wanted."""

import dataclasses

import pytest

from transformer_jax.config import DecodeConfig
from transformer_jax.runs.records import (
    difference,
    lines_sha256,
    named,
    search,
    texts_sha256,
    translations,
)

USUAL = DecodeConfig()
WANTED = {
    "test_set_sha256": texts_sha256(["a"], ["b"]),
    "weights_sha256": "1" * 64,
    "steps": [6],
    "decode": search(USUAL),
    "bleu_tokenize": "13a",
    "metrics": {"words": "mine.py:words"},
    "version": "1",
}
RECORD = {**WANTED, "test_set": "test", "measures": {"words": {"signature": "mine.py:words"}}}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"test_set_sha256": "0"}, "is of another test set (0)"),
        ({"steps": [3, 6]}, "is of another step ([3, 6])"),
        ({"decode": {**search(USUAL), "beam": 2}}, f"is of another search: beam = 2, not {USUAL.beam}"),
        ({"decode": {**search(USUAL), "eos": "ignored"}}, "is of another search: eos = ignored, not normal"),
        ({"weights_sha256": "2"}, "is of other weights (2)"),
        ({"measures": {}}, "has no words of mine.py:words"),
        ({"bleu_tokenize": "zh"}, "has another tokenizer of BLEU (zh)"),
        ({"version": "0"}, "was made by another version (0)"),
    ],
)
def test_how_a_record_differs_from_the_wanted_one(changes, told):
    assert difference({**RECORD, **changes}, WANTED) == told


def test_another_search_and_exported_weights_are_in_the_name(tmp_path):
    other = dataclasses.replace(USUAL, beam=2, tokens_per_batch=7)
    assert named("test", "best", "1" * 64, USUAL, USUAL) == "test.best"
    assert named("test", "best", "1" * 64, other, USUAL) == "test.best.beam=2"
    assert named("test", str(tmp_path / "mine"), "1" * 64, USUAL, USUAL) == "test.mine.11111111"


def test_translations_are_those_that_were_scored(tmp_path):
    path, lines = tmp_path / "test.best.json", ["a", "b c"]
    record = {"n": 2, "hypotheses_sha256": lines_sha256(lines)}
    assert translations(path, record) is None
    path.with_suffix(".txt").write_text("a\nb c\n")
    assert translations(path, record) == translations(path, {}) == lines
    assert translations(path, {**record, "hypotheses_sha256": "0"}) is None and translations(path, {"n": 3}) is None
