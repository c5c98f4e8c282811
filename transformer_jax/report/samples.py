"""A few sentences of the test set with the translations of every variant."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.data.prepared import texts_path
from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_record
from transformer_jax.report.results import RunResult, SweepResult
from transformer_jax.runs.records import texts_sha256, translations

# The first sentences, and those on which the variants disagree most.
FIRST, DISAGREED = 2, 6
LONGEST = 300


class SampleSentence(NamedTuple):
    number: int  # of the line, from 1
    source: str
    reference: str
    translations: Mapping[str, Sequence[str]]  # text -> the variants that wrote it, what most of them wrote first


def samples(sweep: SweepResult, split: str) -> list[SampleSentence]:
    """From the first finished seed of each variant; empty if the translations or the test set's texts are gone."""
    written: dict[str, list[str]] = {}
    pairs: list[tuple[str, str]] = []
    for variant in sweep.variants:
        for run in variant.finished:
            if (measured := run.measured.get(split)) is None:
                continue
            found, lines = _texts(run, split), translations(measured.file, read_record(measured.file))
            # The data may have been prepared again since, and variants may have other test sets.
            same = lines and len(lines) == len(found) and found == (pairs or found)
            if lines and same and texts_sha256(*map(list, zip(*found, strict=True))) == measured.digest:
                pairs, written[variant.name] = found, lines
                break
    fit = [index for index, pair in enumerate(pairs) if max(map(len, pair)) <= LONGEST]
    versions = {index: len({lines[index] for lines in written.values()}) for index in fit}
    disagreed = sorted(fit[FIRST:], key=lambda index: (-versions[index], index))[:DISAGREED]
    chosen = [*fit[:FIRST], *sorted(index for index in disagreed if versions[index] > 1)]
    return [SampleSentence(index + 1, *pairs[index], _by_text(index, written)) for index in chosen]


def _by_text(index: int, written: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    by_text: dict[str, list[str]] = {}
    for name, lines in written.items():
        by_text.setdefault(lines[index], []).append(name)
    return dict(sorted(by_text.items(), key=lambda item: -len(item[1])))


def _texts(run: RunResult, split: str) -> list[tuple[str, str]]:
    """Sources and references of a test set, from the run's prepared data; empty if that is gone."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, BadInput):
        directory = read_record(run.path / "config.json")["data"]["directory"]
        file = texts_path(Path(directory) if directory else run.path / "data", split)
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        return [(str(record["source"]), str(record["target"])) for record in records]
    return []
