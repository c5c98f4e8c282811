"""Tokenizers: text comes back exactly, the same text gives the same tokenizer, special ids are where they should be."""

import io
import re
import unicodedata
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_jax.data.tokenizer import (
    BOS,
    EOS,
    PAD,
    SPECIAL_PIECES,
    UNK,
    SentencePieceTokenizer,
    SymbolKind,
    load_tokenizer,
)
from transformer_jax.data.vocabulary import train_sentencepiece, train_symbols
from transformer_jax.errors import BadInput

TEXTS = [
    f"the {adjective} {noun} {verb} {number} times, über ▁ {noun}"
    for adjective in ("small", "old", "green")
    for noun in ("tower", "garden", "engine", "Straße")
    for verb in ("waits", "turned", "sings")
    for number in range(10)
]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def subwords(request):
    return train_sentencepiece(lambda: TEXTS, request.param, 300)


@pytest.fixture(scope="module")
def foreign():
    """A model as SentencePiece makes it by default: other special ids, no padding, no bytes, a normalising rule."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.Train(sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=40, minloglevel=2)
    return model.getvalue()


any_text = st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \t;\n\r▁\u2028😀<>")))


@settings(max_examples=100, deadline=None)
@given(text=any_text)
@example("")
@example("  two  spaces and one at the end ")
@example("\tTabs\t and\r\nlines\n")
@example("▁a ▁▁ b▁")
@example("<s> </s> <unk> <pad> <0x41> ⁇")
@example("a\u2028b\u2029c\u0085d\x00e\ufeff")
@example("e\u0301 \u00e9 ﬁ ² 𝔄 👩‍👩‍👧 \U0010fffd▁")
def test_text_comes_back_exactly(subwords, text):
    assert subwords.decode(subwords.encode(text)) == text


def test_a_batch_is_each_text_encoded(subwords):
    texts = [*TEXTS[:50], "", " ", "▁", "new ☃ signs"]
    assert subwords.encode_batch(texts) == [subwords.encode(text) for text in texts]
    assert subwords.encode_batch([]) == []


def test_byte_fallback_leaves_nothing_unknown(subwords):
    assert UNK not in subwords.encode("Ω snowman ☃, 漢字")
    without = train_sentencepiece(lambda: TEXTS, "bpe", 100, byte_fallback=False)
    assert UNK in without.encode("Ω")


def test_the_same_text_gives_the_same_tokenizer(subwords, request):
    kind = request.node.callspec.params["subwords"]
    again = train_sentencepiece(lambda: TEXTS, kind, 300)
    assert again.serialized() == subwords.serialized()
    assert again.fingerprint == subwords.fingerprint != train_sentencepiece(lambda: TEXTS, kind, 295).fingerprint


def test_size_and_special_ids(subwords):
    assert subwords.vocab_size == 300
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert subwords.pieces([PAD, BOS, EOS, UNK]) == list(SPECIAL_PIECES)
    ids = subwords.encode("the old tower")
    assert min(ids) > UNK
    assert subwords.decode([BOS, *ids, EOS, PAD, PAD]) == "the old tower"
    assert "".join(subwords.pieces(ids)).replace("▁", " ").strip() == "the old tower"


def test_normalization_is_a_switch():
    text = "ﬁne ²"
    identity = train_sentencepiece(lambda: TEXTS, "bpe", 300)
    nfkc = train_sentencepiece(lambda: TEXTS, "bpe", 300, normalization="nmt_nfkc")
    assert identity.decode(identity.encode(text)) == text
    assert nfkc.decode(nfkc.encode(text)) == "fine 2"


def test_saved_and_loaded(subwords, tmp_path):
    subwords.save(tmp_path / "tokenizer.model")
    loaded = load_tokenizer(tmp_path / "tokenizer.model")
    assert loaded.fingerprint == subwords.fingerprint
    assert loaded.encode(TEXTS[7]) == subwords.encode(TEXTS[7])


def test_a_foreign_model_gets_our_special_ids(foreign):
    tokenizer = SentencePieceTokenizer(foreign)
    assert tokenizer.vocab_size == 41  # its 40 have <unk>, <s> and </s>; ours has <pad> too
    ids = tokenizer.encode("the old tower")
    assert min(ids) > UNK
    assert max(ids) < tokenizer.vocab_size
    assert tokenizer.decode([BOS, *ids, EOS, PAD]) == "the old tower"
    assert UNK in tokenizer.encode("☃")
    assert tokenizer.pieces([PAD, UNK]) == ["<pad>", "<unk>"]
    assert tokenizer.encode_batch(TEXTS[:5]) == [tokenizer.encode(text) for text in TEXTS[:5]]


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_an_impossible_size_names_the_possible_ones(byte_fallback, capfd):
    def trained(size):
        size_option = "model.vocab_size"
        return train_sentencepiece(lambda: TEXTS, "bpe", size, size_option=size_option, byte_fallback=byte_fallback)

    with pytest.raises(BadInput, match=r"^model.vocab_size = 10: .* at least (\d+)") as too_small:
        trained(10)
    with pytest.raises(BadInput, match=r"^model.vocab_size = 100000: .* at most (\d+)") as too_large:
        trained(100_000)
    for refused in (too_small, too_large):
        size = int(re.findall(r"\d+", str(refused.value))[1])
        assert trained(size).vocab_size == size
        assert ("data.byte_fallback=false" in str(refused.value)) == byte_fallback
    assert capfd.readouterr() == ("", "")  # SentencePiece itself says nothing


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(any_text, min_size=1, max_size=5), kind=st.sampled_from(get_args(SymbolKind)))
def test_symbols_of_the_text_come_back_exactly(texts, kind):
    tokenizer = train_symbols(texts, kind)
    if kind == "letters_and_tags":
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)] == texts


def test_letters_of_characters_that_training_lacks_are_known():
    tokenizer = train_symbols(["각 나\tN;PL", "né"], "letters_and_tags")
    assert tokenizer.pieces(tokenizer.encode("낙\tN;PL")) == ["\u1102", "\u1161", "\u11a8", "\tN", ";PL"]
    assert tokenizer.decode(tokenizer.encode("낙é")) == "낙é"
    tagged = train_symbols(["a\tGe\u0301"], "letters_and_tags")
    assert UNK not in tagged.encode("a\tG\u00e9")
    assert UNK in train_symbols(["각 나", "né"], "characters_and_tags").encode("낙")


def test_symbols_are_ordered_by_frequency_then_alphabet():
    tokenizer = train_symbols(["b a c c", "b d c"], "words")
    assert tokenizer.pieces(range(4, tokenizer.vocab_size)) == ["c", "b", "a", "d"]
    assert tokenizer.vocab_size == 8


def test_an_unknown_word_is_unk():
    tokenizer = train_symbols(["one two"], "words")
    ids = tokenizer.encode("one three two")
    assert ids[1] == UNK
    assert tokenizer.decode([BOS, *ids, EOS]) == "one <unk> two"


def test_symbols_saved_and_loaded(tmp_path):
    tokenizer = train_symbols(["ein Wort\u2028 über", 'quote " and \\'], "words")
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.pieces(range(loaded.vocab_size)) == tokenizer.pieces(range(tokenizer.vocab_size))


@pytest.mark.parametrize("name", ["missing.model", "noise.model", "noise.json"])
def test_no_tokenizer_file(name, tmp_path):
    (tmp_path / "noise.model").write_bytes(b"no model")
    (tmp_path / "noise.json").write_bytes(b"{}")
    with pytest.raises(BadInput, match=name):
        load_tokenizer(tmp_path / name)
