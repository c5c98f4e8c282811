"""The embedded corpora: reproducible, disjoint, of the size asked for, and plain about bad arguments."""

from __future__ import annotations

import hashlib

import pytest

from transformer_jax.config import TASKS
from transformer_jax.data.corpora import tasks
from transformer_jax.data.corpora.tasks import generate, splits, symbols
from transformer_jax.errors import BadInput

SMALL = {"train": 150, "valid": 40, "test": 40, "test_long": 5, "test_compositional": 15}


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_disjoint_whatever_the_seed(task: str) -> None:
    sources = {split: set[str]() for split in splits(task)}
    for split in splits(task):
        for seed in (0, 1):
            pairs = generate(task, split, size=SMALL[split], seed=seed)
            found = {source for source, _ in pairs}
            assert len(pairs) == len(found) == SMALL[split]
            sources[split] |= found
    assert sum(map(len, sources.values())) == len(set().union(*sources.values()))


@pytest.mark.parametrize("task", TASKS)
def test_size_extends_and_seed_changes(task: str) -> None:
    pairs = generate(task, "train", size=300, seed=3)
    assert generate(task, "train", size=100, seed=3) == pairs[:100]
    assert generate(task, "train", size=300, seed=4) != pairs


# The same on every platform: sizes 50, seed 0.
DIGESTS = {
    ("copy", "train"): "267bbaefd43a1a66",
    ("reverse", "valid"): "ddbabe30ea050c76",
    ("sort", "test"): "5c05c09b10078d02",
    ("grammar", "train"): "167ce3f1ab4a6e53",
    ("grammar", "valid"): "20bd0d6c7f2f8622",
    ("grammar", "test"): "c3bcce4e77c3619e",
    ("grammar", "test_long"): "c6d9eafece23cc2c",
    ("grammar", "test_compositional"): "38b230c71d9a89e1",
}


@pytest.mark.parametrize(("task", "split"), DIGESTS)
def test_corpora_never_change(task: str, split: str) -> None:
    assert _digest(task, split) == DIGESTS[task, split]


def _digest(task: str, split: str) -> str:
    text = "\n".join(f"{source}\t{target}" for source, target in generate(task, split, size=50, seed=0))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def test_toy_tasks_do_what_their_names_say() -> None:
    for task, expected in (("copy", list), ("reverse", lambda tokens: tokens[::-1]), ("sort", sorted)):
        for source, target in generate(task, "test", size=50, alphabet=7, min_length=2, max_length=9):
            tokens = source.split()
            assert 2 <= len(tokens) <= 9 and set(tokens) <= set("abcdefg")
            assert target.split() == list(expected(tokens))


def test_sort_orders_symbols_of_several_letters_by_their_place_in_the_alphabet() -> None:
    assert symbols(29)[25:] == ["z", "aa", "ab", "ac"]
    order = {symbol: index for index, symbol in enumerate(symbols(60))}
    for source, target in generate("sort", "train", size=100, alphabet=60):
        assert target.split() == sorted(source.split(), key=order.__getitem__)


@pytest.mark.parametrize(
    ("task", "split", "options", "message"),
    [
        ("copy", "train", {"alphabet": 0}, "alphabet = 0"),
        ("copy", "train", {"size": 1000, "alphabet": 10, "min_length": 1, "max_length": 3}, "[0-9]{3} distinct"),
    ],
)
def test_bad_arguments(task: str, split: str, options: dict[str, int], message: str, monkeypatch) -> None:
    monkeypatch.setattr(tasks, "_PATIENCE", 2_000)
    with pytest.raises(BadInput, match=message):
        generate(task, split, **{"size": 5, **options})
