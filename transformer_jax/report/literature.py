"""Our differences from the baseline beside those of the literature: their signs, and their ranks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer_jax.report.findings import TestFindings
from transformer_jax.report.metrics import METRICS, Metric
from transformer_jax.report.results import SweepResult
from transformer_jax.report.statistics import Difference, rank_correlation
from transformer_jax.report.table import UNVERIFIED, Cell, Column, Row, Table, difference_cell


class VariantComparison(NamedTuple):
    """One variant by one metric."""

    variant: str
    ours: Difference
    published: float
    is_verified: bool

    @property
    def agrees(self) -> bool | None:
        """Whether both differences have one sign; None if either is zero."""
        product = self.ours.value * self.published
        return product > 0 if product else None


class Comparison(NamedTuple):
    """All variants whose score, and whose baseline's, is published."""

    metric: Metric
    rows: Sequence[VariantComparison]

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, of the differences from the baseline."""
        return rank_correlation([row.ours.value for row in self.rows], [row.published for row in self.rows])

    def sentence(self) -> str:
        """How many agree, which are contradicted, and the correlation."""
        same = sum(row.agrees is True for row in self.rows)
        text = f"Published differences in {self.metric.title}: {same} of {len(self.rows)} have the same sign as ours."
        against = [row.variant for row in self.rows if row.agrees is False and row.ours.significant]
        is_one_seed = any(row.ours.seed_spread == "none" for row in self.rows)
        caveat = " (of one seed: perhaps a difference between seeds)" if against and is_one_seed else ""
        text += f" Significant with the opposite sign{caveat}: {', '.join(against) or 'none'}."
        if (correlation := self.rank_correlation) is not None:
            text += f" Spearman's rank correlation: {correlation:.2f}".replace("-", "−") + f" (n = {len(self.rows)})."
        if unverified := [row.variant for row in self.rows if not row.is_verified]:
            text += f" Not verified against their source: {', '.join(unverified)}."
        return text

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "variant": row.variant,
                "difference": row.ours.value,
                "published": row.published,
                "verified": row.is_verified,
                "agrees": row.agrees,
                "significant": row.ours.significant,
            }
            for row in self.rows
        ]
        return {"measure": self.metric.key, "rank_correlation": self.rank_correlation, "n": len(rows), "rows": rows}


def comparisons(sweep: SweepResult, findings: TestFindings) -> list[Comparison]:
    """One for each metric of which anything is published. Perplexities are compared by their logarithms."""
    variants, found = {variant.name: variant for variant in sweep.variants}, []
    for metric in METRICS:
        rows = []
        for name, difference in findings.differences(metric).items():
            published = metric.literature_difference(sweep.published(name, metric.key))
            pair = (variants[name], variants[variants[name].baseline])
            if published is not None:
                is_verified = not any(metric.key in variant.unverified for variant in pair)
                rows.append(VariantComparison(name, difference, published, is_verified))
        if rows:
            found.append(Comparison(metric, rows))
    return found


def table(found: Sequence[Comparison]) -> Table:
    """Differences from the baseline, ours and as published."""
    names = list(dict.fromkeys(row.variant for comparison in found for row in comparison.rows))
    signs = {True: "yes", False: "no", None: "–"}
    columns = []
    for metric, rows in found:
        by_name = {row.variant: row for row in rows}
        ours, published, agrees, significant = [], [], [], []
        for row in map(by_name.get, names):
            mark = "" if row is None or row.is_verified else UNVERIFIED
            ours.append(difference_cell(metric, row.ours) if row else Cell())
            published.append(Cell(metric.change(row.published) + mark, row.published) if row else Cell())
            agrees.append(Cell(signs[row.agrees]) if row else Cell())
            significant.append(Cell(signs[row.ours.significant]) if row else Cell())
        columns += [
            Column(f"Δ {metric.title} ours", ours),
            Column(f"Δ {metric.title} published", published),
            Column(f"{metric.title} same sign", agrees),
            Column(f"{metric.title} significant", significant),
        ]
    return Table([Row(name) for name in names], columns)
