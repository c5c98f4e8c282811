"""A synchronous English -> German grammar: an endless parallel corpus with exactly one right translation a sentence.

A sampler (`sampler.py`) makes a random abstract sentence (`tree.py`) from the
`lexicon.py`; `english.py` and `german.py` put it into words and never see one another's strings. Sentences are tokens
separated by single spaces, punctuation included, and begin in lower case. docs/data.md describes it.
"""

from transformer_jax.grammar.corpus import MAX_TOKENS, CorpusSection, sentence_pairs
from transformer_jax.grammar.sampler import Rng

__all__ = ["MAX_TOKENS", "CorpusSection", "Rng", "sentence_pairs"]
