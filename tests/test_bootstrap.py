"""The bootstrap: intervals where they are known, p-values against exact enumeration and sacreBLEU."""

import itertools
import math

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from transformer_jax import bootstrap
from transformer_jax.bootstrap import Scored, counts, interval, p_value, paired_bootstrap
from transformer_jax.evaluation import matches, measures

PRIME = 13
LETTERS = [*"abcdefghij"]


def test_counts_by_group_by_hand():
    """A prime number of examples, a group of one, and a label that only some examples have."""
    right = [1, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    groups = [{"kind": "long" if i % 2 else "short"} | ({"category": "alone"} if i == 3 else {}) for i in range(PRIME)]
    found = counts(right, groups)
    assert (found["right"], found["total"], found["resampled"]) == (5, PRIME, "examples")
    by_kind = {value: (c["right"], c["total"]) for value, c in found["groups"]["kind"].items()}
    assert by_kind == {"long": (2, 6), "short": (3, 7)}
    alone = {"right": 1, "total": 1, "low": None, "high": None}  # one example has no spread
    assert found["groups"]["category"] == {"alone": alone}
    assert found["low"] < 500 / PRIME < found["high"]
    assert "groups" not in counts(right)


@pytest.mark.parametrize(
    ("clusters", "ends"),
    [
        (None, (40, 60)),  # the 2.5 % and 97.5 % quantiles of a binomial distribution of 100, p = 0.5
        ([str(i % 10) for i in range(100)], (20, 80)),  # of 10, p = 0.5
        (["one"] * 100, None),
    ],
)
def test_intervals_over_examples_and_clusters(clusters, ends):
    assert interval([i % 2 for i in range(100)], clusters) == ends


def test_clusters_of_different_sizes_are_drawn_whole():
    """Of a cluster of 3 right ones and one of 1 wrong one: 100, 75 or 0 %."""
    assert interval([1, 1, 1, 0], ["a", "a", "a", "b"]) == (0, 100)
    assert interval([]) is None


def random_texts(dice, count, words, right):
    """References, and hypotheses with a given number of right words."""
    references = [" ".join(dice.choice(words, dice.integers(3, 9))) for _ in range(count)]
    systems = [
        [" ".join(w if dice.random() < share else str(dice.choice(words)) for w in r.split()) for r in references]
        for share in right
    ]
    return references, *systems


def test_equal_systems_do_not_differ():
    """Ties are no wins: identical systems, and others that happen to score alike."""
    references = ["the cat sat on the mat"] * 10
    system = ["the cat sat on a mat"] * 5 + references[:5]
    for other in (system, system[::-1]):
        found = paired_bootstrap(system, other, references)
        assert [found[name]["p_value"] for name in ("bleu", "chrf", "exact_match")] == [1.0, 1.0, 1.0]


def test_one_sentence_says_nothing():
    right, other = ["the cat sat on the mat now"], ["a dog sat on the mat now"]
    found = paired_bootstrap(right, other, right)
    assert [compared["p_value"] for compared in found.values()] == [1.0, 1.0, 1.0]


def test_the_p_value_is_that_of_all_resamples():
    """Of four sentences, every one of the 256 resamples; drawn, the same but for the draw."""
    references, this, other = random_texts(np.random.default_rng(5), 4, LETTERS, (0.9, 0.7))
    difference = measures(this, references)["bleu"].score - measures(other, references)["bleu"].score
    found = []
    for places in itertools.product(range(4), repeat=4):
        texts = [[system[place] for place in places] for system in (this, other, references)]
        found.append(measures(texts[0], texts[2])["bleu"].score - measures(texts[1], texts[2])["bleu"].score)
    exact = np.mean([abs(value - difference) >= abs(difference) - 1e-9 for value in found])
    assert p_value(difference, found) == pytest.approx((256 * exact + 1) / 257)
    drawn = paired_bootstrap(this, other, references)["bleu"]["p_value"]
    assert 0.02 < exact < 0.98 and abs(drawn - exact) < 4 * math.sqrt(exact * (1 - exact) / 1000) + 0.001


def test_a_difference_that_is_no_number_has_no_p_value():
    texts = ["a b c d e", "a b c d f g"]
    scored = Scored([1.0, math.nan], [0.0, 0.0], "s")
    assert math.isnan(paired_bootstrap(texts, texts, texts, metrics={"m": scored})["m"]["p_value"])
    with pytest.raises(ValueError, match="1 hypotheses and 2 references"):
        paired_bootstrap(texts, texts[:1], texts)


def test_exact_matches_are_compared_over_clusters():
    """Forty forms of four lemmas: over examples the difference seems certain, over lemmas it is not."""
    references = [f"form {number}" for number in range(40)]
    this = [*references[:20], *["?"] * 20]  # two lemmas entirely right
    other = [*["?"] * 30, *references[30:]]  # another one
    lemmas = [str(number // 10) for number in range(40)]
    apart, joined = (paired_bootstrap(this, other, references, c)["exact_match"] for c in (None, lemmas))
    assert (apart["this"], apart["other"]) == (joined["this"], joined["other"]) == (50.0, 25.0)
    differences = [0.25 * 100 * sum(draw) for draw in itertools.product((1, 1, 0, -1), repeat=4)]
    exact = np.mean([abs(value - 25) >= 25 for value in differences])
    assert abs(joined["p_value"] - exact) < 4 * math.sqrt(exact * (1 - exact) / 1000) + 0.001
    assert apart["p_value"] < 0.2 < joined["p_value"] and "|clusters|" in joined["signature"]
    assert paired_bootstrap(this, other, references, ["one"] * 40)["exact_match"]["p_value"] == 1.0


def test_scores_of_sentences_are_compared_as_exact_matches_are():
    """A metric that gives 100 for a match and 0 otherwise is exact match, over examples and over clusters."""
    references, this, other = random_texts(np.random.default_rng(3), 30, LETTERS, (0.9, 0.8))
    scores = [100 * np.array(matches(texts, references)) for texts in (this, other)]
    for clusters in (None, [str(number // 3) for number in range(30)]):
        found = paired_bootstrap(this, other, references, clusters, metrics={"mine": Scored(*scores, "mine")})
        assert found["mine"] | {"signature": ""} == found["exact_match"] | {"signature": ""}
        assert found["mine"]["signature"].startswith("mine|seed:")


def test_the_samples_are_those_of_sacrebleu(monkeypatch):
    """By sacreBLEU's formula they give sacreBLEU's p-value; ours is two-sided, and about twice as large where small."""
    references, this, other = random_texts(np.random.default_rng(1), 150, LETTERS, (0.62, 0.57))
    systems = [("other", other), ("this", this)]
    metrics = {"BLEU": BLEU(force=True), "chrF2": CHRF()}
    _, theirs = PairedTest(systems, metrics, [references], test_type="bs", n_samples=1000)()
    taken = {}
    monkeypatch.setattr(bootstrap, "p_value", lambda difference, drawn: taken.update({difference: drawn}) or 0.0)
    ours = paired_bootstrap(this, other, references)
    for (difference, drawn), name in zip([*taken.items()][:2], ("BLEU", "chrF2"), strict=True):
        sizes = np.abs(drawn)
        their_formula = (np.sum(sizes - sizes.mean() > abs(difference)) + 1) / 1001
        assert their_formula == theirs[name][1].p_value
        assert 1.4 * their_formula < p_value(difference, drawn) < 2.6 * their_formula
        assert ours[{"BLEU": "bleu", "chrF2": "chrf"}[name]]["this"] == theirs[name][1].score


def test_the_p_value_has_its_false_positive_rate():
    """Of two systems that are equally good, few differ: 5 % at p < 0.05 (sacreBLEU's formula has about 10 %)."""
    dice = np.random.default_rng(0)
    alarms = 0
    for _ in range(400):
        values = dice.standard_normal(100)
        drawn = dice.multinomial(100, np.full(100, 0.01), size=500) @ values / 100
        alarms += p_value(values.mean(), drawn) < 0.05
    assert 8 <= alarms <= 34  # 20 and three standard deviations
