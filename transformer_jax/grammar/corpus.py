"""The grammar as a stream of pairs, in three sections that cannot share a sentence."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from transformer_jax.grammar import english, german
from transformer_jax.grammar.holdout import is_held_out
from transformer_jax.grammar.sampler import SentenceSampler

# Sentences of the long section exceed this on *both* sides, all others on neither; what lies between is not used.
MAX_TOKENS = 24
MAX_TOKENS_LONG = 60
_DEPTH, _DEPTH_LONG = 2, 4


class Section(enum.Enum):
    """Where a sentence belongs, by its form alone."""

    COMMON = "at most MAX_TOKENS on either side, and no held-out pair"
    LONG = "more than MAX_TOKENS on both sides, more deeply nested, and no held-out pair"
    COMPOSITIONAL = "at most MAX_TOKENS on either side, and at least one held-out pair"


def sentence_pairs(section: Section, seed_text: str) -> Iterator[tuple[str, str]]:
    """An endless stream of (English, German); the same for the same seed text, whoever reads how much of it."""
    is_long = section is Section.LONG
    sampler = SentenceSampler(seed_text, _DEPTH_LONG if is_long else _DEPTH)
    shortest, longest = (MAX_TOKENS + 1, MAX_TOKENS_LONG) if is_long else (1, MAX_TOKENS)
    while True:
        sentence = sampler.sentence()
        if is_held_out(sentence) is not (section is Section.COMPOSITIONAL):
            continue
        pair = english.render(sentence), german.render(sentence)
        if all(shortest <= text.count(" ") + 1 <= longest for text in pair):
            yield pair
