"""Axes with room for all values, and forest plots."""

import math
import re

import pytest

from transformer_jax.report.figures import BAND, Axis, Curve, Curves, Forest, Interval, curves, forest, tick_text


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[0.001, 1e18], [5.0, 5.0], [3.1, 3.2], [1e-9, 2e-9], [-2.0, 7.0], [], [0.0]])
def test_axis_has_room_for_all_values_and_ticks_inside(values, log):
    axis = Axis.around(values, 0, 100, log)
    ticks = axis.ticks()
    assert all(0 <= axis.at(value) <= 100 for value in values if value > 0 or not log)
    assert all(-1e-6 <= axis.at(tick) <= 100 + 1e-6 for tick in ticks)
    assert 1 <= len(ticks) <= 12


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.88, 1.12, ["−10", "−5", "0", "5", "10"]),
        (0.62, 1.75, ["−20", "0", "20", "40", "60"]),
        (0.009, 110.0, ["−99", "−90", "0", "900", "9.9k"]),
        (0.0, math.inf, None),
    ],
)
def test_ticks_of_logarithms_are_percents_at_their_places(low, high, texts):
    axis = Axis(math.log(low) if low else -800.0, min(math.log(high), 800.0), 0, 100)
    ticks = Forest("", [], "Δ", is_log=True).ticks(axis)
    assert 3 <= len(ticks) <= 12
    if texts:
        assert list(ticks.values()) == texts
        assert ticks[max(ticks)] == tick_text(100 * (math.exp(max(ticks)) - 1))


def test_signs_are_those_of_the_tables():
    assert Forest("", [], "Δ").ticks(Axis(-45.0, 5.0, 0, 100))[-40.0] == "−40"


def test_a_long_name_is_whole_and_curves_differ_by_their_dashes():
    name = "RMSNorm_rotary, 30 letters wide"
    assert f">{name}</text>" in forest(Forest("", [Interval(name, 0.5, 0.2, 0.8, "")], "Δ")).image
    lines = [Curve(letter, [1, 2], [2.0, 1.0], [1.0, 0.5], [3.0, 2.0]) for letter in "abcd"]
    figure = curves(Curves("", lines, "updates", "loss"))
    assert len({key.dashes for key in figure.legend[:4]}) == 4 and figure.legend[4].name == BAND
    assert all(f'stroke-dasharray="{key.dashes or "none"}"' in figure.image for key in figure.legend[:4])


def test_one_wide_interval_does_not_squeeze_the_others():
    rows = [Interval(f"v{n}", 0.5, 0.2, 0.8, "") for n in range(5)] + [Interval("wide", 0.1, -900.0, 900.0, "")]
    image = forest(Forest("", rows, "Δ")).image
    drawn = re.findall(r'class="interval" x1="([\d.]+)" x2="([\d.]+)"', image)
    assert image.count(" -4v8z") == 2  # arrowheads where it goes on
    widths = [float(right) - float(left) for left, right in drawn]
    assert min(widths) > 40  # of 438
    assert 400 < max(widths) <= 448  # to the edges and no further
    alone = forest(Forest("", [Interval("v", -2.5, -12.0, 7.0, "")], "Δ")).image
    left, right = map(float, re.search(r'class="interval" x1="([\d.]+)" x2="([\d.]+)"', alone).groups())
    assert 10 < left < right < 448  # whole
