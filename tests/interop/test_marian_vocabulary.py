"""Tokenizer files that are damaged, or of another model, are refused."""

import json

import pytest

from tests.support.marian_folders import bytes_with, json_with, refused, unpacked, without
from transformer_jax import from_marian
from transformer_jax.errors import BadInput


def other_tokens(folder):
    """As many tokens, but none that this folder's SentencePiece yields."""
    tokens = json.loads((folder / "vocab.json").read_text())
    renamed = {name if name[0] == "<" else f"zz{number}": number for name, number in tokens.items()}
    (folder / "vocab.json").write_text(json.dumps(renamed))


def tokens_with(change):
    def damage(folder):
        tokens = json.loads((folder / "vocab.json").read_text())
        change(tokens)
        (folder / "vocab.json").write_text(json.dumps(tokens))

    return damage


DAMAGES = {
    "another model's tokens": (other_tokens, "source.spm: only 0%"),
    "a token too few": (
        tokens_with(lambda t: t.pop(next(reversed(t)))),
        "has 109 tokens, and config.json 110",
    ),
    "a number twice": (
        tokens_with(lambda t: t.update({next(iter(t)): 5})),
        "has the number 5; must be 0 to 109, each",
    ),
    "not a number": (
        tokens_with(lambda t: t.update({"<unk>": True})),
        "'<unk>' has the number True; must be 0 to",
    ),
    "half a character": (
        tokens_with(lambda t: t.update({"\ud800": t.pop(next(name for name in t if name[0] != "<"))})),
        "is not valid text",
    ),
    "padding elsewhere": (
        tokens_with(lambda t: t.update({"<pad>": t["</s>"], "</s>": t["<pad>"]})),
        "<pad> has 0, but 109 in config.json",
    ),
    "no SentencePiece model": (
        bytes_with("source.spm", lambda b: b"spam" * 99),
        "source.spm: is not a SentencePiece model",
    ),
    "an empty SentencePiece model": (
        bytes_with("source.spm", lambda b: b""),
        "source.spm: is not a SentencePiece model",
    ),
    "two vocabularies in one table": (
        json_with("tokenizer_config.json", separate_vocabs=True),
        "separate_vocabs = true, but in config.json source",
    ),
    "another end": (json_with("tokenizer_config.json", eos_token="<eos>"), 'eos_token = "<eos>": is not supported'),
    "no vocabulary": (without("vocab.json"), "vocab.json: there is no such file"),
    "no SentencePiece": (without("target.spm"), "target.spm: there is no such file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_vocabulary_that_cannot_be_right_is_refused(damage, tmp_path):
    spoil, message = DAMAGES[damage]
    refused(spoil, message, tmp_path)


def test_a_file_too_large_to_be_meant_is_not_read(tmp_path):
    folder = unpacked("shared", tmp_path / "folder")
    with open(folder / "vocab.json", "wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(BadInput, match=r"vocab.json: has 1,099,511,627,776 bytes; must be at most"):
        from_marian(folder)
