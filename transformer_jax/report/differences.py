"""The differences from the baseline as plots: each variant's, with its interval."""

from transformer_jax.report.figures import Forest, Interval
from transformer_jax.report.findings import TestFindings
from transformer_jax.report.metrics import BLEU, METRICS, PERPLEXITY, Metric
from transformer_jax.report.results import SweepResult


def forests(sweep: SweepResult, findings: TestFindings) -> dict[str, Forest]:
    """A plot for each metric by which anything is compared, by the metric's key."""
    return {metric.key: _forest(sweep, findings, metric) for metric in METRICS if findings.differences(metric)}


def _forest(sweep: SweepResult, findings: TestFindings, metric: Metric) -> Forest:
    rows = []
    for name, found in findings.differences(metric).items():
        tip = f"{metric.change(found.value)} {metric.interval(found)}, p = {found.corrected_p:.3g}"
        tip += f", seeds {found.seeds[0]} and {found.seeds[1]}"
        published = metric.published_difference(sweep.published(name, metric.key))
        tip += "" if published is None else f"; published {metric.change(published)}"
        rows.append(Interval(name, found.value, found.low, found.high, tip, metric.mark(found), published))
    x = "Δ BLEU (better →)" if metric is BLEU else f"Δ perplexity per {findings.unit} in %, log scale (← better)"
    return Forest(f"{metric.name}: differences from the baseline", rows, x, is_log=metric is PERPLEXITY)
