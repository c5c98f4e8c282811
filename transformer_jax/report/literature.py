"""Our differences from the baseline beside the literature's: their signs, and their ranks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer_jax.report.findings import TestFindings
from transformer_jax.report.metrics import Metric
from transformer_jax.report.results import SweepResult
from transformer_jax.report.table import UNVERIFIED, Cell, Column, Row, Table


class VariantComparison(NamedTuple):
    """One variant by one metric."""

    variant: str
    difference: float  # ours
    published: float
    verified: bool
    agrees: bool | None  # whether both differences have one sign; None if either is zero
    significant: bool  # whether ours is


class Comparison(NamedTuple):
    """All variants whose score, and whose baseline's, is published. Perplexities are compared by their logarithms."""

    metric: Metric
    rows: Sequence[VariantComparison]

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, of the differences from the baseline; None if it is undefined."""
        from scipy.stats import spearmanr  # here, because it loads slowly

        pairs = [(row.difference, row.published) for row in self.rows]
        is_defined = all(len(set(values)) > 1 for values in zip(*pairs, strict=True))
        return float(spearmanr(pairs).statistic) if is_defined else None

    @property
    def contradicted(self) -> list[str]:
        """Variants that differ significantly from the baseline in the other direction."""
        return [row.variant for row in self.rows if row.agrees is False and row.significant]

    def to_json(self) -> dict[str, Any]:
        rows = [row._asdict() for row in self.rows]
        return {"measure": self.metric.key, "rank_correlation": self.rank_correlation, "n": len(rows), "rows": rows}


def comparisons(sweep: SweepResult, findings: TestFindings) -> list[Comparison]:
    """One for each metric of which anything is published."""
    variants, found = {variant.name: variant for variant in sweep.variants}, []
    for compared in findings.by_metric.values():
        metric, rows = compared.metric, []
        for name, ours in compared.differences.items():
            pair = (variants[name], variants[variants[name].baseline])
            scores = [variant.published.get(metric.key, 0) for variant in pair]
            if min(scores) > 0:
                published = metric.published_difference(*scores)
                verified = not any(metric.key in variant.unverified for variant in pair)
                agrees = ours.value * published > 0 if ours.value * published else None
                rows.append(VariantComparison(name, ours.value, published, verified, agrees, ours.significant))
        if rows:
            found.append(Comparison(metric, rows))
    return found


def table(metric: Metric, rows: Sequence[VariantComparison]) -> Table:
    """Differences from the baseline by one metric, ours and as published."""
    signs = {True: "yes", False: "no", None: "–"}
    published = [Cell(metric.change(r.published) + UNVERIFIED * (not r.verified), r.published) for r in rows]
    columns = [
        Column(f"Δ {metric.title} ours", [Cell(metric.change(row.difference), row.difference) for row in rows]),
        Column(f"Δ {metric.title} published", published),
        Column("same sign", [Cell(signs[row.agrees]) for row in rows]),
        Column("significant", [Cell(signs[row.significant]) for row in rows]),
    ]
    return Table([Row(row.variant) for row in rows], columns)
