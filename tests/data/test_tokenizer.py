"""Tokenizers: text comes back exactly, the same text gives the same tokenizer, special ids are where they should be."""

import io
import json
import re
import sys
import unicodedata
from typing import get_args

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
    (tmp_path / "tokenizer.json").write_text(tokenizer_json("bytes"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.pieces(range(4)) == list(SPECIAL_PIECES)
    assert tokenizer.vocab_size == 350  # its four special tokens are replaced by ours
    texts = [*SENTENCES[:5], "  two  spaces ", "</s> is text here", "🦜 שלום"]
    ids = tokenizer.encode_batch(texts)
    assert min(min(each) for each in ids) >= len(SPECIAL_PIECES)
    assert [tokenizer.decode([1, *each, 2]) for each in ids] == texts
    assert tokenizer.encode_batch(texts) == ids  # without dropout


def test_what_it_does_not_know_is_our_unknown_token(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json("words"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    tower, unknown, eos = tokenizer.encode("tower zebra </s>")
    assert (tokenizer.pieces([tower]), unknown, eos) == (["tower"], UNK, UNK)
    assert tokenizer.decode([tower, unknown]) == "tower [UNK]"
    stored = json.loads(tokenizer_json("words")) | {"added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    assert load_tokenizer(tmp_path / "tokenizer.json").encode("zebra") == [UNK]


def test_data_is_prepared_with_it_and_knows_the_file(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(tokenizer_json("bytes"))
    config = experiment(tmp_path, tokenizer_file=str(file))
    prepared = prepare(config, tmp_path / "data")
    assert prepared.tokenizer_files["source"].read_text() == file.read_text()
    assert set(decoded(prepared, "train")) <= set(PAIRS)
    file.write_text(tokenizer_json("words"))
    with pytest.raises(BadInput, match=r"data\.tokenizer_file was \w+ and is now \w+"):
        prepare(config, tmp_path / "data")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "NoSuch"}}, "is not a tokenizer.json that tokenizers can read"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}},
            "drops characters that it does not know: it needs",
        ),
        (
            {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}},
            "cannot encode a character that it does",
        ),
        (
            {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []},
            "has no tokens besides special ones",
        ),
    ],
)
def test_a_file_that_would_lose_text_is_refused(tmp_path, change, message):
    stored = json.loads(tokenizer_json("words")) | {"pre_tokenizer": None} | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    with pytest.raises(BadInput, match=r"tokenizer\.json: " + message):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_without_the_package_the_error_names_the_command(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BadInput, match=r"pip install 'transformer_jax\[tokenizers\]'"):
        load_tokenizer(tmp_path / "tokenizer.json")
