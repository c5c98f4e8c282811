"""tokenizer.json files of Hugging Face's tokenizers."""

import json
import sys

import pytest
import tokenizers
from tokenizers import decoders, pre_tokenizers, trainers

from tests.support.prepared_data import PAIRS, decoded, experiment
from transformer_jax.data.prepare import prepare
from transformer_jax.data.tokenizer import SPECIAL_PIECES, UNK, load_tokenizer
from transformer_jax.errors import BadInput

TEXTS = [text for pair in PAIRS for text in pair]
SPECIAL = ["<s>", "</s>", "<pad>", "[UNK]"]


def trained(kind):
    """A tokenizer.json, as text, that was trained on the texts."""
    options = {"special_tokens": SPECIAL, "show_progress": False}
    if kind == "words":
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        made.train_from_iterator(TEXTS, trainers.WordLevelTrainer(**options))
    else:
        made = tokenizers.Tokenizer(tokenizers.models.BPE(dropout=0.5))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet, **options))
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
        made.enable_truncation(3)
    return made.to_str()


def test_its_tokens_follow_our_special_ones_and_texts_come_back(tmp_path):
    (tmp_path / "tokenizer.json").write_text(trained("bytes"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.pieces(range(4)) == list(SPECIAL_PIECES)
    assert tokenizer.vocab_size == 350  # its four special tokens are replaced by ours
    texts = [*TEXTS[:5], "  two  spaces ", "</s> is text here", "🦜 שלום"]
    ids = tokenizer.encode_batch(texts)
    assert min(min(each) for each in ids) >= len(SPECIAL_PIECES)
    assert [tokenizer.decode([1, *each, 2]) for each in ids] == texts
    assert tokenizer.encode_batch(texts) == ids  # without dropout


def test_what_it_does_not_know_is_our_unknown_token(tmp_path):
    (tmp_path / "tokenizer.json").write_text(trained("words"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    tower, unknown, eos = tokenizer.encode("tower zebra </s>")
    assert (tokenizer.pieces([tower]), unknown, eos) == (["tower"], UNK, UNK)
    assert tokenizer.decode([tower, unknown]) == "tower [UNK]"
    stored = json.loads(trained("words")) | {"added_tokens": []}  # its token for them is not marked as a special one
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    assert load_tokenizer(tmp_path / "tokenizer.json").encode("zebra") == [UNK]


def test_data_is_prepared_with_it_and_knows_the_file(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(trained("bytes"))
    config = experiment(tmp_path, tokenizer_file=str(file))
    prepared = prepare(config, tmp_path / "data")
    assert prepared.tokenizer_files["source"].read_text() == file.read_text()
    assert set(decoded(prepared, "train")) <= set(PAIRS)
    file.write_text(trained("words"))
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
    stored = json.loads(trained("words")) | {"pre_tokenizer": None} | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    with pytest.raises(BadInput, match=r"tokenizer\.json: " + message):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_without_the_package_the_error_names_the_command(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BadInput, match=r"pip install 'transformer_jax\[tokenizers\]'"):
        load_tokenizer(tmp_path / "tokenizer.json")
