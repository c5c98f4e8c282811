"""The comparisons of a sweep and their results: contrasts of variants on each test set, by each metric."""

import collections
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.report.metrics import BLEU, EXACT_MATCH, LARGEST_EXPONENT, Metric, metrics_of
from transformer_jax.report.results import Measured, SweepResult, VariantResult
from transformer_jax.report.statistics import (
    Difference,
    Scores,
    bleu_scores,
    contrasts,
    log_perplexity_scores,
    mean_scores,
)

# The key of the differences from the baseline, which are always the first family. Their columns are in the main table.
DIFFERENCES = "differences"
EFFECTS = (
    "A main effect is the difference between two levels of a factor, averaged over the levels of the others. An "
    "interaction (×) is how much more one change does where the other is made too: 0 where effects simply add up"
)
SIMPLE_EFFECTS = "The difference between two levels of a factor where the other factors have the levels named"
CONTROLS = "Variants that repeat another one: no difference is expected"
# Why a variant is not compared.
OTHER_TEST_SET = "another test set"

Weights = Mapping[str, float]  # by variant; they sum to 0
Runs = Mapping[str, Sequence[Measured]]  # by variant
SeedScores = Mapping[str, Sequence[float]]  # of each seed, by variant
Cell = tuple[str, ...]  # a level of each factor
Cells = Mapping[Cell, str]  # the variant of each combination of levels
OfDesign = Callable[[Sequence[str], Cells, str], Iterator[tuple[str, Weights]]]


class Family(NamedTuple):
    """Contrasts of variants, which are corrected together."""

    key: str
    title: str
    help: str
    contrasts: Mapping[str, Weights]  # by name

    @property
    def title_in_sentence(self) -> str:
        return self.title[0].lower() + self.title[1:]


class Compared(NamedTuple):
    """The variants by one metric on one test set."""

    metric: Metric
    scores: SeedScores
    families: Mapping[str, Mapping[str, Difference]]  # by key and contrast; perplexities as logarithms
    role: str  # primary or secondary, where the sweep has a primary metric
    margin: float | None  # differences that are smaller do not matter; of perplexities, their ratio less 1
    answered_by: str = DIFFERENCES  # the key of the family that answers the question

    def mean(self, variant: str) -> float | None:
        values = self.scores.get(variant)
        return float(np.mean(values)) if values else None

    @property
    def differences(self) -> Mapping[str, Difference]:
        """From the baseline."""
        return self.families.get(DIFFERENCES, {})

    def to_json(self, key: str = DIFFERENCES) -> dict[str, Any]:
        """A family of contrasts, with what is concluded from each."""
        return {
            name: {**d.to_json(), "resolved": d.significant}  # the name that significance has in this file
            | ({} if d.equivalence_p is None else {"verdict": self.metric.verdict(d)})
            for name, d in self.families.get(key, {}).items()
        }

    def significant(self, mark: str, key: str = DIFFERENCES) -> list[str]:
        """What is significantly "better" or "worse", each with its interval, the largest difference first."""
        found = [(name, d) for name, d in self.families[key].items() if self.metric.mark(d) == mark]
        found.sort(key=lambda pair: -abs(pair[1].value))
        return [f"{name}: {self.metric.change(d.value)} {self.metric.interval(d)}" for name, d in found]

    def judged(self, verdict: str, key: str) -> list[str]:
        return [name for name, d in self.families[key].items() if self.metric.verdict(d) == verdict]

    @property
    def mde(self) -> str | None:
        """The median minimum detectable difference of the family that answers.

        It is "" if no score can differ so much, and None if no score varies.
        """
        answering = self.families.get(self.answered_by) or self.differences
        known = [d.mde for d in answering.values() if d.mde is not None]
        return self.metric.mde_text(float(np.median(known))) if known else None


