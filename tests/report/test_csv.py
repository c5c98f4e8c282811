"""The CSV: its numbers are those of the other formats."""

import json

import numpy as np
import pytest

from tests.support.finished_sweeps import record_file


def test_means_and_deviations_are_over_seeds(whole):
    line = next(line for line in whole.lines if (line["test"], line["variant"]) == ("test_long", "A h=1"))
    records = [record_file(whole.content.sweep.path, "A h=1", seed, "test_long") for seed in range(3)]
    scores = [json.loads(record.read_text())["measures"]["bleu"]["score"] for record in records]
    assert float(line["bleu_mean"]) == pytest.approx(np.mean(scores))
    assert float(line["bleu_sd"]) == pytest.approx(np.std(scores, ddof=1))
    shown = f"{np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}"
    assert shown in whole.page and shown in whole.markdown


def test_all_formats_have_the_same_difference(whole):
    line = next(line for line in whole.lines if (line["test"], line["variant"]) == ("test", "A h=1"))
    found = whole.json["tests"][0]["bleu_differences"]["A h=1"]
    assert float(line["bleu_difference_value"]) == found["value"]
    assert float(line["bleu_difference_corrected_p"]) == found["corrected_p"]
    value, interval = f"{found['value']:+.2f}", f"[{found['low']:+.2f}, {found['high']:+.2f}]"
    assert f"**{value} {interval}**".replace("-", "−") in whole.markdown
    assert f">{value}<small>{interval}</small>".replace("-", "−") in whole.page
    assert found["seeds"] == [3, 3] and found["seed_spread"] == "own"
    assert found["resolved"] is True  # the name of this key in reports of all versions
