"""Fields of config.json and generation_config.json that are unknown, invalid or not supported are refused by name."""

import pytest

from tests.support.marian_folders import CONFIG, SEARCH, bytes_with, json_with, refused

DAMAGES = {
    "bad JSON": (bytes_with(CONFIG, lambda b: b[:-10]), "is not JSON"),
    "JSON of something else": (bytes_with(CONFIG, lambda b: b"[1, 2]"), "is a JSON list; must be an object"),
    "JSON without an end": (bytes_with(CONFIG, lambda b: b"[" * 200_000), "config.json: is not JSON: it is nested too"),
    "a name twice": (
        bytes_with(CONFIG, lambda b: b'{"d_model": 512,' + b[1:]),
        "config.json: is not JSON: 'd_model' is there twice",
    ),
    "another model": (json_with(CONFIG, model_type="bart"), "model_type = 'bart': is not a Marian model"),
    "an unknown field": (
        json_with(CONFIG, rotary_dim=8),
        "rotary_dim = 8: is an unknown field, which may change the model",
    ),
    "a norm elsewhere": (
        json_with(CONFIG, normalize_before=True),
        "normalize_before = true: is not supported; false is",
    ),
    "a norm of embeddings": (
        json_with(CONFIG, normalize_embedding=True),
        "normalize_embedding = true: is not supported",
    ),
    "an activation": (json_with(CONFIG, activation_function="tanh"), 'activation_function = "tanh": is not supported'),
    "two numbers of heads": (json_with(CONFIG, decoder_attention_heads=4), "decoder_attention_heads = 4: is not"),
    "two widths": (json_with(CONFIG, decoder_ffn_dim=48), "decoder_ffn_dim = 48: is not supported; 24 is"),
    "layers left out": (json_with(CONFIG, encoder_layerdrop=0.1), "encoder_layerdrop = 0.1: is not supported; 0 is"),
    "heads that do not fit": (
        json_with(CONFIG, encoder_attention_heads=3, decoder_attention_heads=3),
        "num_heads = 3 does not divide d_model",
    ),
    "another beginning": (json_with(CONFIG, decoder_start_token_id=0), "decoder_start_token_id = 0: is not supported"),
    "no width": (json_with(CONFIG, d_model=...), "config.json: has no d_model"),
    "a width of the wrong type": (json_with(CONFIG, d_model="16"), 'd_model = "16": must be int'),
    "a billion layers": (
        json_with(CONFIG, encoder_layers=10**9),
        "encoder_layers = 1000000000: must be at least 1 and",
    ),
    "a huge vocabulary": (
        json_with(CONFIG, vocab_size=10**12),
        "vocab_size = 1000000000000: must be at least 1 and at",
    ),
    "untied but shared": (json_with(CONFIG, tie_word_embeddings=False), "tie_word_embeddings = false: with shared"),
    "another dropout": (json_with(CONFIG, dropout=1.5), "dropout = 1.5: must be at least 0 and below 1"),
    "sampling": (json_with(SEARCH, do_sample=True), "generation_config.json: do_sample = true: is not supported"),
    "early stopping": (json_with(SEARCH, early_stopping=True), "early_stopping = true: is not supported; false or"),
    "bad words": (json_with(SEARCH, bad_words_ids=[[7]]), "bad_words_ids = [[7]]: is not supported; [[109]] is"),
    "no repetition": (json_with(SEARCH, no_repeat_ngram_size=3), "no_repeat_ngram_size = 3: is not supported; 0 is"),
    "a search to come": (json_with(SEARCH, dola_layers="high"), 'dola_layers = "high": is an unknown field'),
    "no beams": (json_with(SEARCH, num_beams=0), "generation_config.json: beam = 0: must be at least 1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_config_that_cannot_be_right_is_refused(damage, tmp_path):
    spoil, message = DAMAGES[damage]
    refused(spoil, message, tmp_path)
