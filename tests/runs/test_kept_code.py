"""The addresses of custom code in a config. Recording, copying and finding the code: tests/test_code_digest.py."""

from tests.support.small_runs import experiment
from transformer_jax.runs.kept_code import addresses, with_addresses

CONFIG = experiment(train__loss="mine.py:loss", decode__metrics=("a.py:exact", "b.py:words"))


def test_every_address_is_found_with_its_option():
    assert sorted(addresses(CONFIG)) == [
        ("decode.metrics", "a.py:exact"),
        ("decode.metrics", "b.py:words"),
        ("train.loss", "mine.py:loss"),
    ]
    assert list(addresses(experiment())) == []


def test_addresses_are_changed_and_nothing_else():
    moved = with_addresses(CONFIG, lambda option, address: f"/code/{option.path}/{address}")
    assert moved.train.loss == "/code/train.loss/mine.py:loss"
    assert moved.decode.metrics == ("/code/decode.metrics/a.py:exact", "/code/decode.metrics/b.py:words")
    assert with_addresses(moved, lambda option, address: address.rpartition("/")[2]) == CONFIG
