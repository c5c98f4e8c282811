"""Exact match: which translations equal their references; counts by group, and bootstrap intervals."""

from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import normalize

import numpy as np

SIGNATURE = "nrefs:1|case:mixed|space:collapsed|unicode:nfc"
CONFIDENCE, SAMPLES, SEED = 0.95, 10_000, 12345


def matches(hypotheses: Sequence[str], references: Sequence[str]) -> list[int]:
    """1 for every translation with the words of its reference, 0 for every other one.

    White space only separates words: most tokenizers do not keep how much of it there was. Nor do they keep whether an
    accent was a character of its own: texts are compared in NFC, in which that makes no difference.
    """
    ours, theirs = ([normalize("NFC", text).split() for text in texts] for texts in (hypotheses, references))
    return [int(one == other) for one, other in zip(ours, theirs, strict=True)]


def counts(
    right_N: Sequence[int],
    groups: Sequence[Mapping[str, str]] | None = None,
    clusters: Sequence[str] | None = None,
    strata: Sequence[str] | None = None,
) -> dict[str, Any]:
    """How many are right, with `interval`; the same for every group, the examples with one value of one label."""

    def counted(members: Sequence[int]) -> dict[str, Any]:
        right = [right_N[i] for i in members]
        units = (None if column is None else [column[i] for i in members] for column in (clusters, strata))
        low, high = interval(right, *units) or (None, None)
        return {"right": sum(right), "total": len(right), "low": low, "high": high}

    found = {**counted(range(len(right_N))), "resampled": "examples" if clusters is None else "clusters"}
    if groups is None:
        return found
    members: dict[str, dict[str, list[int]]] = {}
    for index, labels in enumerate(groups):
        for name, value in labels.items():
            members.setdefault(name, {}).setdefault(value, []).append(index)
    by_label = {
        name: {value: counted(inside) for value, inside in sorted(same.items())} for name, same in members.items()
    }
    return {**found, "groups": by_label}


def interval(
    right_N: Sequence[int], clusters: Sequence[str] | None = None, strata: Sequence[str] | None = None
) -> tuple[float, float] | None:
    """The percentile bootstrap interval of the share that is right, in percent; None where nothing can vary.

    A unit is an example or, with `clusters`, all examples of a cluster. With `strata` the units of each stratum are
    resampled among themselves, so at least one stratum must have two; a cluster is divided where its examples differ
    in stratum.
    """
    units: dict[tuple[str, Any], list[int]] = {}
    each = range(len(right_N)) if clusters is None else clusters
    for right, unit, stratum in zip(right_N, each, strata or [""] * len(right_N), strict=True):
        sums = units.setdefault((stratum, unit), [0, 0])
        sums[0] += right
        sums[1] += 1
    by_stratum: dict[str, list[list[int]]] = {}
    for (stratum, _), sums in units.items():
        by_stratum.setdefault(stratum, []).append(sums)
    if all(len(same) < 2 for same in by_stratum.values()):
        return None
    rng, drawn = np.random.default_rng(SEED), np.zeros((SAMPLES, 2))
    for same in by_stratum.values():
        # Units with equal counts are drawn as one kind: of single examples there are only two kinds.
        kinds_K2, sizes_K = np.unique(np.array(same), axis=0, return_counts=True)
        drawn += rng.multinomial(len(same), sizes_K / len(same), size=SAMPLES) @ kinds_K2
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(100 * drawn[:, 0] / drawn[:, 1], (tail, 1 - tail))
    return float(low), float(high)
