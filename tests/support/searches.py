"""Hand-written models to search over: every prefix has its own row of logits, so that all targets can be enumerated."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.search.beam import beam_search, gather_beams
from transformer_jax.search.sampling import greedy_search, sample_search
from transformer_jax.search.targets import SearchRules

PAD, BOS, EOS, A, B = range(5)
VOCABULARY = 5
LENGTH = 6  # at most five of A and B, then <eos>: 63 targets
NODES = 2**LENGTH
IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}
WIDE = 64
# One shape for nearly all tests: compiling is what takes their time.
BATCH = 16
LONGEST_PREFIX = 3

# The model: a prefix of As and Bs is a node of a binary tree (the root is 1), a sentence is a table of node -> logits.


def step(tokens_R, cache):
    """The cache: each row's node, and each sentence's table once, however many rows the sentence has."""
    table_BNV, node_R = cache["table_BNV"], cache["node_R"]
    node_R = jnp.where(tokens_R == BOS, 1, jnp.clip(2 * node_R + tokens_R - A, 0, NODES - 1))
    sentence_R = jnp.arange(tokens_R.size) // (tokens_R.size // table_BNV.shape[0])
    return table_BNV[sentence_R, node_R], {"table_BNV": table_BNV, "node_R": node_R}


def start(tables, rows_each=1):
    return {"table_BNV": jnp.asarray(tables), "node_R": jnp.zeros(len(tables) * rows_each, jnp.int32)}


def tables_of(seed, count=BATCH, scale=2.0):
    return np.random.default_rng(seed).normal(0, scale, (count, NODES, VOCABULARY)).astype(np.float32)


RULES = {field.name for field in dataclasses.fields(SearchRules)}


def searched(search, step, cache, *keys, **options):
    """The search, with the options of its rules and its own given together."""
    if search is beam_search:
        options = {"reorder": functools.partial(gather_beams, axes={"table_BNV": None, "node_R": 0}), **options}
    rules = {"max_length": LENGTH, **IDS, **{name: options.pop(name) for name in RULES & options.keys()}}
    return search(step, cache, SearchRules(**rules), *keys, **options)


@functools.partial(jax.jit, static_argnames=("search", "options"))
def compiled(search, tables, traced, keys, options):
    options = dict(options)
    cache = start(tables, options.get("beam_size", 1))
    return searched(search, step, cache, *keys, batch_size=BATCH, **traced, **options)


def run(search, tables, *keys, min_length=0, max_lengths=LENGTH, prefix=None, **options):
    """The search, compiled once for each set of options, on any number of tables up to BATCH."""
    count = len(tables)
    assert count <= BATCH

    def filled(rows):
        return np.concatenate([rows, np.broadcast_to(rows[:1], (BATCH - count, *rows.shape[1:]))])

    prefix = np.full((count, 0), PAD) if prefix is None else np.asarray(prefix)
    prefix = np.pad(prefix, ((0, 0), (0, LONGEST_PREFIX - prefix.shape[1])), constant_values=PAD)
    traced = {"min_length": min_length, "max_lengths": max_lengths}
    traced = {name: filled(np.broadcast_to(lengths, count)) for name, lengths in traced.items()} | {
        "prefix": filled(prefix)
    }
    result = compiled(search, filled(tables), traced, keys, tuple(sorted(options.items())))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], result)


def beam(tables, beam_size=4, **options):
    return run(beam_search, tables, beam_size=beam_size, **options)


def greedy(tables, **options):
    return run(greedy_search, tables, **options)


def sample(tables, keys, **options):
    return run(sample_search, tables, keys, **options)


# The same, written again slowly: in float64, one sentence and one hypothesis at a time.


def penalty(name, alpha, n):
    return {"gnmt": ((5 + n) / 6) ** alpha, "average": n**alpha, "none": 1.0}[name]


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def node_of(target):
    return functools.reduce(lambda node, token: 2 * node + token - A, target, 1)


def log_probability(table, target):
    return sum(log_softmax(table[node_of(target[:t])])[token] for t, token in enumerate(target))


def every_target(limit, min_length=0, prefix=()):
    for n in range(max(1, min_length), limit + 1):
        for ordinary in itertools.product([A, B], repeat=n - 1):
            if ordinary[: len(prefix)] == tuple(prefix):
                yield (*ordinary, EOS)


def brute_force(table, name, alpha, limit=LENGTH, **options):
    scored = [(log_probability(table, y) / penalty(name, alpha, len(y)), y) for y in every_target(limit, **options)]
    return sorted(scored, reverse=True)


def slow_beam(table, beam_size, name, alpha, n_best, limit):
    """Beam search as docs/search.md states it, run to the end."""
    live, found = [(0.0, ())], []
    for n in range(1, limit + 1):
        candidates = []
        for parent, (total, target) in enumerate(live):
            gains = log_softmax(table[node_of(target)])
            for token in [EOS] if n == limit else [EOS, A, B]:
                candidates.append((total + gains[token], -parent, -token, (*target, token)))
        candidates.sort(reverse=True)
        found += [(c[0] / penalty(name, alpha, n), c[3]) for c in candidates[:beam_size] if c[3][-1] == EOS]
        live = [(c[0], c[3]) for c in candidates if c[3][-1] != EOS][:beam_size]
    return sorted(found, key=lambda hypothesis: -hypothesis[0])[:n_best]


def targets_of(result, sentence):
    """The n-best of one sentence as tuples of tokens; checks that what follows each is padding."""
    tokens_NT, lengths_N = result.tokens_BNT[sentence], result.lengths_BN[sentence]
    for tokens_T, length in zip(tokens_NT, lengths_N, strict=True):
        assert (tokens_T[length:] == PAD).all()
    return [tuple(tokens_T[:length].tolist()) for tokens_T, length in zip(tokens_NT, lengths_N, strict=True)]


def assert_same(one, other):
    for name, left, right in zip(one._fields, one, other, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


def assert_found(result, sentence, expected):
    """The result's n-best of a sentence are `expected`, a sorted list of (score, target), if there are so many."""
    count = len(expected)
    assert targets_of(result, sentence)[:count] == [target for _, target in expected]
    np.testing.assert_allclose(result.scores_BN[sentence, :count], [score for score, _ in expected], atol=1e-5)
    np.testing.assert_array_equal(result.finished_BN[sentence], np.arange(result.finished_BN.shape[1]) < count)
