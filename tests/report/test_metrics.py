"""How numbers are displayed, and which direction is better."""

import math

import numpy as np
import pytest

from transformer_jax.report.metrics import ALL_TIE, BLEU, EXACT_MATCH, PERPLEXITY, TOO_FEW_SEEDS, deviation, p_text
from transformer_jax.report.statistics import Difference


def difference(value, p=0.01):
    return Difference(value, 0.1, 5.0, value - 0.5, value + 0.5, p, p, 0.4, (3, 3), "own")


def test_bleu_changes_in_points_and_perplexity_in_percent():
    assert BLEU.change(-1.234) == "−1.23"
    assert BLEU.interval(difference(1.0)) == "[+0.50, +1.50]"
    assert PERPLEXITY.change(math.log(1.1)) == "+10.0 %"
    assert PERPLEXITY.interval(difference(0.0)) == "[−39.3, +64.9]"
    assert PERPLEXITY.change(1e4).startswith("+1e+306")  # no overflow


def test_intervals_that_say_nothing_are_replaced_by_the_reason():
    assert BLEU.interval(difference(1.0)._replace(low=-100.0, high=100.0)) == TOO_FEW_SEEDS
    assert PERPLEXITY.interval(difference(0.0)._replace(low=-50.0, high=50.0)) == TOO_FEW_SEEDS
    assert BLEU.interval(difference(1.0)._replace(low=-100.0)) == "[−100.00, +1.50]"
    assert BLEU.interval(difference(0.0)._replace(low=0.0, high=0.0, error=0.0)) == ALL_TIE
    always = difference(100.0)._replace(low=100.0, high=100.0, error=0.0)  # all is right, or all is wrong, in every run
    assert EXACT_MATCH.interval(always) == "[+100.0, +100.0]"


def test_published_differences_are_on_the_scale_of_ours():
    assert BLEU.published_difference(25.0, 26.0) == -1.0
    assert PERPLEXITY.published_difference(5.0, 4.0) == pytest.approx(math.log(5 / 4))


def test_deviation_needs_two_seeds_and_must_not_overflow():
    assert deviation([1.0]) is None and deviation([1e308, -1e308]) is None
    assert deviation([1.0, 3.0]) == pytest.approx(np.sqrt(2))
    assert (p_text(0.0004), p_text(0.25)) == ("< 0.001", "0.250")


def test_what_is_surely_within_the_margin_is_equivalent_though_it_be_significant():
    assert BLEU.mark(difference(1.0)) == "better" and PERPLEXITY.mark(difference(1.0)) == "worse"
    assert BLEU.mark(difference(1.0, p=0.06)) == ""
    found = difference(0.2)._replace(equivalence_p=0.01)
    assert BLEU.mark(found) == "better" and BLEU.verdict(found) == "equivalent"
    assert BLEU.verdict(found._replace(equivalence_p=0.5)) == "better"


def test_detectable_differences_are_signed_and_possible():
    assert BLEU.mde_text(2.0) == "±2.00 BLEU" and BLEU.mde_text(101.0) == ""
    assert EXACT_MATCH.mde_text(3.0) == "±3.0 points of exact match"
    assert PERPLEXITY.mde_text(0.154) == "−14.3 % or +16.6 % of perplexity"
