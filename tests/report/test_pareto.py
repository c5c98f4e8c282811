"""Scores at equal size and at equal compute."""

import numpy as np
import pytest

from tests.support.finished_sweeps import Report, make_sweep, variant
from transformer_jax.report.findings import find
from transformer_jax.report.metrics import BLEU, PERPLEXITY
from transformer_jax.report.pareto import COSTS, front
from transformer_jax.report.results import load_sweep


def test_front_and_line_through_resized_models(tmp_path):
    sizes = [variant(f"d={d}", 0.4 * np.log(d), 1000 * d, changes={"model.d_model": d}) for d in (2, 4, 8)]
    odd = variant("odd", -1.0, 4000, changes={"model.num_heads": 1})
    sweep = load_sweep(make_sweep(tmp_path, (variant("base", 0.0, 1000), *sizes, odd)))
    found = front(sweep, find(sweep)[0], "parameters", PERPLEXITY)
    assert found.resized == ("base", "d=2", "d=4", "d=8")
    assert "odd" not in found.leading and {"base", "d=8"} <= found.leading
    costs, scores = zip(*(found.points[name] for name in found.resized), strict=True)
    assert found.line == pytest.approx(tuple(np.polyfit(np.log(costs), scores, 1)))
    assert found.beyond("odd") == pytest.approx(found.points["odd"][1] - np.polyval(found.line, np.log(4000)))
    assert found.beyond("odd") > 0.1
    assert found.expected(500) is None  # nothing is known so far out


def test_a_model_that_trains_longer_is_not_a_larger_one(tmp_path):
    """It has the baseline's parameters and a better score; only against compute is that what to expect."""
    sizes = [variant(f"d={d}", 0.4 * np.log(d), 1000 * d, changes={"model.d_model": d}) for d in (2, 4)]
    longer = variant("longer", 2.0, 1000, training_flops=8e10, changes={"train.steps": 8000})
    path = make_sweep(tmp_path, (variant("base", 0.0, 1000), *sizes, longer))
    sweep = load_sweep(path)
    by = {cost: front(sweep, find(sweep)[0], cost, BLEU).resized for cost in COSTS}
    assert by == {"parameters": ("base", "d=2", "d=4"), "training_flops": ("base", "d=2", "d=4", "longer")}
    names = "against parameters: base, d=2, d=4; against training FLOPs: base, d=2, d=4, longer"
    assert f"also in how long they train ({names})" in Report(path).page


def test_sizes_within_a_few_percent_are_equal(tmp_path):
    """Sizes within 5 % are the same size; of more, the best mean leads, but is shown to be best only if it is."""
    variants = (
        variant("base", 0.0, 200_000),
        variant("worst", -1.0, 199_600, slug="worst"),
        variant("alike", 0.02, 200_000, slug="alike"),
        variant("small", -1.2, 150_000, slug="small"),
    )
    report = Report(make_sweep(tmp_path, variants))
    found = report.content.fronts[0]
    assert found.metric is BLEU and "worst" not in found.leading and "small" in found.leading
    assert (
        len(found.leading & {"base", "alike"}) == 1 and not found.shown
    )  # one of the two has the higher mean, by chance
    assert "- BLEU by parameters: Pareto front of the means: small, " in report.markdown
    assert "; significantly the best: none." in report.markdown
    assert "Costs within 5 % of each other count as the same." in report.markdown and "◇" in report.page
    assert report.json["sizes"][0]["shown"] == []


def test_best_of_its_size_is_shown_by_significant_differences(tmp_path):
    variants = (
        variant("base", 0.0, 200_000),
        variant("good", 1.5, 200_000, slug="good"),
        variant("bad", -1.0, 191_000, slug="bad"),
    )
    found = front(sweep := load_sweep(make_sweep(tmp_path, variants)), find(sweep)[0], "parameters", BLEU)
    assert found.leading == found.shown == {"good"}
    found = front(sweep, find(sweep)[0], "training_flops", PERPLEXITY)
    assert found.leading == found.shown == {"good"}
    # The cheapest has nothing to be better than.
    alone = load_sweep(make_sweep(tmp_path / "alone", (variant("base"), variant("large", 0.0, 300_000, slug="large"))))
    assert "base" not in front(alone, find(alone)[0], "parameters", BLEU).shown
