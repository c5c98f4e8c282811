"""What a sweep found: how every variant differs from its baseline on each test set."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.report.metrics import BLEU, LARGEST_EXPONENT, Metric
from transformer_jax.report.results import Measured, SweepResult
from transformer_jax.report.statistics import Difference, bleu_scores, compare, log_perplexity_scores

# Why a variant is not compared.
OTHER_TEST_SET = "another test set, or none"


class TestFindings(NamedTuple):
    """One test set: the scores of every variant, and the differences, by the variants' names."""

    split: str
    name: str
    sentences: int
    signature: str
    unit: str  # of the perplexities that are compared: token, or word where vocabularies differ
    bleu: Mapping[str, Sequence[float]]
    perplexity: Mapping[str, Sequence[float]]  # per token
    word_perplexity: Mapping[str, Sequence[float]]
    bleu_differences: Mapping[str, Difference]
    perplexity_differences: Mapping[str, Difference]  # of the logarithms
    not_compared: Mapping[str, str]  # variant -> reason

    @property
    def title(self) -> str:
        return titled(self.split, self.name)

    @property
    def empty(self) -> bool:
        return not self.bleu

    def differences(self, metric: Metric) -> Mapping[str, Difference]:
        return self.bleu_differences if metric is BLEU else self.perplexity_differences

    def scores(self, metric: Metric) -> Mapping[str, Sequence[float]]:
        """The scores that are compared: BLEU, or the perplexity per `unit`."""
        return self.bleu if metric is BLEU else self.perplexity if self.unit == "token" else self.word_perplexity

    def mean(self, metric: Metric, variant: str) -> float | None:
        """A variant's mean score as it is compared: BLEU, or the log of the perplexity per `unit`."""
        if not (values := self.scores(metric).get(variant)):
            return None
        return float(np.mean(values if metric is BLEU else np.log(values)))

    def best(self, metric: Metric) -> str | None:
        """The variant with the best mean of the scores as they are shown, if any difference is significant."""
        scores = {n: seeds for n, seeds in self.scores(metric).items() if self.not_compared.get(n) != OTHER_TEST_SET}
        return metric.best(scores, self.differences(metric))


def titled(split: str, name: str) -> str:
    """The test set's name, after the split unless the name begins with it, as in "test of grammar"."""
    return name if re.match(rf"{re.escape(split)}\b", name) else f"{split}: {name}"


def find(sweep: SweepResult) -> list[TestFindings]:
    """The findings on each test set, the main one first."""
    return [_on(sweep, split) for split in sweep.tests]


def _on(sweep: SweepResult, split: str) -> TestFindings:
    every = {v.name: [run.measured[split] for run in v.finished if split in run.measured] for v in sweep.variants}
    runs = {name: measured for name, measured in every.items() if measured}
    if not runs:
        return TestFindings(split, split, 0, "", "token", {}, {}, {}, {}, {}, {})
    first = (runs.get(sweep.baseline) or next(iter(runs.values())))[0]
    comparable = {}
    for name, measured in runs.items():
        same = [run for run in measured if run.digest == first.digest and len(run.tokens_N) == len(first.tokens_N)]
        if same:
            comparable[name] = same
        # The mean is over one test set, even where it is another one than the baseline's.
        runs[name] = same or [run for run in measured if run.digest == measured[0].digest]
    one_vocabulary = all(np.array_equal(run.tokens_N, first.tokens_N) for same in comparable.values() for run in same)
    unit = "token" if one_vocabulary else "word"
    pairs, not_compared = _pairs(sweep, comparable)
    for name, same in comparable.items():
        if missing := len(every[name]) - len(same):
            not_compared[name] = f"{missing} of its runs: another test set"
    bleu, perplexity = _differences(comparable, pairs, unit) if len(first.tokens_N) > 1 else ({}, {})
    return TestFindings(
        split=split,
        name=first.test_set,
        sentences=len(first.tokens_N),
        signature=" and ".join(dict.fromkeys(run.signature for measured in runs.values() for run in measured)),
        unit=unit,
        bleu={name: [run.bleu for run in measured] for name, measured in runs.items()},
        perplexity={name: [run.perplexity for run in measured] for name, measured in runs.items()},
        word_perplexity={name: [_per_word(run) for run in measured] for name, measured in runs.items()},
        bleu_differences=bleu,
        perplexity_differences=perplexity,
        not_compared=not_compared,
    )


def _per_word(run: Measured) -> float:
    return math.exp(min(-float(run.log_probabilities_N.sum()) / run.words, LARGEST_EXPONENT))


def _pairs(
    sweep: SweepResult, comparable: Mapping[str, Sequence[Measured]]
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """The comparisons (variant, baseline), and why other variants are not compared."""
    pairs, not_compared = [], {}
    for variant in sweep.variants:
        if not variant.baseline:
            continue
        if not variant.finished:
            not_compared[variant.name] = "no finished run"
        elif variant.name not in comparable:
            not_compared[variant.name] = OTHER_TEST_SET
        elif variant.baseline not in comparable:
            not_compared[variant.name] = f"its baseline {variant.baseline} has no finished run"
        else:
            pairs.append((variant.name, variant.baseline))
    return pairs, not_compared


def _differences(
    comparable: Mapping[str, Sequence[Measured]], pairs: Sequence[tuple[str, str]], unit: str
) -> tuple[dict[str, Difference], dict[str, Difference]]:
    """The differences in BLEU and in log-perplexity."""
    runs = [run for measured in comparable.values() for run in measured]
    ends = np.cumsum([len(measured) for measured in comparable.values()])
    members = [group.tolist() for group in np.split(np.arange(len(runs)), ends[:-1])]
    index = {name: number for number, name in enumerate(comparable)}
    numbered = [(index[variant], index[baseline]) for variant, baseline in pairs]
    units = runs[0].tokens_N
    if unit == "word":
        # Words per sentence as BLEU counts them in the reference, plus one for its end, scaled to the set's words.
        units = runs[0].statistics_N10[:, 1] + 1
        units = units * (runs[0].words / units.sum())
    bleu = compare(bleu_scores(np.stack([run.statistics_N10 for run in runs])), members, numbered)
    log_probabilities_RN = np.stack([run.log_probabilities_N for run in runs])
    perplexity = compare(log_perplexity_scores(log_probabilities_RN, units), members, numbered)
    names = [variant for variant, _ in pairs]
    return dict(zip(names, bleu, strict=True)), dict(zip(names, perplexity, strict=True))
