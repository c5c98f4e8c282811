"""Embedded corpora, made from rules and without a download: `copy`, `reverse`, `sort`, and the `grammar`.

A corpus is a list of (source, target) pairs of tokens separated by single spaces. It depends on the task, the split,
the seed and the options alone, on any platform and Python version, and a larger size extends a smaller one.

Splits are disjoint by construction: a digest of its source alone decides whether a sentence may stand in `train`,
`valid` or `test`, so no size and no seed can bring it into two of them. The two further splits of the grammar differ
from these in form: `test_long` in length, `test_compositional` in the word and construction pairs it contains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice

from transformer_jax.errors import BadInput
from transformer_jax.grammar import Section, sentence_pairs
from transformer_jax.grammar.dice import Dice

Pair = tuple[str, str]

TOY_TASKS = ("copy", "reverse", "sort")
TASKS = (*TOY_TASKS, "grammar")
DEFAULT_SIZES = {"train": 50_000, "valid": 1_000, "test": 1_000, "test_long": 1_000, "test_compositional": 1_000}
DEFAULT_ALPHABET, DEFAULT_MIN_LENGTH, DEFAULT_MAX_LENGTH = 26, 4, 16

_COMMON_SPLITS = ("train", "valid", "test")
_SPECIAL_SPLITS = {"test_long": Section.LONG, "test_compositional": Section.COMPOSITIONAL}
# Sentences in a row that bring nothing new before the corpus counts as exhausted.
_PATIENCE = 100_000


def splits(task: str) -> tuple[str, ...]:
    """The names of the splits a task has."""
    if task not in TASKS:
        raise BadInput(f"unknown task {task!r}: it is one of {', '.join(TASKS)}")
    return (*_COMMON_SPLITS, *_SPECIAL_SPLITS) if task == "grammar" else _COMMON_SPLITS


def generate(
    task: str,
    split: str,
    *,
    size: int | None = None,
    seed: int = 0,
    alphabet: int | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
) -> list[Pair]:
    """`size` pairs with distinct sources. The last three options belong to the toy tasks alone; None is the default."""
    if split not in splits(task):
        raise BadInput(f"task {task} has no split {split!r}: it is one of {', '.join(splits(task))}")
    if size is None:
        size = DEFAULT_SIZES[split]
    if size < 1:
        raise BadInput(f"size = {size} of task {task}: at least 1 pair is needed")
    seed_text = f"{task}/{split}/{seed}"
    if task == "grammar":
        given = {"alphabet": alphabet, "min_length": min_length, "max_length": max_length}
        for name, value in given.items():
            if value is not None:
                raise BadInput(f"{name} = {value}: task grammar has no such option, only {', '.join(TOY_TASKS)} do")
        stream = sentence_pairs(_SPECIAL_SPLITS.get(split, Section.COMMON), seed_text)
    else:
        alphabet = DEFAULT_ALPHABET if alphabet is None else alphabet
        min_length = DEFAULT_MIN_LENGTH if min_length is None else min_length
        max_length = DEFAULT_MAX_LENGTH if max_length is None else max_length
        _check_toy_options(task, size, alphabet, min_length, max_length)
        stream = _toy_pairs(task, seed_text, alphabet, min_length, max_length)
    pairs = list(islice(_distinct(stream, split), size))
    if len(pairs) < size:
        hint = "" if task == "grammar" else ": a larger alphabet or max_length gives more"
        raise BadInput(f"task {task}, split {split}: {size} pairs asked, {len(pairs)} distinct ones found{hint}")
    return pairs


def symbols(alphabet: int) -> list[str]:
    """a, b, ... z, and after these aa, ab, ...; sorted as the task `sort` sorts."""
    names = []
    for index in range(alphabet):
        name = ""
        rest = index + 1
        while rest:
            rest, letter = divmod(rest - 1, 26)
            name = chr(ord("a") + letter) + name
        names.append(name)
    return names


def _check_toy_options(task: str, size: int, alphabet: int, min_length: int, max_length: int) -> None:
    if alphabet < 1:
        raise BadInput(f"alphabet = {alphabet} of task {task}: at least 1 symbol is needed")
    if not 1 <= min_length <= max_length:
        raise BadInput(
            f"min_length = {min_length}, max_length = {max_length} of task {task}: 1 <= min <= max is needed"
        )
    possible = sum(alphabet**length for length in range(min_length, max_length + 1))
    if size > possible:
        raise BadInput(
            f"task {task}: {size} pairs asked, but {alphabet} symbols in lengths {min_length} to {max_length} "
            f"make only {possible} sequences"
        )


def _toy_pairs(task: str, seed_text: str, alphabet: int, min_length: int, max_length: int) -> Iterator[Pair]:
    """An endless stream: each length as likely as any other, each symbol too."""
    dice, names = Dice(seed_text), symbols(alphabet)
    while True:
        length = min_length + dice.below(max_length - min_length + 1)
        source = [dice.below(alphabet) for _ in range(length)]
        if task == "copy":
            target = source
        elif task == "reverse":
            target = source[::-1]
        else:
            target = sorted(source)
        yield " ".join(names[index] for index in source), " ".join(names[index] for index in target)


def _distinct(stream: Iterator[Pair], split: str) -> Iterator[Pair]:
    """The pairs of a stream that belong to the split, each source once; ends when nothing new comes any more."""
    seen: set[str] = set()
    misses = 0
    while misses < _PATIENCE:
        pair = next(stream)
        if pair[0] in seen or (split in _COMMON_SPLITS and _common_split(pair[0]) != split):
            misses += 1
            continue
        misses = 0
        seen.add(pair[0])
        yield pair


def _common_split(source: str) -> str:
    """Ten per cent of all sentences may stand in `valid`, ten in `test`; Python's own `hash` differs by process."""
    share = hashlib.blake2b(source.encode(), digest_size=4).digest()
    position = int.from_bytes(share, "big") / 2**32
    if position < 0.1:
        return "valid"
    return "test" if position < 0.2 else "train"
