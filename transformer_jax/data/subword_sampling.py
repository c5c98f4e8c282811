"""Subword regularization: another segmentation of each training sentence in every epoch, by BPE-dropout (Provilkov et
al. 2020) or sampled from a unigram model (Kudo 2018).

A sample is a pure function of the stored tokens, the seed, the epoch and the number of the pair. Batches need shapes
that are known before: a sample that is longer than its pair was planned for is replaced by the stored tokens.
"""

import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Sequence

import numpy as np

from transformer_jax.data.tokenizer import SPACE_MARK, SentencePieceTokenizer

# Pairs whose samples say how long samples are, and the quantile of these lengths that sentences are planned with.
MEASURED, PLANNED = 1000, 0.99
# A word with the mark of the space before it, as SentencePiece has them.
WORD = re.compile(f"{SPACE_MARK}?[^{SPACE_MARK}]+|{SPACE_MARK}")
Segment = Callable[[str, random.Random], list[str]]


class SubwordSampler:
    """Samples segmentations by one tokenizer; `strength` is BPE's rate of dropped merges, or unigram's alpha."""

    def __init__(self, tokenizer: SentencePieceTokenizer, kind: str, strength: float):
        self._scores, self.settings = tokenizer.scores, (kind, strength)
        self._tokenizer, self._ids = tokenizer, {piece: i for i, piece in enumerate(tokenizer.all_pieces)}
        if kind == "bpe":
            self._segment: Segment = functools.partial(_with_dropout, self._scores, strength)
        else:
            self._segment = functools.partial(_sampled, self._scores, max(map(len, self._scores)), strength)

    def __call__(self, ids: Sequence[int], key: str) -> list[int]:
        """Another segmentation of the text of these tokens. Bytes and unknown tokens stay as they are."""
        dice, found = random.Random(key), list[int]()
        is_ordinary = [self._tokenizer.all_pieces[i] in self._scores for i in ids]
        for ordinary, run in itertools.groupby(zip(ids, is_ordinary, strict=True), key=lambda each: each[1]):
            tokens = [token for token, _ in run]
            if ordinary:
                text = "".join(self._tokenizer.pieces(tokens))
                tokens = [self._ids[piece] for word in WORD.findall(text) for piece in self._segment(word, dice)]
            found += tokens
        return found

    def growth(self, tokens: np.ndarray, offsets: np.ndarray) -> float:
        """How many times longer nearly all samples are at most than the stored sentences."""
        count = len(offsets) - 1
        numbers = range(0, count, max(1, count // MEASURED))
        sentences = [tokens[offsets[number] : offsets[number + 1]].tolist() for number in numbers]
        grown = [len(self(ids, f"{number}")) / len(ids) for number, ids in zip(numbers, sentences, strict=True) if ids]
        return max(1.0, float(np.quantile(grown, PLANNED))) if grown else 1.0


def _with_dropout(scores: dict[str, float], rate: float, word: str, dice: random.Random) -> list[str]:
    """The pieces after all merges of BPE, each of which is left out with this probability whenever it could be made."""
    pieces = list(word)
    while True:
        possible = [
            (scores[one + other], -place)
            for place, (one, other) in enumerate(itertools.pairwise(pieces))
            if one + other in scores and dice.random() >= rate
        ]
        if not possible:
            return pieces
        place = -max(possible)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


def _sampled(scores: dict[str, float], longest: int, alpha: float, word: str, dice: random.Random) -> list[str]:
    """A segmentation with a probability proportional to the unigram model's to the power alpha.

    `longest` is the length of the longest piece: a sentence without spaces is one long word.
    """
    # log_sums[end] is the log of the sum over all segmentations of word[:end].
    log_sums, ends = [0.0], range(1, len(word) + 1)
    starts = {end: [s for s in range(max(0, end - longest), end) if word[s:end] in scores] for end in ends}
    for end in ends:
        log_sums.append(_log_sum([log_sums[start] + alpha * scores[word[start:end]] for start in starts[end]]))
    pieces, end = list[str](), len(word)
    while end:
        weights = [math.exp(log_sums[s] + alpha * scores[word[s:end]] - log_sums[end]) for s in starts[end]]
        (start,) = dice.choices(starts[end], weights)
        pieces.append(word[start:end])
        end = start
    return pieces[::-1]


def _log_sum(values: Sequence[float]) -> float:
    largest = max(values, default=-math.inf)
    return largest if largest == -math.inf else largest + math.log(sum(math.exp(value - largest) for value in values))
