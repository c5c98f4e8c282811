"""The options of the data: contradictions, and options that have an effect only beside others."""

import pytest

from transformer_jax.config import from_config_dict, unused_options
from transformer_jax.data.corpora import open_corpus
from transformer_jax.data_config import NAMED, DataConfig, TaskConfig
from transformer_jax.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": "copy", "source": ("a.en",)}, "corpus = copy and source = a.en"),
        ({"source": ("a", "b"), "target": ("c",)}, "source = a, b and target = c: "),
        ({"target_tokenizer_file": "x.model"}, "target_tokenizer_file = x.model and tokenizer_file = none"),
    ],
)
def test_contradictions_name_both_values(changes, message):
    with pytest.raises(ConfigError) as error:
        DataConfig(**changes)
    assert message in str(error.value)


def test_the_shortest_sequence_is_not_longer_than_the_longest():
    with pytest.raises(ConfigError, match="min_length = 9 and max_length = 8"):
        TaskConfig(min_length=9, max_length=8)


@pytest.mark.parametrize(
    ("data", "typed", "needs"),
    [
        ({"corpus": "grammar"}, "data.task.alphabet", "data.corpus = copy, reverse or sort"),
        ({"source": ["a.tsv"]}, "data.task.seed", "data.corpus = copy, reverse, sort or grammar"),
        ({"source": ["a.tsv"]}, "data.tfds_data_dir", "the name of a TFDS data set as data.corpus"),
        ({"corpus": "copy"}, "data.valid_size", "a corpus without validation data"),
        ({"source": ["a.tsv"], "test_source": ["b.tsv"]}, "data.test_size", "a corpus without test data"),
        ({"corpus": "scan"}, "data.task.cutoff", "data.corpus = scan and data.task.split = length"),
        ({"corpus": "cogs"}, "data.valid_size", "a corpus without validation data"),
        ({"corpus": "copy", "corpus_folder": "x"}, "data.corpus_folder", "data.corpus = cogs or inflection"),
        ({"tokenizer": "words"}, "data.byte_fallback", "a tokenizer that is trained"),
        ({"tokenizer_file": "x.model"}, "data.tokenizer", "data.tokenizer_file = none"),
    ],
)
def test_an_option_without_effect_is_refused_with_what_it_needs(data, typed, needs):
    config = from_config_dict({"data": {**({"tfds_data_dir": "/x"} if "tfds" in typed else {}), **data}})
    (message,) = unused_options([typed], [config])
    assert message.startswith(f"--config.{typed}: has no effect here: it needs ") and needs in message


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"corpus": "copy"}, "copy"),
        ({"corpus": "scan"}, "scan simple"),
        ({"corpus": "scan", "task": {"split": "length", "cutoff": 26}}, "scan length 26"),
        ({"corpus": "inflection", "task": {"language": "kor"}}, "inflection kor_large"),
    ],
)
def test_the_name_of_a_corpus_tells_which_part_of_it_is_used(data, name):
    assert from_config_dict({"data": data}).data.corpus_name == name


def test_an_option_with_effect_is_not_refused():
    config = from_config_dict({"data": {"corpus": "copy", "task": {"valid_size": 0}}})
    assert unused_options(["data.task.alphabet", "data.valid_size", "data.byte_fallback"], [config]) == []
    config = from_config_dict({"data": {"corpus": "scan", "task": {"split": "length"}}})
    assert unused_options(["data.task.cutoff", "data.valid_size", "data.seed"], [config]) == []


@pytest.mark.parametrize("name", NAMED)
def test_every_named_corpus_is_read_by_its_class_and_has_its_splits(name):
    corpus = open_corpus(DataConfig(corpus=name, corpus_folder="x"))
    assert {*corpus.splits} - {"train", "test_gen"} == {*NAMED[name].splits}
