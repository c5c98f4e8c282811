"""Drill: forty faults put into the code one at a time; for each, the tests of that module fail.

A fault that no test sees means a missing test. Each runs in a copy of the repository: -k selects some by name.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.places import ROOT

# A file and the tests that fail; below it faults, each with the text that occurs once in the file and what replaces it.
TEXT = """
model/masks.py: model/test_attention.py
  the causal mask shows the next position
  - jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))
  + jnp.tril(jnp.ones((1, 1, length, length), dtype=bool), k=1)
  the padding mask hides nothing
  - (jnp.asarray(tokens_BS) != pad_id)[:, None, None, :]
  + (jnp.asarray(tokens_BS) >= pad_id)[:, None, None, :]
  packed sentences attend to earlier ones
  - (queries_BT1 == keys_B1S)
  + (queries_BT1 >= keys_B1S)
  masks are combined by or
  - functools.reduce(jnp.logical_and, given)
  + functools.reduce(jnp.logical_or, given)
model/attention.py: model/test_attention.py
  scores are divided by d_k
  - q_BTHK.shape[-1] ** -0.5 if scale is None
  + q_BTHK.shape[-1] ** -1.0 if scale is None
model/products.py: model/test_attention.py
  the gradient of the softmax lacks a term
  - exact * (change - jnp.sum(change * exact, axis=-1, keepdims=True))
  + exact * change
model/masks.py: model/test_attention.py translation/test_beam_cache.py
  a cache slot is missing in the mask
  - (slots_L[None] <= own_T[:, None])
  + (slots_L[None] < own_T[:, None])
model/attention.py: model/test_attention.py model/test_transformer.py
  the head mask is ignored
  - jnp.asarray(context.head_mask).astype(heads_BTHV.dtype)
  + jnp.ones_like(jnp.asarray(context.head_mask)).astype(heads_BTHV.dtype)
model/positions.py: model/test_positions.py
  rotary positions rotate by half
  - first * sin + second * cos
  + first * sin - second * cos
  relative distances are clipped one too early
  - -self.reach, self.reach) + self.reach
  + -self.reach + 1, self.reach - 1) + self.reach
  ALiBi rewards distance
  - return -jnp.asarray(alibi_slopes
  + return jnp.asarray(alibi_slopes
model/dropout.py: model/test_dropout.py
  dropout does not scale what it keeps
  - scale = LEVELS / (LEVELS - threshold)
  + scale = 1.0
model/layers.py: model/test_layers.py
  the gradient of the norm lacks a term
  - rate * (change - along_one - unit * along_unit)
  + rate * (change - along_one)
update/loss.py: update/test_loss.py
  label smoothing over one class too few
  - (classes if self.spread == "all"
  + (classes - 1 if self.spread == "all"
  the gradient of the loss lacks the target
  - (probability_MN - terms.distribution(targets_M, classes)) * weights_M
  + probability_MN * weights_M
  padding counts in the loss
  - nll=jnp.sum(nll * weights)
  + nll=jnp.sum(nll)
  the last tokens of uneven slices are lost
  - missing = -length % count
  + missing, array = 0, array[:, : length // count * count]
update/optimizer.py: update/test_optimizer.py
  the schedule is one step late
  -     update = count + 1
  +     update = count
  biases decay
  - leaf.ndim >= 2
  + leaf.ndim >= 0
update/optimizer.py: update/test_optimizer.py update/test_step.py
  gradients are not clipped
  - optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
  + pass
update/step.py: update/test_step.py
  of an accumulated batch only the last part counts
  - return jax.tree.map(jnp.add, total, summand), None
  + return summand, None
  all parts of a batch share a dropout mask
  - gradient(params, microbatch, jax.random.fold_in(key, number))
  + gradient(params, microbatch, jax.random.fold_in(key, 0))
update/step.py: update/test_sharding.py
  gradients are not summed over devices
  - return jax.lax.psum(gradient, "data" if "fsdp" in spec else sharding.BATCH_AXES)
  + return gradient
search/targets.py: search/test_beam.py
  the GNMT penalty is off by one
  - ((5 + n) / 6)
  + ((6 + n) / 6)
search/targets.py: search
  <eos> is allowed too early
  - jnp.arange(1, max_length + 1)[None, :] < shortest_B
  + jnp.arange(2, max_length + 2)[None, :] < shortest_B
search/beam.py: search
  the cache does not follow the beams
  - return beam, reorder(cache, parents_BK)
  + return beam, cache
search/sampling.py: search/test_sampling.py
  the nucleus lacks the token that reaches top_p
  - mass_before_BC < mass_B[:, None]
  + mass_before_BC + probabilities_BC < mass_B[:, None]
  samples depend on the row in the batch
  - keys_B = keys if keys.ndim else
  + keys_B =
data/buckets.py: data/test_buckets.py data/test_batching.py
  the last batch of an epoch is dropped
  - batches=tuple(-(-size // n)
  + batches=tuple(size // n
data/batching.py: data/test_batching.py
  the decoder's input is not shifted
  - shifted[1:] = ids[:-1]
  + shifted[:] = ids
  positions of packed sentences do not restart
  - laid_out(positions, 0)]
  + laid_out(cells % width, 0)]
data/packing.py: data/test_packing.py data/test_batching.py
  packed rows are too long
  - (target[pairs] <= target_room[rows])
  + (target[pairs] <= target_room[rows] + 1)
data/prefetch.py: data/test_prefetch.py
  batches are prefetched from one step too early
  - itertools.count(start_step)
  + itertools.count(max(start_step - 1, 0))
pictures/pages.py: pictures/test_pages.py
  pages do not escape text
  - autoescape=True
  + autoescape=False
report/statistics.py: report/test_statistics.py
  p-values are not corrected
  - np.minimum(found.p_values_P * len(weights_PG), 1.0)
  + found.p_values_P
  p-values are one-sided
  - return 2 * stdtr(self.df_P, -t)
  + return stdtr(self.df_P, -t)
bootstrap.py: test_bootstrap.py
  the bootstrap leaves out ties
  - distances >= abs(difference) * (1 - ROUNDING)
  + distances > abs(difference)
runs/metrics.py: runs/test_metrics.py
  the lowest score is the best
  - score > best
  + score < best
runs/metrics.py: runs/test_metrics.py training/test_train.py
  patience does not count
  - since += 1
  + since += 0
runs/checkpoint.py: runs/test_checkpoint.py
  damage in a checkpoint is not noticed
  - return jnp.sum(bits * (odd ^ (odd << 16)), dtype=jnp.uint32)
  + return jnp.sum(bits, dtype=jnp.uint32) * 0
"""


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: str


def faults() -> Iterator[Fault]:
    file = tests = ""
    lines = iter(TEXT.strip().splitlines())
    for line in lines:
        if line.startswith("  "):
            yield Fault(line.strip(), file, next(lines)[4:], next(lines)[4:], tests)
        else:
            file, _, tests = line.partition(": ")


FAULTS = list(faults())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    copy = tmp_path_factory.mktemp("faults") / "repository"
    kept_out = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("transformer_jax", "tests", "configs", "experiments", "benchmarks", "docs", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=kept_out)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_is_caught(checkout, fault):
    path = checkout / "transformer_jax" / fault.file
    text = path.read_text()
    assert text.count(fault.old) == 1
    path.write_text(text.replace(fault.old, fault.new))
    try:
        tests = [f"tests/{name}" for name in fault.tests.split()]
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *tests]
        env = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    finally:
        path.write_text(text)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print(f"{fault.name}: {failed}")
    assert done.returncode == 1 and failed, done.stdout[-2000:]
