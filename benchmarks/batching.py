"""Batches on one core: padding, speed of assembly, and the cost of planning an epoch.

python benchmarks/batching.py [number of pairs, 4,500,000 if not given]

The lengths are distributed like the WMT 2014 English-German training set's, in tokens: log-normal with a mean of
28, a target within about a fifth of its source, and a tail up to 250.
"""

import sys
import time
import tracemalloc

import numpy as np

from transformer_jax.data.batching import BucketBatches, PackedBatches, TrainingBatches
from transformer_jax.data.prepared import TokenPairs

MEAN, SPREAD, DISAGREEMENT, LONGEST = 28, 0.55, 0.2, 250
TOKENS_PER_BATCH = 25_000
STEPS_TIMED = 200


def wmt_like_pairs(count: int) -> TokenPairs:
    random = np.random.default_rng(0)
    source = np.exp(random.normal(np.log(MEAN) - SPREAD**2 / 2, SPREAD, count))
    target = source * np.exp(random.normal(0, DISAGREEMENT, count))
    sides = []
    for lengths in (source, target):
        offsets = np.concatenate([[0], np.cumsum(np.clip(np.rint(lengths), 1, LONGEST - 1).astype(np.int64))])
        sides += [np.arange(offsets[-1], dtype=np.uint16), offsets]
    return TokenPairs(*sides)


def planned(kind: type[TrainingBatches], pairs: TokenPairs, **options: int) -> tuple[TrainingBatches, str]:
    """The batches with the plan of epoch 0 made, and the time and memory that took."""
    tracemalloc.start()
    begin = time.perf_counter()
    batches = kind(pairs, tokens_per_batch=TOKENS_PER_BATCH, max_length=LONGEST, seed=0, **options)
    batches.batch(0)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    batches.batch(batches.steps_per_epoch)
    another = time.perf_counter() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return batches, f"first epoch planned in {first:.1f} s, another in {another:.1f} s, peak {peak / 1e6:,.0f} MB"


def tokens_per_second(batches: TrainingBatches) -> float:
    """Tokens of both sides that are not padding."""
    begin = time.perf_counter()
    made = [batches.batch(step) for step in range(STEPS_TIMED)]
    seconds = time.perf_counter() - begin
    return sum(int((batch.source != 0).sum() + (batch.target_output != 0).sum()) for batch in made) / seconds


if __name__ == "__main__":
    pairs = wmt_like_pairs(int(sys.argv[1]) if len(sys.argv) > 1 else 4_500_000)
    means = pairs.source_lengths.mean(), pairs.target_lengths.mean()
    print(f"{len(pairs):,} pairs, on average {means[0]:.1f} source and {means[1]:.1f} target pieces")
    for num_shapes in (4, 8, 16, 20, 32):
        batches, cost = planned(BucketBatches, pairs, num_shapes=num_shapes)
        print(f"\nbuckets, {num_shapes} shapes: {cost}; {tokens_per_second(batches) / 1e6:.1f} M tokens/s assembled")
        print(batches.statistics())
    batches, cost = planned(PackedBatches, pairs)
    print(f"\npacking: {cost}; {tokens_per_second(batches) / 1e6:.1f} M tokens/s assembled")
    print(batches.statistics())
