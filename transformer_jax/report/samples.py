"""A few sentences of the test set with the translations of every variant."""

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transformer_jax.report.results import SweepResult, hypotheses, texts
from transformer_jax.runs.records import texts_sha256

# The first sentences, and those on which the variants disagree most.
FIRST, DISAGREED = 2, 6
# The most translations that are shown of one sentence.
MOST_VERSIONS = 8
LONGEST = 300


class SampleTranslation(NamedTuple):
    words: Sequence[tuple[str, bool]]  # each word, and whether it matches the reference
    variants: Sequence[str]
    exact: bool


class SampleSentence(NamedTuple):
    number: int  # of the line, from 1
    source: str
    reference: str
    translations: Sequence[SampleTranslation]
    more: int  # translations that are not shown


def samples(sweep: SweepResult, split: str) -> list[SampleSentence]:
    """From the first finished seed of each variant; empty if the translations or the test set's texts are gone."""
    written: dict[str, list[str]] = {}
    pairs: list[tuple[str, str]] = []
    for variant in sweep.variants:
        for measured, run in ((run.measured[split], run) for run in variant.finished if split in run.measured):
            lines, found = hypotheses(measured), texts(run, split)
            same = len(lines) == len(found) > 0 and found == (pairs or found)
            # The data may have been prepared again since.
            if same and texts_sha256(*map(list, zip(*found, strict=True))) == measured.digest:
                pairs, written[variant.name] = found, lines
                break
    return [_sentence(index, pairs[index], written) for index in _chosen(pairs, written)]


def _chosen(pairs: Sequence[tuple[str, str]], written: Mapping[str, Sequence[str]]) -> list[int]:
    fit = [index for index, pair in enumerate(pairs) if max(map(len, pair)) <= LONGEST]
    versions = {index: len({lines[index] for lines in written.values()}) for index in fit}
    disagreed = sorted(fit[FIRST:], key=lambda index: (-versions[index], index))[:DISAGREED]
    return [*fit[:FIRST], *sorted(index for index in disagreed if versions[index] > 1)]


def _sentence(index: int, pair: tuple[str, str], written: Mapping[str, Sequence[str]]) -> SampleSentence:
    source, reference = pair
    by_text: dict[str, list[str]] = {}
    for name, lines in written.items():
        by_text.setdefault(lines[index], []).append(name)
    translations = [SampleTranslation(_matched(t, reference), names, t == reference) for t, names in by_text.items()]
    translations.sort(key=lambda translation: -len(translation.variants))
    more = max(0, len(translations) - MOST_VERSIONS)
    return SampleSentence(index + 1, source, reference, translations[:MOST_VERSIONS], more)


def _matched(text: str, reference: str) -> list[tuple[str, bool]]:
    """Each word, and whether it belongs to a part that the text shares with the reference."""
    words = text[: 2 * LONGEST].split()
    matcher = difflib.SequenceMatcher(None, words, reference.split(), autojunk=False)
    shared = {index for block in matcher.get_matching_blocks() for index in range(block.a, block.a + block.size)}
    return [(word, index in shared) for index, word in enumerate(words)]
