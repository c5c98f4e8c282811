"""Tokenizer files that are damaged, or of another model, are refused."""

import json

import pytest

from tests.support.marian_folders import bytes_with, json_with, refused, without


def tokens_with(change):
    def damage(content):
        tokens = json.loads(content)
        return json.dumps(change(tokens) or tokens).encode()

    return bytes_with("vocab.json", damage)


NUMBERS = "must number 110 tokens from 0, each once"
DAMAGES = {
    "a token too few": (tokens_with(lambda tokens: tokens.pop(next(reversed(tokens))) and None), NUMBERS),
    "not a number": (tokens_with(lambda tokens: tokens.update({"<unk>": []})), "<unk> is []; must be of type int"),
    "no length": (json_with("tokenizer_config.json", model_max_length=float("nan")), "model_max_length = NaN"),
    "padding elsewhere": (
        tokens_with(lambda tokens: tokens.update({"<pad>": tokens["</s>"], "</s>": tokens["<pad>"]})),
        "<pad> has the number 0, and 109 in config.json",
    ),
    "no SentencePiece model": (
        bytes_with("source.spm", lambda content: b"spam" * 99),
        "source.spm: is not a SentencePiece model",
    ),
    "two vocabularies in one table": (json_with("tokenizer_config.json", separate_vocabs=True), "separate_vocabs"),
    "no vocabulary": (without("vocab.json"), "vocab.json: there is no such file"),
    "no SentencePiece": (without("target.spm"), "target.spm: there is no such file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_vocabulary_that_cannot_be_right_is_refused(damage, tmp_path):
    spoil, message = DAMAGES[damage]
    refused(spoil, message, tmp_path)
