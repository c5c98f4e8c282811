"""Learning curves: the mean and the range over seeds."""

import json

from tests.support.finished_sweeps import seed_folder
from transformer_jax.report.curves import MOST_POINTS, curve
from transformer_jax.report.results import load_sweep


def test_curve_is_the_mean_in_a_band_from_the_lowest_to_the_highest(sweep):
    for seed in (0, 1):
        lines = [json.dumps({"step": step, "valid_perplexity": step + seed}) for step in range(1, 1001)]
        (seed_folder(sweep, "A h=1", seed) / "metrics.jsonl").write_text("\n".join(lines))
    variants = {variant.name: variant for variant in load_sweep(sweep).variants}
    line = curve(variants["A h=1"], "valid_perplexity")
    assert len(line.x) == MOST_POINTS and line.x[0] == 1 and line.x[-1] == 1000
    assert line.y == [step + 0.5 for step in line.x]
    assert (list(line.low), list(line.high)) == (list(line.x), [step + 1 for step in line.x])
    assert curve(variants["A h=1"], "bleu") is None
