"""The tokenizer of a corpus, and the sizes that its text supports."""

import dataclasses
import re

import pytest

from tests.support.prepared_data import PAIRS, experiment, write_text
from transformer_jax import schema
from transformer_jax.data.prepare import prepare
from transformer_jax.data.tokenizer import UnsupportedSize, train_sentencepiece
from transformer_jax.data.vocabulary import evenly_spread, learned_often, size_problems
from transformer_jax.errors import BadInput


def of_size(config, size):
    return dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=size))


def test_a_vocabulary_that_may_adapt_has_a_size_that_the_text_supports(tmp_path, capsys):
    config = experiment(tmp_path, vocab_size=8000, adapt=("model.vocab_size",))
    prepared = prepare(config, tmp_path / "data")
    assert 300 < prepared.vocab_size < 1000
    said = re.search(
        rf"model\.vocab_size = {prepared.vocab_size} instead of 8000: the (\d+) that the training text needs, and "
        r"those that occur at least 10 times in it; it supports at most (\d+)\n",
        capsys.readouterr().err,
    )
    assert int(said[1]) < prepared.vocab_size <= int(said[2])
    for again in (config, of_size(experiment(tmp_path), prepared.vocab_size)):  # the same command, or its result
        assert prepare(again, tmp_path / "data").fingerprint == prepared.fingerprint
    changed = rf"model\.vocab_size was {prepared.vocab_size} and is now 8000"
    with pytest.raises(BadInput, match=changed):
        prepare(experiment(tmp_path, vocab_size=8000), tmp_path / "data")


def test_sizes_that_were_set_are_checked_on_the_text_alone(tmp_path):
    config = schema.to_dict(experiment(tmp_path, vocab_size=8000, target_vocab_size=9000))
    assert [problem.partition(":")[0] for problem in size_problems(config)] == [
        "model.vocab_size = 8000",
        "model.target_vocab_size = 9000",
    ]
    config["data"]["adapt"] = ("model.vocab_size",)
    assert len(size_problems(config)) == 1
    config["data"]["tokenizer"] = "words"
    assert size_problems(config) == []
    assert size_problems({"data": {"source": ["no such file"]}}) == []  # reported elsewhere


def test_what_the_text_supports_is_what_prepare_accepts(tmp_path):
    [problem] = size_problems(schema.to_dict(experiment(tmp_path, PAIRS, vocab_size=8000)))
    most = int(problem.partition(" and ")[2].partition(";")[0])
    assert prepare(experiment(tmp_path, PAIRS, vocab_size=most), tmp_path / "data").vocab_size == most


def test_frequent_words_are_tokens_of_a_vocabulary_that_adapts_and_rare_ones_are_spelled():
    texts = ["vague zebra"] * 7 + ["vague zebra quick fjord"] * 3
    with pytest.raises(UnsupportedSize) as refused:
        train_sentencepiece(texts.__iter__, "bpe", 8000)
    least, most = refused.value.least, refused.value.most
    often = learned_often(train_sentencepiece(texts.__iter__, "bpe", most), texts)
    tokenizer = train_sentencepiece(texts.__iter__, "bpe", least + often)
    assert [len(tokenizer.encode(word)) for word in ("vague", "zebra", "quick", "fjord")] == [1, 1, 6, 6]


def test_evenly_spread():
    assert list(evenly_spread("abcdefghij", 10, 100)) == list("abcdefghij")
    for wanted in range(1, 10):
        assert len(list(evenly_spread("abcdefghij", 10, wanted))) == wanted


def test_the_text_of_all_files_counts(tmp_path):
    whole = experiment(tmp_path, vocab_size=500)
    few = write_text(tmp_path, "few", PAIRS[:12])
    first, both = (
        dataclasses.replace(whole.data, source=(few[0], *more[0]), target=(few[1], *more[1]))
        for more in (((), ()), (whole.data.source, whole.data.target))
    )
    assert size_problems(schema.to_dict(dataclasses.replace(whole, data=first)))
    assert size_problems(schema.to_dict(dataclasses.replace(whole, data=both))) == []
