"""Our differences from the baseline beside those of the published scores: their signs, and their ranks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer_jax.report.document import Block, Cell, Column, Filled, Table, Text, rows_of
from transformer_jax.report.findings import TestFindings
from transformer_jax.report.metrics import METRICS, Metric
from transformer_jax.report.results import SweepResult
from transformer_jax.report.statistics import Difference, rank_correlation
from transformer_jax.report.table import difference_cell


class Row(NamedTuple):
    """One variant by one metric."""

    variant: str
    ours: Difference
    published: float

    @property
    def agrees(self) -> bool | None:
        """Whether both differences have one sign; None if either is zero."""
        product = self.ours.value * self.published
        return product > 0 if product else None


class Comparison(NamedTuple):
    """All variants whose score, and whose baseline's, is published."""

    metric: Metric
    rows: Sequence[Row]

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
        return text

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "variant": row.variant,
                "difference": row.ours.value,
                "published": row.published,
                "agrees": row.agrees,
                "significant": row.ours.significant,
            }
            for row in self.rows
        ]
        return {"measure": self.metric.key, "rank_correlation": self.rank_correlation, "n": len(rows), "rows": rows}


def comparisons(sweep: SweepResult, findings: TestFindings) -> list[Comparison]:
    """One for each metric of which anything is published. Perplexities are compared by their logarithms."""
    found = []
    for metric in METRICS:
        rows = []
        for name, difference in findings.differences(metric).items():
            published = metric.published_difference(sweep.published(name, metric.key))
            if published is not None:
                rows.append(Row(name, difference, published))
        if rows:
            found.append(Comparison(metric, rows))
    return found


def blocks(found: Sequence[Comparison]) -> list[Block]:
    """The report's part about published scores; empty if there are none."""
    if not found:
        return []
    names = list(dict.fromkeys(row.variant for comparison in found for row in comparison.rows))
    columns: list[Filled] = []
    for metric, rows in found:
        by_name = {row.variant: row for row in rows}
        columns += _columns(metric, [by_name.get(name) for name in names])
    about = "Differences from the baseline, ours and as published."
    return [Text(about), Table([column for column, _ in columns], rows_of(names, columns))]


def _columns(metric: Metric, rows: Sequence[Row | None]) -> list[Filled]:
    signs = {True: "yes", False: "no", None: "–"}
    cells = [
        (
            difference_cell(metric, row.ours),
            Cell(metric.change(row.published), row.published),
            Cell(signs[row.agrees], signs[row.agrees]),
            Cell(signs[row.ours.significant], signs[row.ours.significant]),
        )
        if row
        else [Cell()] * 4
        for row in rows
    ]
    titles = ("Δ {} ours", "Δ {} published", "{} same sign", "{} significant")
    columns = [Column(title.format(metric.title)) for title in titles]
    return list(zip(columns, zip(*cells, strict=True), strict=True))
