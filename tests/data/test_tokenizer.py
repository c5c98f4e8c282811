"""Tokenizers: text comes back exactly, the same text gives the same tokenizer, special ids are where they should be."""

import dataclasses
import io
import json
import unicodedata
from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers, trainers

from tests.support.prepared_data import PAIRS, decoded, experiment
from transformer_jax.data.prepare import prepare
from transformer_jax.data.tokenizer import (
    BOS,
    EOS,
    LARGE_ALPHABET,
    PAD,
    SPECIAL_PIECES,
    UNK,
    SentencePieceTokenizer,
    SymbolKind,
    load_tokenizer,
    train_sentencepiece,
    train_symbols,
)
from transformer_jax.errors import BadInput

TEXTS = [
    f"the {adjective} {noun} {verb} {number} times, über ▁ {noun}"
    for adjective in ("small", "old", "green")
    for noun in ("tower", "garden", "engine", "Straße")
    for verb in ("waits", "turned", "sings")
    for number in range(10)
]
WORDS = ["vague zebra quick fjord"] * 40
both_kinds = pytest.mark.parametrize("kind", ["bpe", "unigram"])
any_text = st.text(alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \t;\n\r▁\u2028😀<>")))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def subwords(request):
    return train_sentencepiece(lambda: TEXTS, request.param, 300)


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
    assert subwords.decode(subwords.encode(text)) == text.replace("▁", " ")
    assert subwords.encode_batch([text, "the old tower"]) == [subwords.encode(text), subwords.encode("the old tower")]


def test_byte_fallback_leaves_nothing_unknown(subwords):
    assert UNK not in subwords.encode("Ω snowman ☃, 漢字")
    without = train_sentencepiece(lambda: TEXTS, "bpe", 100, byte_fallback=False)
    assert UNK in without.encode("Ω")


def test_the_same_text_gives_the_same_tokenizer_and_it_can_be_loaded(subwords, request, tmp_path):
    kind = request.node.callspec.params["subwords"]
    again = train_sentencepiece(lambda: TEXTS, kind, 300)
    assert again.fingerprint == subwords.fingerprint != train_sentencepiece(lambda: TEXTS, kind, 295).fingerprint
    again.save(tmp_path / "tokenizer.model")
    assert load_tokenizer(tmp_path / "tokenizer.model").fingerprint == subwords.fingerprint


def test_a_foreign_model_gets_our_special_ids():
    """A model as SentencePiece makes it by default: other special ids, no padding, no bytes, a normalising rule."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.Train(sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=40, minloglevel=2)
    tokenizer = SentencePieceTokenizer(model.getvalue())
    assert tokenizer.vocab_size == 41  # its 40 have <unk>, <s> and </s>; ours has <pad> too
    ids = tokenizer.encode("the old tower")
    assert min(ids) > UNK
    assert max(ids) < tokenizer.vocab_size
    assert tokenizer.decode([BOS, *ids, EOS, PAD]) == "the old tower"
    assert UNK in tokenizer.encode("☃")
    assert tokenizer.pieces([PAD, UNK]) == ["<pad>", "<unk>"]


# Training.


@pytest.mark.parametrize(("size", "possible"), [(10, "required_chars"), (100_000, "<= ")])
def test_an_impossible_size_names_the_possible_ones(size, possible, capfd):
    with pytest.raises(BadInput, match=possible):
        train_sentencepiece(lambda: TEXTS, "bpe", size, size_option="model.vocab_size")
    assert capfd.readouterr() == ("", "")  # SentencePiece itself prints nothing


def test_a_small_text_has_as_many_tokens_as_it_supports(tmp_path):
    """The same command finds the data again; another limit is another vocabulary."""
    config = experiment(tmp_path, vocab_size=8000, hard_vocab_limit=False)
    prepared = prepare(config, tmp_path / "data")
    assert 300 < prepared.vocab_size < 8000
    assert prepare(config, tmp_path / "data").fingerprint == prepared.fingerprint
    with pytest.raises(BadInput, match="hard_vocab_limit"):
        prepare(experiment(tmp_path, vocab_size=8000), tmp_path / "data")
    exact = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=prepared.vocab_size))
    assert prepare(exact, tmp_path / "other").fingerprint == prepared.fingerprint


@both_kinds
@pytest.mark.parametrize("line", ["漢字仮名" * 1500, "漢字仮名 \u2585 " * 3], ids=["long", "reserved character"])
def test_no_line_is_left_out_of_the_training(kind, line):
    """SentencePiece skips lines of more than 4,192 bytes, and those with a character that it reserves."""
    tokenizer = train_sentencepiece(lambda: [*WORDS, line], kind, 400, hard_vocab_limit=False)
    assert len(tokenizer.encode("漢字仮名")) <= 5


@both_kinds
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


# Symbols.


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(any_text, min_size=1, max_size=5), kind=st.sampled_from(get_args(SymbolKind)))
def test_symbols_of_the_text_come_back_exactly(texts, kind):
    tokenizer = train_symbols(texts, kind)
    if kind == "letters_and_tags":
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)] == texts


def test_ids_are_whole_numbers_of_the_vocabulary(subwords):
    for tokenizer in (subwords, train_symbols(["a b c"], "words")):
        ids = tokenizer.encode("a b")
        assert tokenizer.decode(jnp.array(ids)) == tokenizer.decode(np.array(ids)) == "a b"
        for wrong in (-1, -100, tokenizer.vocab_size):
            with pytest.raises(ValueError, match=f"must be between 0 and {tokenizer.vocab_size - 1}"):
                tokenizer.decode([*ids, wrong])
    with pytest.raises(ValueError, match="kind = 'character': must be one of words, characters"):
        train_symbols(["a b"], "character")


def test_letters_of_characters_that_training_lacks_are_known():
    tokenizer = train_symbols(["각 나\tN;PL", "né"], "letters_and_tags")
    assert tokenizer.pieces(tokenizer.encode("낙\tN;PL")) == ["\u1102", "\u1161", "\u11a8", "\tN", ";PL"]
    assert tokenizer.decode(tokenizer.encode("낙é")) == "낙é"
    tagged = train_symbols(["a\tGe\u0301"], "letters_and_tags")
    assert UNK not in tagged.encode("a\tG\u00e9")
    assert UNK in train_symbols(["각 나", "né"], "characters_and_tags").encode("낙")


def test_symbols_are_ordered_saved_and_loaded(tmp_path):
    """By frequency, then by the alphabet."""
    tokenizer = train_symbols(["b a c c", "b d c", 'Wort\u2028 " \\'], "words")
    assert tokenizer.pieces(range(4, 7)) == ["c", "b", '"']
    ids = tokenizer.encode("a three d")
    assert ids[1] == UNK and tokenizer.decode([BOS, *ids, EOS]) == "a <unk> d"
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.pieces(range(loaded.vocab_size)) == tokenizer.pieces(range(tokenizer.vocab_size))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.model", None),
        ("noise.model", "no model"),
        ("noise.json", "{}"),
        ("noise.json", '{"kind": "words"}'),
    ],
)
def test_no_tokenizer_file(tmp_path, name, content):
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=name):
        load_tokenizer(tmp_path / name)


# tokenizer.json files of Hugging Face's tokenizers.

SENTENCES = [text for pair in PAIRS for text in pair]
SPECIAL = ["<s>", "</s>", "<pad>", "[UNK]"]


def tokenizer_json(kind):
    """A tokenizer.json, as text, that was trained on the texts."""
    options = {"special_tokens": SPECIAL, "show_progress": False}
    if kind == "words":
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        made.train_from_iterator(SENTENCES, trainers.WordLevelTrainer(**options))
    else:
        made = tokenizers.Tokenizer(tokenizers.models.BPE(dropout=0.5))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet, **options))
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
        made.enable_truncation(3)
    return made.to_str()


def test_its_tokens_follow_our_special_ones_and_texts_come_back(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(tokenizer_json("bytes"))
    tokenizer = load_tokenizer(file)
    assert tokenizer.pieces(range(4)) == list(SPECIAL_PIECES)
    assert tokenizer.vocab_size == 350  # its four special tokens are replaced by ours
    texts = [*SENTENCES[:5], "  two  spaces ", "</s> is text here", "🦜 שלום"]
    ids = tokenizer.encode_batch(texts)
    assert min(min(each) for each in ids) >= len(SPECIAL_PIECES)
    assert [tokenizer.decode([1, *each, 2]) for each in ids] == texts
    assert tokenizer.encode_batch(texts) == ids  # without dropout
    prepared = prepare(experiment(tmp_path, tokenizer_file=str(file)), tmp_path / "data")
    assert prepared.tokenizer_files["source"].read_text() == file.read_text()
    assert set(decoded(prepared, "train")) <= set(PAIRS)


def test_what_it_does_not_know_is_our_unknown_token(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json("words"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    tower, unknown, eos = tokenizer.encode("tower zebra </s>")
    assert (tokenizer.pieces([tower]), unknown, eos) == (["tower"], UNK, UNK)
    assert tokenizer.decode([tower, unknown]) == "tower [UNK]"
    stored = json.loads(tokenizer_json("words")) | {"added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    assert load_tokenizer(tmp_path / "tokenizer.json").encode("zebra") == [UNK]


@pytest.mark.parametrize("clean_text", [False, True])
def test_a_normalizer_that_removes_private_characters_loses_no_text(tmp_path, clean_text):
    made = tokenizers.Tokenizer.from_str(tokenizer_json("words"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(clean_text=clean_text)
    made.save(str(tmp_path / "tokenizer.json"))
    tower, unknown = load_tokenizer(tmp_path / "tokenizer.json").encode("TOWER Zebra")
    assert tower > UNK == unknown


@pytest.mark.parametrize("stored", [{"kind": "words", "symbols": [1, 2]}, {"kind": "words", "symbols": [["a"], None]}])
def test_symbols_that_are_no_texts_are_named(tmp_path, stored):
    (tmp_path / "mine.json").write_text(json.dumps(stored))
    with pytest.raises(BadInput, match=r"mine\.json"):
        load_tokenizer(tmp_path / "mine.json")


@pytest.mark.parametrize("model", [{"type": "NoSuch"}, {"type": "BPE", "vocab": {"a": 0}, "merges": []}])
def test_a_file_that_would_lose_text_is_refused(tmp_path, model):
    stored = json.loads(tokenizer_json("words")) | {"pre_tokenizer": None, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    with pytest.raises(BadInput, match=r"tokenizer\.json: "):
        load_tokenizer(tmp_path / "tokenizer.json")
