"""A custom corpus: sums and their results. Here it is generated; it could also be read from a file."""

import random


def sums(split):
    """The pairs of "train", "valid" or "test": 12+7 -> 19, every sum of two numbers below 100 in one of them."""
    pairs = [(f"{a}+{b}", str(a + b)) for a in range(100) for b in range(100)]
    random.Random(0).shuffle(pairs)
    parts = {"valid": pairs[:500], "test": pairs[500:1000], "train": pairs[1000:]}
    return parts[split]
