"""Vocabularies: their size, their characters, and the text that they are trained on."""

import dataclasses

import pytest

from tests.support.prepared_data import experiment
from transformer_jax.data.prepare import prepare
from transformer_jax.data.tokenizer import UNK
from transformer_jax.data.vocabulary import LARGE_ALPHABET, evenly_spread, train_sentencepiece
from transformer_jax.errors import BadInput

WORDS = ["vague zebra quick fjord"] * 40


def test_evenly_spread():
    assert list(evenly_spread("abcdefghij", 10, 100)) == list("abcdefghij")
    for wanted in range(1, 10):
        assert len(list(evenly_spread("abcdefghij", 10, wanted))) == wanted


def test_a_small_text_has_as_many_tokens_as_it_supports(tmp_path):
    """The same command finds the data again; another limit is another vocabulary."""
    config = experiment(tmp_path, vocab_size=8000, hard_vocab_limit=False)
    prepared = prepare(config, tmp_path / "data")
    assert 300 < prepared.vocab_size < 8000
    assert prepare(config, tmp_path / "data").fingerprint == prepared.fingerprint
    with pytest.raises(BadInput, match="hard_vocab_limit"):
        prepare(experiment(tmp_path, vocab_size=8000), tmp_path / "data")
    with pytest.raises(BadInput, match=f"supports at most {prepared.vocab_size}"):
        prepare(experiment(tmp_path, vocab_size=8000), tmp_path / "exact")
    exact = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=prepared.vocab_size))
    assert prepare(exact, tmp_path / "other").fingerprint == prepared.fingerprint


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("line", ["漢字仮名" * 1500, "漢字仮名 \u2585 " * 3], ids=["long", "reserved character"])
def test_no_line_is_left_out_of_the_training(kind, line):
    """SentencePiece skips lines of more than 4,192 bytes, and those with a character that it reserves."""
    tokenizer = train_sentencepiece(lambda: [*WORDS, line], kind, 400, hard_vocab_limit=False)
    assert len(tokenizer.encode("漢字仮名")) <= 5


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_every_letter_of_an_alphabet_has_a_token(kind):
    """Rare ones too: `ö` once among ten thousand characters."""
    texts = [*WORDS * 10, "zwölf"]
    tokenizer = train_sentencepiece(lambda: texts, kind, 400, hard_vocab_limit=False)
    assert UNK not in tokenizer.encode("ö") and "<0xC3>" not in tokenizer.pieces(tokenizer.encode("ö"))


def test_rare_characters_of_a_large_alphabet_are_spelled_as_bytes():
    many = "".join(map(chr, range(0x4E00, 0x4E00 + LARGE_ALPHABET)))
    texts = [*[many] * 40, "zwölf"]
    covered, whole = (
        train_sentencepiece(lambda: texts, "bpe", 1500, character_coverage=coverage) for coverage in (0.9995, 1.0)
    )
    assert "<0xC3>" in covered.pieces(covered.encode("ö")) and "<0xC3>" not in whole.pieces(whole.encode("ö"))