class TestFindings(NamedTuple):
    """One test set: the scores of every variant, and the contrasts."""

    split: str
    name: str
    sentences: int
    clusters: int  # of sentences that are resampled together; the number of sentences if each is independent
    signature: str
    unit: str  # of the perplexities that are compared: token, or word where vocabularies differ
    runs: Runs
    by_metric: Mapping[str, Compared]  # the primary one first; exact_match where any translation is right
    families: Sequence[Family]  # the differences from the baseline first
    scores: Mapping[str, SeedScores]  # by metric, and word_perplexity
    not_compared: Mapping[str, str]  # variant -> reason
    answered_by: str = DIFFERENCES  # the key of the family that answers the question

    @property
    def answering_first(self) -> list[Family]:
        return sorted(self.families, key=lambda family: family.key != self.answered_by)

    @property
    def title(self) -> str:
        """The test set's name, after the split unless the name begins with it, as in "test of grammar"."""
        return self.name if re.match(rf"{re.escape(self.split)}\b", self.name) else f"{self.split}: {self.name}"

    @property
    def measured(self) -> list[Measured]:
        return [run for runs in self.runs.values() for run in runs]

    @property
    def in_clusters(self) -> str:
        return "" if self.clusters == self.sentences else f" in {self.clusters:,} clusters"

    def contrasts(self, key: str) -> Mapping[str, Difference]:
        """A family, by the first metric that has any of it."""
        return next((found for compared in self.by_metric.values() if (found := compared.families.get(key))), {})

    @property
    def differences(self) -> Mapping[str, Difference]:
        return self.contrasts(DIFFERENCES)


# What is compared


def families_of(sweep: SweepResult) -> list[Family]:
    """The differences from the baseline, and the other families of the sweep, which may be empty."""
    compared = [variant for variant in sweep.variants if variant.baseline and not variant.same_as]
    differences = {v.name: {v.name: 1.0, v.baseline: -1.0} for v in compared}
    controls = {v.name: {v.name: 1.0, v.same_as: -1.0} for v in sweep.variants if v.same_as}
    names = {variant.name for variant in sweep.variants}
    declared = {name: weights for name, weights in sweep.contrasts.items() if set(weights) <= names}
    return [
        Family(DIFFERENCES, "Differences from the baseline", "", differences),
        Family("effects", "Main effects and interactions", EFFECTS, effects(sweep.variants, sweep.baseline)),
        Family("simple_effects", "Simple effects", SIMPLE_EFFECTS, effects(sweep.variants, sweep.baseline, _simple)),
        Family("contrasts", "Contrasts", "Sums of mean scores with the weights that the sweep declares", declared),
        Family("controls", "Controls (A/A)", CONTROLS, controls),
    ]


def measured_of(families: Sequence[Family], measured: Collection[str]) -> list[Family]:
    """The families with the contrasts whose variants are all measured; the first even without any."""
    found = [
        family._replace(contrasts={name: w for name, w in family.contrasts.items() if set(w) <= set(measured)})
        for family in families
    ]
    return [family for family in found if family.contrasts or family.key == DIFFERENCES]


def effects(variants: Sequence[VariantResult], baseline: str, of_design: OfDesign | None = None) -> dict[str, Weights]:
    """Main effects and pairwise interactions of each factorial design, or others; empty if no variant has levels.

    The variants with the same factors are a design. Levels are compared with the baseline's, or else the first, in the
    combinations of other levels that the design has for all of them.
    """
    designs: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}  # the variant of each cell, by the factors
    for variant in (variant for variant in variants if variant.levels):
        designs.setdefault(tuple(variant.levels), {})[tuple(variant.levels.values())] = variant.name
    found: dict[str, Weights] = {}
    for factors, cells in designs.items():
        over = f" (over {', '.join(factors)})" if len(designs) > 1 else ""
        found |= {name + over: weights for name, weights in (of_design or _averaged)(factors, cells, baseline)}
    return found


def _changes(cells: Cells, baseline: str) -> tuple[Cell, list[tuple[int, str]]]:
    """The cell that others are compared with, and all other levels, each after the number of its factor."""
    first = next((cell for cell, name in cells.items() if name == baseline), next(iter(cells)))
    levels = dict.fromkeys((at, level) for cell in cells for at, level in enumerate(cell) if level != first[at])
    return first, sorted(levels, key=lambda change: change[0])


