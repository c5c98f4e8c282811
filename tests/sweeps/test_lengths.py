"""The lengths of sentences before and after the data is prepared."""

import dataclasses

import numpy as np
import pytest

from tests.support.sweep_runs import defined
from transformer_jax.data.prepare import prepare
from transformer_jax.sweeps.lengths import HELD_OUT, lengths_of
from transformer_jax.sweeps.spec import LENGTH


@pytest.fixture(scope="module")
def config():
    return defined(overrides=[("data.task.train_size", "4000")]).experiments["base"]


def test_a_sample_is_as_long_as_the_prepared_data(config, tmp_path):
    sampled = lengths_of(config, tmp_path / "data", ["test"])
    prepared = prepare(config, tmp_path / "data")
    exact = lengths_of(config, tmp_path / "data", ["test"])
    assert (sampled.source, exact.source, exact.preparation) == ("sampled", "prepared", 0.0)
    assert sampled.preparation > 0
    assert sampled.config == exact.config, "the vocabulary of words is that of the data"
    for split in prepared.splits:
        assert len(sampled.splits[split]) == len(exact.splits[split])
        for side in ("source_lengths", "target_lengths"):
            found, expected = (getattr(lengths.splits[split], side) for lengths in (sampled, exact))
            assert found.mean() == pytest.approx(expected.mean(), rel=0.05)
    tokens = sampled.splits["train"].source_tokens
    assert tokens.min() > 2 and tokens.max() < sampled.config.model.vocab_size, "no special tokens"


def test_a_tenth_of_a_small_text_is_held_out(config, tmp_path):
    for name in ("text.en", "text.de"):
        (tmp_path / name).write_text("".join(f"{number} small dogs\n" for number in range(60)))
    data = dataclasses.replace(
        config.data, corpus="", source=(str(tmp_path / "text.en"),), target=(str(tmp_path / "text.de"),)
    )
    sampled = lengths_of(dataclasses.replace(config, data=data), tmp_path / "data", ["test"])
    prepared = prepare(dataclasses.replace(config, data=data), tmp_path / "data")
    held_out = {split: len(prepared.pairs(split)) for split in ("valid", "test")}
    assert {split: len(sampled.splits[split]) for split in held_out} == held_out == {"valid": 6, "test": 6}


def test_text_that_is_not_there(config, tmp_path):
    data = dataclasses.replace(config.data, corpus="", source=("none.en",), target=("none.de",))
    assumed = lengths_of(dataclasses.replace(config, data=data), tmp_path, ["test"])
    assert assumed.source == "assumed" and assumed.preparation is None
    assert len(assumed.splits["test"]) == HELD_OUT
    assert np.all(assumed.splits["train"].target_lengths + 1 == LENGTH)
