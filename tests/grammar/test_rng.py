"""The random choices: a fixed sequence, and probabilities as given."""

from collections import Counter

from transformer_jax.grammar.rng import Rng


def test_the_sequence_never_changes():
    rng = Rng("x")
    assert [rng.below(100) for _ in range(5)] == [63, 59, 48, 76, 38]
    assert [Rng("y").below(10**6) for _ in range(2)] == [Rng("y").below(10**6)] * 2


def test_choices_have_the_given_probabilities():
    rng = Rng("shares")
    counts = Counter(rng.weighted((("a", 1.0), ("b", 3.0), ("c", 0.0))) for _ in range(4000))
    assert counts["c"] == 0 and 0.22 < counts["a"] / 4000 < 0.28
    assert 0.27 < sum(rng.chance(0.3) for _ in range(4000)) / 4000 < 0.33
    assert {rng.pick("abc") for _ in range(100)} == set("abc")
