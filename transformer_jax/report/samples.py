"""A few sentences of the test set, and what each variant made of them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from transformer_jax.report.results import Measured, SweepResult, hypotheses, texts
from transformer_jax.runs.evaluations import texts_sha256

# As they come, and then those on which the variants disagree most.
FIRST, DISAGREED = 2, 6
# Of a sentence, at most so many different translations are shown.
MOST_VERSIONS = 8
LONGEST = 300


class Version(NamedTuple):
    """A translation, and the variants that wrote it."""

    words: Sequence[tuple[str, bool]]  # a word, and whether the reference has it there
    variants: Sequence[str]
    right: bool


class Sample(NamedTuple):
    number: int  # of the line, from 1
    source: str
    reference: str
    versions: Sequence[Version]
    more: int  # versions that are not shown


def samples(sweep: SweepResult, split: str) -> list[Sample]:
    """Of the first finished seed of each variant; none where the translations or the test set's texts are gone."""
    written: dict[str, list[str]] = {}
    pairs: list[tuple[str, str]] = []
    for variant in sweep.variants:
        for run in variant.finished:
            if split in run.measured and (lines := hypotheses(run.measured[split])):
                found = texts(sweep, run, split)
                if not _are_of(found, run.measured[split]):
                    continue
                pairs = pairs or found
                if found == pairs and len(lines) == len(pairs):
                    written[variant.name] = lines
                    break
    if not written:
        return []
    return [_sample(place, pairs[place], written) for place in _chosen(pairs, written)]


def _are_of(pairs: Sequence[tuple[str, str]], measured: Measured) -> bool:
    """Whether these are the very sentences that were measured, and not as many others."""
    return texts_sha256([source for source, _ in pairs], [reference for _, reference in pairs]) == measured.digest


def _chosen(pairs: Sequence[tuple[str, str]], written: dict[str, list[str]]) -> list[int]:
    fit = [place for place, pair in enumerate(pairs) if max(map(len, pair)) <= LONGEST]
    kinds = {place: len({lines[place] for lines in written.values()}) for place in fit}
    disagreed = sorted(fit[FIRST:], key=lambda place: (-kinds[place], place))[:DISAGREED]
    return [*fit[:FIRST], *sorted(place for place in disagreed if kinds[place] > 1)]


def _sample(place: int, pair: tuple[str, str], written: dict[str, list[str]]) -> Sample:
    source, reference = pair
    by_text: dict[str, list[str]] = {}
    for name, lines in written.items():
        by_text.setdefault(lines[place], []).append(name)
    versions = [Version(_compared(text, reference), names, text == reference) for text, names in by_text.items()]
    versions.sort(key=lambda version: -len(version.variants))
    more = max(0, len(versions) - MOST_VERSIONS)
    return Sample(place + 1, source, reference, versions[:MOST_VERSIONS], more)


def _compared(text: str, reference: str) -> list[tuple[str, bool]]:
    """Each word, and whether it is part of what the text shares with the reference."""
    words = text[: 2 * LONGEST].split()
    matcher = difflib.SequenceMatcher(None, words, reference.split(), autojunk=False)
    shared = {place for block in matcher.get_matching_blocks() for place in range(block.a, block.a + block.size)}
    return [(word, place in shared) for place, word in enumerate(words)]
