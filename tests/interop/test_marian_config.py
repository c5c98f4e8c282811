"""Fields of config.json and generation_config.json that are invalid or not supported are refused by name."""

import json
from pathlib import Path

import pytest

from tests.support.marian_folders import CONFIG, SEARCH, bytes_with, change_json, json_with, refused, unpacked
from transformer_jax.interop.marian import read_marian_model
from transformer_jax.interop.marian_config import Fields, read_config

# What is wrong with config.json, and a word of the message.
OF_CONFIG = {
    "model_type": "bart",
    "normalize_before": True,
    "normalize_embedding": True,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "encoder_layerdrop": 0.1,
    "decoder_start_token_id": 0,
    "d_model": "16",
    "vocab_size": 10**12,
    "tie_word_embeddings": False,
    "dropout": 1.5,
}
OF_SEARCH = {
    "do_sample": True,
    "early_stopping": True,
    "bad_words_ids": [[7]],
    "no_repeat_ngram_size": 3,
    "dola_layers": "high",
}


@pytest.mark.parametrize(("name", "value"), OF_CONFIG.items())
def test_a_config_that_is_not_supported_is_refused(name, value, tmp_path):
    refused(json_with(CONFIG, **{name: value}), name, tmp_path)


@pytest.mark.parametrize(("name", "value"), OF_SEARCH.items())
def test_a_search_that_is_not_supported_is_refused(name, value, tmp_path):
    refused(json_with(SEARCH, **{name: value}), f"{SEARCH}: {name} = ", tmp_path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (bytes_with(CONFIG, lambda content: content[:-10]), "is not JSON"),
        (json_with(CONFIG, encoder_attention_heads=3, decoder_attention_heads=3), "do not divide"),
        (json_with(CONFIG, d_model=...), "d_model"),
        (json_with(CONFIG, activation_function="tanh"), "activation = 'tanh'"),
        (json_with(CONFIG, encoder_layers=10**9), "num_encoder_layers"),
        (json_with(SEARCH, num_beams=0), "beam = 0"),
    ],
    ids=["no JSON", "heads", "no width", "activation", "a billion layers", "no beams"],
)
def test_a_config_that_cannot_be_right_is_refused(spoil, message, tmp_path):
    refused(spoil, message, tmp_path)


def test_null_is_missing_and_a_number_may_be_written_as_an_integer_or_not():
    fields = Fields(Path("config.json"), {"a": 1, "b": None, "c": 1.0, "d": "x"})
    assert [fields.number("a"), fields.number("b", 9)] == [1, 9]
    fields.check({"a": 1.0, "b": 3, "c": 1})


def test_null_means_the_default_also_where_that_is_not_zero(tmp_path):
    folder = unpacked("shared", tmp_path)
    change_json(folder / CONFIG, tie_word_embeddings=None, share_encoder_decoder_embeddings=None, dropout=None)
    assert read_config(folder).model.tie_embeddings == "all" and read_config(folder).model.dropout == 0.1


def test_whole_numbers_may_be_written_with_a_point(tmp_path):
    folder = unpacked("shared", tmp_path)
    before = read_marian_model(folder)
    numbers = json.loads((folder / CONFIG).read_text())
    names = ("vocab_size", "max_position_embeddings", "pad_token_id", "eos_token_id", "d_model")
    change_json(folder / CONFIG, **{name: float(numbers[name]) for name in names})
    assert read_marian_model(folder).config == before.config
    refused(json_with(CONFIG, vocab_size=110.5), "vocab_size = 110.5: must be a whole number", tmp_path / "half")
