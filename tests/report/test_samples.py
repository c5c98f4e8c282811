"""Sentences of the test set with every variant's translations."""

import shutil

import pytest

from tests.support.finished_sweeps import VARIANTS
from transformer_jax.report.results import load_sweep
from transformer_jax.report.samples import samples


@pytest.fixture(scope="module")
def shown(whole):
    return samples(whole.content.sweep, "test")


def test_no_samples_without_the_texts(sweep, shown):
    assert len(shown) >= 2
    shutil.rmtree(sweep / "data")
    assert samples(load_sweep(sweep), "test") == []


def test_samples_are_of_the_evaluated_sentences(sweep):
    """Not of other sentences in their place, after the data was prepared again."""
    (texts,) = sweep.glob("data/*/test.texts.jsonl")
    texts.write_text(texts.read_text().replace("Hund", "Hut"))
    assert samples(load_sweep(sweep), "test") == []


def test_each_sentence_has_the_translation_of_every_variant(shown):
    for sample in shown:
        names = [name for variants in sample.translations.values() for name in variants]
        assert sorted(names) == sorted(variant["name"] for variant in VARIANTS)