def _simple(factors: Sequence[str], cells: Cells, baseline: str) -> Iterator[tuple[str, Weights]]:
    """The simple effects of one design, by name."""
    first, changes = _changes(cells, baseline)
    for at, level in changes:
        for cell, variant in cells.items():
            without = cells.get((*cell[:at], first[at], *cell[at + 1 :]))
            if cell[at] == level and without is not None:
                others = [f"{factor}={own}" for factor, own in zip(factors, cell, strict=True) if factor != factors[at]]
                yield f"{factors[at]}={level} against {first[at]} at {' '.join(others)}", {variant: 1.0, without: -1.0}


def _averaged(factors: Sequence[str], cells: Cells, baseline: str) -> Iterator[tuple[str, Weights]]:
    """The main effects and interactions of one design, by name."""
    first, changes = _changes(cells, baseline)
    pairs = [(one, other) for one, other in itertools.combinations(changes, 2) if one[0] != other[0]]
    for changed in [*((change,) for change in changes), *pairs]:
        squares = []  # the cells with all of these changes, and without each part of them, with their signs
        for cell in cells:
            square = {}
            for kept in itertools.product((True, False), repeat=len(changed)):
                undone = {at: first[at] for (at, _), is_kept in zip(changed, kept, strict=True) if not is_kept}
                square[tuple(undone.get(at, level) for at, level in enumerate(cell))] = (-1.0) ** len(undone)
            if all(cell[at] == level for at, level in changed) and all(corner in cells for corner in square):
                squares.append(square)
        if squares:
            weights = collections.Counter[str]()
            for square in squares:
                weights.update({cells[corner]: sign / len(squares) for corner, sign in square.items()})
            yield " × ".join(f"{factors[at]}={level} against {first[at]}" for at, level in changed), weights


# What is found


def find(sweep: SweepResult) -> list[TestFindings]:
    """The findings on each test set, the main one first."""
    return [_on(sweep, split) for split in sweep.tests]


def _on(sweep: SweepResult, split: str) -> TestFindings:
    measured = {variant.name: seeds for variant in sweep.variants if (seeds := variant.measured(split))}
    planned, metrics = families_of(sweep), metrics_of(sweep, split)
    scores: dict[str, SeedScores] = {key: {} for key in ("perplexity", "word_perplexity", "bleu", "exact_match")}
    if not measured:
        none = measured_of(planned, ())
        return TestFindings(split, split, 0, 0, "", "token", {}, {}, none, scores, {}, sweep.answered_by)
    first = (measured.get(sweep.baseline) or next(iter(measured.values())))[0]
    runs: dict[str, list[Measured]] = {}
    comparable: dict[str, list[Measured]] = {}
    for name, seeds in measured.items():
        same = [run for run in seeds if run.digest == first.digest and len(run.tokens_N) == len(first.tokens_N)]
        if same:
            comparable[name] = same
        # The mean is over one test set, even where it is another one than the baseline's.
        runs[name] = same or [run for run in seeds if run.digest == seeds[0].digest]
    families = measured_of(planned, comparable)
    is_one_unit = all(np.array_equal(run.tokens_N, first.tokens_N) for same in comparable.values() for run in same)
    scores["word_perplexity"] = {name: [_per_word(run) for run in same] for name, same in runs.items()}
    # Whether exact match says anything.
    tells = any(run.groups or run.right_N.any() for same in comparable.values() for run in same)
    if sweep.primary != EXACT_MATCH.key and not tells:
        metrics = [metric for metric in metrics if metric.key != EXACT_MATCH.key]
    by_metric, not_compared = {}, _not_compared(sweep, planned, measured, comparable)
    for metric in metrics:
        key = metric.key
        shown: SeedScores = {
            name: [run.scores[key] for run in same if key in run.scores] for name, same in runs.items()
        }
        scores[key] = shown
        whole = {name: same for name, same in comparable.items() if all(key in run.scores for run in same)}
        for name in comparable:
            if shown[name] and name not in whole:
                not_compared[f"{name}, {metric.name}"] = "not all of its runs have this score"
        if whole:
            if metric.is_ratio and not is_one_unit:
                shown = scores["word_perplexity"]
            role = "primary" if key == sweep.primary and split == sweep.tests[0] else "secondary"
            by_metric[key] = _compared(sweep, metric, shown, whole, families, role * bool(sweep.primary))
    return TestFindings(
        split=split,
        name=first.test_set,
        sentences=len(first.tokens_N),
        clusters=len(first.tokens_N if first.clusters_N is None else np.unique(first.clusters_N)),
        signature=" and ".join(dict.fromkeys(run.signature for same in runs.values() for run in same)),
        unit="token" if is_one_unit else "word",
        runs=runs,
        by_metric=by_metric,
        families=families,
        scores=scores,
        not_compared=not_compared,
        answered_by=sweep.answered_by,
    )


