"""One sample of sentences for all tests of the grammar."""

import pytest

from transformer_jax.grammar import english, german
from transformer_jax.grammar.sampler import SentenceSampler
from transformer_jax.grammar.tree import Sentence


@pytest.fixture(scope="session")
def sampled() -> list[tuple[Sentence, str, str]]:
    """4,500 sentences, a third of them deeply nested."""
    found = []
    for seed, depth, count in (("a", 2, 3_000), ("b", 4, 1_500)):
        sampler = SentenceSampler(seed, depth)
        for _ in range(count):
            sentence = sampler.sentence()
            found.append((sentence, english.render(sentence), german.render(sentence)))
    return found
