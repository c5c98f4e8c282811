"""Drill: forty faults put into the code one at a time; for each, the tests of that module fail.

A fault that no test sees means a missing test. Each runs in a copy of the repository: -k selects some by name.
"""

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests.support.places import ROOT


class Fault(NamedTuple):
    """`old`, which occurs once in the file, is replaced by `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = [
    Fault(
        "the causal mask shows the next position",
        "model/attention.py",
        "jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))",
        "jnp.tril(jnp.ones((1, 1, length, length), dtype=bool), k=1)",
        "model/test_attention.py",
    ),
    Fault(
        "the padding mask hides nothing",
        "model/attention.py",
        "(tokens_BS != pad_id)[:, None, None, :]",
        "(tokens_BS >= pad_id)[:, None, None, :]",
        "model/test_attention.py",
    ),
    Fault(
        "packed sentences attend to earlier ones",
        "model/attention.py",
        "(queries_BT1 == keys_B1S)",
        "(queries_BT1 >= keys_B1S)",
        "model/test_attention.py",
    ),
    Fault(
        "masks are combined by or",
        "model/attention.py",
        "functools.reduce(jnp.logical_and, given)",
        "functools.reduce(jnp.logical_or, given)",
        "model/test_attention.py",
    ),
    Fault(
        "a cache slot is missing in the mask",
        "model/attention.py",
        "(slots_L[None] <= own_T[:, None])",
        "(slots_L[None] < own_T[:, None])",
        "model/test_attention.py translation/test_stepper.py",
    ),
    Fault(
        "scores are divided by d_k",
        "model/attention.py",
        "q_BTHK.shape[-1] ** -0.5 if scale is None",
        "q_BTHK.shape[-1] ** -1.0 if scale is None",
        "model/test_attention.py",
    ),
    Fault(
        "the head mask is ignored",
        "model/attention.py",
        "jnp.asarray(context.head_mask).astype(heads_BTHV.dtype)",
        "jnp.ones_like(jnp.asarray(context.head_mask)).astype(heads_BTHV.dtype)",
        "model/test_attention.py model/test_transformer.py",
    ),
    Fault(
        "rotary positions rotate by half",
        "model/positions.py",
        "even * sin + odd * cos",
        "even * sin - odd * cos",
        "model/test_positions.py",
    ),
    Fault(
        "relative distances are clipped one too early",
        "model/positions.py",
        "-self.reach, self.reach) + self.reach",
        "-self.reach + 1, self.reach - 1) + self.reach",
        "model/test_positions.py",
    ),
    Fault(
        "ALiBi rewards distance",
        "model/positions.py",
        "return -jnp.asarray(alibi_slopes",
        "return jnp.asarray(alibi_slopes",
        "model/test_positions.py",
    ),
    Fault(
        "dropout does not scale what it keeps",
        "model/layers.py",
        "scale = LEVELS / (LEVELS - threshold)",
        "scale = 1.0",
        "model/test_layers.py",
    ),
    Fault(
        "the gradient of the norm lacks a term",
        "model/layers.py",
        "rate * (change - along_one - unit * along_unit)",
        "rate * (change - along_one)",
        "model/test_layers.py",
    ),
    Fault(
        "the gradient of the softmax lacks a term",
        "model/attention.py",
        "exact * (change - jnp.sum(change * exact, axis=-1, keepdims=True))",
        "exact * change",
        "model/test_attention.py",
    ),
    Fault(
        "label smoothing over one class too few",
        "update/loss.py",
        '(classes if self.spread == "all"',
        '(classes - 1 if self.spread == "all"',
        "update/test_loss.py",
    ),
    Fault(
        "the gradient of the loss lacks the target",
        "update/loss.py",
        "(probability_MN - terms.distribution(targets_M, classes)) * weights_M",
        "probability_MN * weights_M",
        "update/test_loss.py",
    ),
    Fault(
        "padding counts in the loss",
        "update/loss.py",
        "nll=jnp.sum(nll * weights)",
        "nll=jnp.sum(nll)",
        "update/test_loss.py",
    ),
    Fault(
        "the last tokens of uneven slices are lost",
        "update/loss.py",
        "missing = -length % count",
        "missing, array = 0, array[:, : length // count * count]",
        "update/test_loss.py",
    ),
    Fault(
        "the schedule is one step late",
        "update/optimizer.py",
        "step = count + 1\n",
        "step = count\n",
        "update/test_optimizer.py",
    ),
    Fault("biases decay", "update/optimizer.py", "leaf.ndim >= 2", "leaf.ndim >= 0", "update/test_optimizer.py"),
    Fault(
        "gradients are not clipped",
        "update/optimizer.py",
        "return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)",
        "return optimizer",
        "update/test_optimizer.py update/test_step.py",
    ),
    Fault(
        "of an accumulated batch only the last part counts",
        "update/step.py",
        "return jax.tree.map(jnp.add, total, summand), None",
        "return summand, None",
        "update/test_step.py",
    ),
    Fault(
        "all parts of a batch share a dropout mask",
        "update/step.py",
        "gradient(params, microbatch, jax.random.fold_in(key, number))",
        "gradient(params, microbatch, jax.random.fold_in(key, 0))",
        "update/test_step.py",
    ),
    Fault(
        "gradients are not summed over devices",
        "update/step.py",
        'return jax.lax.psum(gradient, "data" if "fsdp" in shard else sharding.BATCH_AXES)',
        "return gradient",
        "update/test_sharding.py",
    ),
    Fault(
        "the GNMT penalty is off by one",
        "search/rules.py",
        "((5 + n) / 6)",
        "((6 + n) / 6)",
        "search/test_beam.py",
    ),
    Fault(
        "<eos> is allowed too early",
        "search/rules.py",
        "jnp.arange(1, max_length + 1)[None, :] < shortest_B",
        "jnp.arange(2, max_length + 2)[None, :] < shortest_B",
        "search",
    ),
    Fault(
        "the cache does not follow the beams",
        "search/beam.py",
        "return beam, reorder(cache, parents_BK)",
        "return beam, cache",
        "search",
    ),
    Fault(
        "the nucleus lacks the token that reaches top_p",
        "search/sampling.py",
        "mass_before_BC < mass_B[:, None]",
        "mass_before_BC + probabilities_BC < mass_B[:, None]",
        "search/test_sampling.py",
    ),
    Fault(
        "samples depend on the row in the batch",
        "search/sampling.py",
        "keys_B = keys if keys.ndim else",
        "keys_B =",
        "search/test_sampling.py",
    ),
    Fault(
        "the last batch of an epoch is dropped",
        "data/buckets.py",
        "batches=tuple(-(-size // n)",
        "batches=tuple(size // n",
        "data/test_buckets.py data/test_batching.py",
    ),
    Fault(
        "the decoder's input is not shifted",
        "data/batching.py",
        "shifted[1:] = ids[:-1]",
        "shifted[:] = ids",
        "data/test_batching.py",
    ),
    Fault(
        "positions of packed sentences do not restart",
        "data/batching.py",
        "laid_out(positions, 0)]",
        "laid_out(cells % width, 0)]",
        "data/test_batching.py",
    ),
    Fault(
        "packed rows are too long",
        "data/packing.py",
        "(target[pairs] <= target_room[rows])",
        "(target[pairs] <= target_room[rows] + 1)",
        "data/test_packing.py data/test_batching.py",
    ),
    Fault(
        "batches are prefetched from one step too early",
        "data/prefetch.py",
        "itertools.count(start_step)",
        "itertools.count(max(start_step - 1, 0))",
        "data/test_prefetch.py",
    ),
    Fault(
        "pages do not escape text",
        "pictures/pages.py",
        "autoescape=True",
        "autoescape=False",
        "pictures/test_pages.py",
    ),
    Fault(
        "p-values are not corrected",
        "report/statistics.py",
        "np.minimum(found.p_values_P * len(weights_PG), 1.0)",
        "found.p_values_P",
        "report/test_statistics.py",
    ),
    Fault(
        "p-values are one-sided",
        "report/statistics.py",
        "return 2 * stdtr(self.df_P, -t)",
        "return stdtr(self.df_P, -t)",
        "report/test_statistics.py",
    ),
    Fault(
        "the bootstrap leaves out ties",
        "bootstrap.py",
        "distances >= abs(difference) * (1 - ROUNDING)",
        "distances > abs(difference)",
        "test_bootstrap.py",
    ),
    Fault(
        "the lowest score is the best",
        "runs/metrics.py",
        "score > best",
        "score < best",
        "runs/test_metrics.py",
    ),
    Fault(
        "patience does not count",
        "runs/metrics.py",
        "since += 1",
        "since += 0",
        "runs/test_metrics.py training/test_train.py",
    ),
    Fault(
        "damage in a checkpoint is not noticed",
        "runs/checkpoint.py",
        "return jnp.sum(bits * (odd ^ (odd << 16)), dtype=jnp.uint32)",
        "return jnp.sum(bits, dtype=jnp.uint32) * 0",
        "runs/test_checkpoint.py",
    ),
]


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
