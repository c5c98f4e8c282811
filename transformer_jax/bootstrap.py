"""The bootstrap: intervals of the share of exact matches, and whether two systems differ on a test set."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.evaluation import EXACT_MATCH, check_texts, load_bleu, matches

SAMPLES, SEED = 1000, 12345  # of paired tests: sacreBLEU's defaults
CONFIDENCE, INTERVAL_SAMPLES = 0.95, 10_000
# Scores with a smaller relative difference are the same score with different rounding.
ROUNDING = 1e-9


def counts(
    right_N: Sequence[int], groups: Sequence[Mapping[str, str]] | None = None, clusters: Sequence[str] | None = None
) -> dict[str, Any]:
    """How many examples are right, with `interval`, in all and per group: the examples with one value of a label."""

    def counted(members: Sequence[int]) -> dict[str, Any]:
        right = [right_N[i] for i in members]
        low, high = interval(right, None if clusters is None else [clusters[i] for i in members]) or (None, None)
        return {"right": sum(right), "total": len(right), "low": low, "high": high}

    found = {**counted(range(len(right_N))), "resampled": "examples" if clusters is None else "clusters"}
    if groups is None:
        return found
    members: dict[str, dict[str, list[int]]] = {}
    for index, labels in enumerate(groups):
        for name, value in labels.items():
            members.setdefault(name, {}).setdefault(value, []).append(index)
    by_label = {name: {value: counted(same[value]) for value in sorted(same)} for name, same in members.items()}
    return {**found, "groups": by_label}


def interval(right_N: Sequence[int], clusters: Sequence[str] | None = None) -> tuple[float, float] | None:
    """The percentile bootstrap interval of the share that is right, in percent; None where nothing can vary.

    A unit is an example or, with `clusters`, all examples of a cluster.
    """
    names, unit_N = np.unique(np.array(range(len(right_N)) if clusters is None else clusters), return_inverse=True)
    if len(names) < 2:
        return None
    units_U2 = np.stack([np.bincount(unit_N, right_N), np.bincount(unit_N)], axis=1)
    # Units with equal counts are drawn as one kind: of single examples there are only two kinds.
    kinds_K2, sizes_K = np.unique(units_U2, axis=0, return_counts=True)
    rng = np.random.default_rng(SEED)
    drawn = rng.multinomial(len(names), sizes_K / len(names), size=INTERVAL_SAMPLES) @ kinds_K2
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(100 * drawn[:, 0] / drawn[:, 1], (tail, 1 - tail))
    return float(low), float(high)


class Scored(NamedTuple):
    """The score of each sentence by one metric, of two systems."""

    this_N: Sequence[float] | np.ndarray
    other_N: Sequence[float] | np.ndarray
    signature: str


def paired_bootstrap(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[str],
    clusters: Sequence[str] | None = None,
    tokenize: str = "13a",
    metrics: Mapping[str, Scored] = {},
) -> dict[str, dict[str, Any]]:
    """Paired bootstrap test of the difference to another system: BLEU, chrF, exact match and `metrics` with p-values.

    Sentences are resampled or, for exact match and `metrics`, which have scores of sentences, clusters of them.
    """
    from sacrebleu.metrics import CHRF  # takes a second to import

    for texts in (hypotheses, others):
        check_texts(texts, references)
    found = {}
    for name, metric in {"bleu": load_bleu(tokenize), "chrf": CHRF()}.items():
        # Sufficient statistics of each sentence, as in sacreBLEU's paired tests.
        this_NS, other_NS = (
            np.array(metric._extract_corpus_statistics(list(texts), [list(references)]), np.float64)
            for texts in (hypotheses, others)
        )
        score = lambda sums_S, metric=metric: metric._compute_score_from_stats(sums_S).score  # noqa: E731
        resampled = [score(draw_N @ this_NS) - score(draw_N @ other_NS) for draw_N in _draws(len(references))]
        signature = metric.get_signature()
        signature.update("seed", str(SEED))
        signature.update("bs", SAMPLES)
        scores = score(this_NS.sum(0)), score(other_NS.sum(0))
        found[name] = _compared(*scores, resampled, signature.format(), len(references))

    units, unit_N = np.unique(np.array(range(len(references)) if clusters is None else clusters), return_inverse=True)
    right_2N = 100.0 * np.array([matches(texts, references) for texts in (hypotheses, others)])
    for name, (this_N, other_N, made_by) in {
        "exact_match": Scored(right_2N[0], right_2N[1], EXACT_MATCH),
        **metrics,
    }.items():
        difference_U, size_U = np.bincount(unit_N, np.subtract(this_N, other_N)), np.bincount(unit_N)
        resampled = [float(draw_U @ difference_U / (draw_U @ size_U)) for draw_U in _draws(len(units))]
        signature = f"{made_by}|seed:{SEED}|bs:{SAMPLES}|{'examples' if clusters is None else 'clusters'}"
        found[name] = _compared(float(np.mean(this_N)), float(np.mean(other_N)), resampled, signature, len(units))
    return found


def _compared(this: float, other: float, resampled: Sequence[float], signature: str, units: int) -> dict[str, Any]:
    # A single unit is the same in every sample, which says nothing.
    p = 1.0 if units == 1 else p_value(this - other, resampled)
    return {"this": this, "other": other, "p_value": p, "signature": f"{signature}|p:two-sided"}


def p_value(difference: float, resampled: Sequence[float] | np.ndarray) -> float:
    """The two-sided p-value of a difference, from resampled differences.

    Under the null hypothesis the observed difference is distributed around 0 as the resampled ones are around the
    observed one. Ties count as extreme, so two systems with equal scores have p = 1. (sacreBLEU's paired bootstrap
    leaves ties out, which gives identical systems p = 0.001, and centres the *absolute* differences, which halves small
    p-values.)
    """
    distances = np.abs(np.asarray(resampled, np.float64) - difference)
    if np.isnan(distances).any():
        return math.nan
    as_far = np.count_nonzero(distances >= abs(difference) * (1 - ROUNDING))
    return (as_far + 1) / (len(distances) + 1)  # the observed one counts as a sample


def _draws(sentences: int) -> Iterator[np.ndarray]:
    """The count of each sentence in each bootstrap sample, drawn as in sacreBLEU."""
    rng = np.random.default_rng(SEED)
    for _ in range(SAMPLES):
        yield np.bincount(rng.choice(sentences, size=sentences), minlength=sentences).astype(np.float64)