def _not_compared(sweep: SweepResult, planned: Sequence[Family], measured: Runs, comparable: Runs) -> dict[str, str]:
    """Why variants, some of their runs, or other contrasts are not compared."""
    found = {}
    for name, same in comparable.items():
        if len(same) < len(measured[name]):
            found[name] = f"{len(measured[name]) - len(same)} of its runs: {OTHER_TEST_SET}"
    for variant in sweep.variants:
        name, baseline = variant.name, variant.baseline
        if not baseline or variant.same_as or (name in comparable and baseline in comparable):
            continue
        if not variant.finished:
            found[name] = "no finished run"
        elif name not in comparable:
            found[name] = OTHER_TEST_SET if name in measured else "not evaluated on it yet"
        else:
            found[name] = f"its baseline {baseline} has {OTHER_TEST_SET if baseline in measured else 'no finished run'}"
    for family in planned[1:]:
        for name, weights in family.contrasts.items():
            if missing := [variant for variant in weights if variant not in comparable]:
                found[name] = f"needs {' and '.join(missing)}"
    return found


def _per_word(run: Measured) -> float:
    return math.exp(min(-float(run.log_probabilities_N.sum()) / run.words, LARGEST_EXPONENT))


def _compared(
    sweep: SweepResult, metric: Metric, scores: SeedScores, comparable: Runs, families: Sequence[Family], role: str
) -> Compared:
    """The variants by one metric; `comparable` are the runs on the same sentences."""
    names, runs = list(comparable), [run for same in comparable.values() for run in same]
    ends = np.cumsum([len(same) for same in comparable.values()])
    groups = [group.tolist() for group in np.split(np.arange(len(runs)), ends[:-1])]
    scored, margin = _scores(metric, runs), sweep.margin.get(metric.key)
    if scored.sentences < 2 or not (metric.by_sentence or max(map(len, groups)) > 1):
        return Compared(metric, scores, {}, role, None)
    limit = None if margin is None else metric.largest_within(margin)
    differences = {}
    for family in families:
        known = {name: weights for name, weights in family.contrasts.items() if set(weights) <= set(names)}
        weights_PG = [[weights.get(name, 0.0) for name in names] for weights in known.values()]
        found = dict(zip(known, contrasts(scored, groups, weights_PG, limit), strict=True))
        if not metric.by_sentence:  # seeds that tie do not tell how much scores vary
            found = {name: d for name, d in found.items() if d.error > 0 or d.value == 0}
        differences[family.key] = found
    return Compared(metric, scores, differences, role, margin, sweep.answered_by)


def _scores(metric: Metric, runs: Sequence[Measured]) -> Scores:
    """With what a choice of sentences contributes, where scores of sentences are known."""
    if not metric.by_sentence:
        values_R = np.array([run.scores[metric.key] for run in runs])
        return Scores(values_R, np.zeros((len(runs), len(runs))), 10**9, metric.largest)
    clusters_N, units_N = runs[0].clusters_N, runs[0].tokens_N
    if metric.key == BLEU.key:
        return bleu_scores(np.stack([run.statistics_N10 for run in runs]), clusters_N)
    if metric.key == EXACT_MATCH.key:
        return mean_scores(np.stack([100 * run.right_N for run in runs]), clusters_N, metric.largest)
    if not metric.is_ratio:
        return mean_scores(np.stack([run.sentence_scores[metric.key] for run in runs]), clusters_N)
    if not all(np.array_equal(run.tokens_N, units_N) for run in runs):
        # Words per sentence as BLEU counts them in the reference, plus one for its end, scaled to the set's words.
        units_N = runs[0].statistics_N10[:, 1] + 1
        units_N = units_N * (runs[0].words / units_N.sum())
    return log_perplexity_scores(np.stack([run.log_probabilities_N for run in runs]), units_N, clusters_N)
