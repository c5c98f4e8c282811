"""A first hour on a GPU or TPU, in ten minutes: is everything right there, how fast is it, and beside what.

    python -m benchmarks.device --minutes 10        # on all devices here; writes device.json and device.md
    python -m benchmarks.device --size tiny --output /tmp/here

Checks come first, then measurements, each with what it is compared with. A part that fails is reported, and the others
go on; at the limit the page is written with what there is. Please send the page (docs/performance.md).
"""

import argparse
import dataclasses
import functools
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or torch would find no memory, and peaks say nothing
sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import jax
import jax.numpy as jnp
import numpy as np
import side_by_side
import together
import training_peers
from training_peers import Work

from tests.accelerators.traffic import Traffic
from transformer_jax import ModelConfig, Transformer, load_run
from transformer_jax.config import DecodeConfig, ExperimentConfig, MeshConfig, from_config_dict
from transformer_jax.data.batching import Batch
from transformer_jax.data.tokenizer import BOS, PAD
from transformer_jax.experiment import train_run
from transformer_jax.model import fused
from transformer_jax.model.size import training_flops
from transformer_jax.planning import here, memory
from transformer_jax.processes.compilation import use_cache
from transformer_jax.processes.hardware import memory_peak, peak_flops
from transformer_jax.training.compiled import CompiledRuns, decided_for
from transformer_jax.translation.log_probabilities import token_log_probabilities
from transformer_jax.translation.translate import Rows, search
from transformer_jax.update import sharding
from transformer_jax.update.loss import Objective
from transformer_jax.update.optimizer import make_schedule
from transformer_jax.update.step import batch_sums

Figures = dict[str, Any]


class Size(NamedTuple):
    """What is measured: a batch of full rows on each device, a search, and small runs that train together."""

    model: ModelConfig
    rows: int
    length: int
    sentences: int
    small: ModelConfig  # of the runs together
    small_rows: int
    steps: int  # timed


SMALL = ModelConfig(10_000, num_encoder_layers=4, num_decoder_layers=4, d_model=128, d_ff=256, num_heads=4)
LEAST = ModelConfig(50, num_encoder_layers=1, num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2)
SIZES = {
    "base": Size(ModelConfig.base(37_000), 768, 32, 64, SMALL, 128, 20),
    "tiny": Size(LEAST, 8, 8, 4, LEAST, 4, 2),
}
# Of the checks, on any device: a head has 64 numbers, as cuDNN's kernels want.
CHECKED = ModelConfig(200, num_encoder_layers=1, num_decoder_layers=1, d_model=128, d_ff=256, num_heads=2, dropout=0.0)
SEARCH = jax.jit(search, static_argnames=("model", "decode", "max_length"))


# Checks.


def made_batch(model: ModelConfig, rows: int, length: int) -> Batch:
    """Random sentences of different lengths."""
    dice = np.random.default_rng(0)
    source, target = (dice.integers(4, model.vocab_size, (rows, length)).astype(np.int32) for _ in range(2))
    for side in (source, target):
        side[np.arange(length) >= dice.integers(2, length + 1, (rows, 1))] = PAD
    return batch_of(source, target)


def batch_of(source: np.ndarray, target: np.ndarray) -> Batch:
    shifted = np.concatenate([np.full((len(target), 1), BOS, np.int32), target[:, :-1]], axis=1)
    return Batch(source, np.where(target == PAD, PAD, shifted), target)


def random_params(model: ModelConfig) -> Any:
    one = np.ones((1, 2), np.int32)
    return jax.jit(Transformer(model).init)(jax.random.key(0), one, one)["params"]


@functools.cache
def checked_params() -> Any:
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.device_get(random_params(CHECKED))


def value_and_gradient(device: jax.Device, **changes: Any) -> Any:
    """Of the mean loss, with changes to the checked model."""
    config = ExperimentConfig(model=dataclasses.replace(CHECKED, **changes))
    resolved = decided_for(config, sharding.make_mesh(MeshConfig(), [device]), is_training=True)

    objective = Objective.of(config.train, None)

    def loss(params: Any, batch: Batch) -> jax.Array:
        sums = batch_sums(resolved, objective, params, batch)
        return sums.loss / sums.weight

    arguments = jax.device_put((checked_params(), made_batch(CHECKED, 16, 24)), device)
    return jax.device_get(jax.jit(jax.value_and_grad(loss))(*arguments))


@functools.cache
def on_cpu() -> Any:
    return value_and_gradient(jax.devices("cpu")[0])


def differences(result: Any, reference: Any) -> Figures:
    """Of the value, and of the gradient: the largest of any leaf, in units of the leaf's largest number."""
    pairs = zip(jax.tree.leaves(result[1]), jax.tree.leaves(reference[1]), strict=True)
    worst = [float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs]
    return {"loss differs by": float(abs(result[0] / reference[0] - 1)), "gradient differs by": float(np.max(worst))}


def judged(figures: Figures, most: float) -> Figures:
    """With `right`, whether no difference is larger (a NaN is)."""
    right = all(value <= most for name, value in figures.items() if "differ" in name)
    return {"right": right, "at most": most, **figures}


def step_beside_cpu(size: Size) -> Figures:
    return judged(differences(value_and_gradient(jax.devices()[0]), on_cpu()), 1e-4)


def fused_beside_plain(size: Size) -> Figures:
    device, bfloat16 = jax.devices()[0], {"dtype": "bfloat16"}
    chosen = fused.resolved(
        dataclasses.replace(CHECKED, **bfloat16), device, has_whole_heads=True
    ).attention_implementation
    plain, best = (value_and_gradient(device, **bfloat16, attention_implementation=one) for one in ("plain", chosen))
    return judged({"auto is": chosen, **differences(best, plain)}, 0.05)


def bfloat16_beside_cpu(size: Size) -> Figures:
    return judged(differences(value_and_gradient(jax.devices()[0], dtype="bfloat16"), on_cpu()), 0.2)


def products_beside_cpu(size: Size) -> Figures:
    """Of square matrices, in the precisions of model.matmul_precision; one pass in bfloat16 is off by about 0.003."""
    a, b = np.random.default_rng(0).normal(size=(2, 512, 512)).astype(np.float32)
    right = a.astype(np.float64) @ b
    figures: Figures = {"right": True}
    for precision, most in (("highest", 1e-5), ("high", 1e-3), ("default", 2e-2)):
        product = np.asarray(jax.jit(functools.partial(jnp.matmul, precision=precision))(a, b), np.float64)
        figures[f"{precision} differs by"] = float(np.abs(product - right).max() / np.abs(right).max())
        figures["right"] &= figures[f"{precision} differs by"] <= most
    return figures


def searched(device: jax.Device, decode: DecodeConfig) -> Any:
    source = made_batch(CHECKED, 8, 12).source
    rows = Rows(source, np.full(8, 20, np.int32), np.arange(8, dtype=np.int32))
    params, rows = jax.device_put((checked_params(), rows), device)
    return jax.device_get(SEARCH(params, rows, model=CHECKED, decode=decode, max_length=20))


def cached_decoding(size: Size) -> Figures:
    """The log-probabilities of greedy translations by the search, beside a pass over the whole translation."""
    device, source = jax.devices()[0], made_batch(CHECKED, 8, 12).source
    result = searched(device, DecodeConfig(beam=1))
    lengths, target = result.lengths_BN[:, :1], result.tokens_BNT[:, 0]
    target = np.where(np.arange(target.shape[1]) < lengths, target, PAD).astype(np.int32)
    whole = jax.jit(functools.partial(token_log_probabilities, CHECKED))
    params, batch = jax.device_put((checked_params(), batch_of(source, target)), device)
    sums = np.asarray(whole(params, batch)).sum(axis=1)
    return judged(
        {"log-probabilities differ by": float(np.abs(sums / result.log_probabilities_BN[:, 0] - 1).max())}, 1e-4
    )


def searches_beside_cpu(size: Size) -> Figures:
    figures: Figures = {}
    for name, decode in {
        "greedy": DecodeConfig(beam=1),
        "beam 4": DecodeConfig(beam=4),
        "sampling": DecodeConfig(sample=True),
    }.items():
        ours, theirs = (searched(device, decode) for device in (jax.devices()[0], jax.devices("cpu")[0]))
        same = (ours.tokens_BNT[:, 0] == theirs.tokens_BNT[:, 0]).all(axis=1)
        figures[f"{name}: share that differs"] = float(1 - same.mean())
    return judged(figures, 0.0)


def resumes_to_the_bit(size: Size) -> Figures:
    options: dict[str, Any] = {
        "data": {"corpus": "copy", "tokenizer": "words", "task": {"train_size": 300, "valid_size": 30}}
        | {"tokens_per_batch": 256 * jax.device_count(), "num_shapes": 1},
        "model": {"d_model": 32, "d_ff": 64, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1},
        "optimizer": {"warmup_steps": 2, "learning_rate": 3e-3},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, steps in (("straight", 6), ("resumed", 3), ("resumed", 6)):
            train = {"steps": steps, "log_every": 3, "tensorboard": False, "compile_cache": None}
            train_run(from_config_dict({**options, "train": train}), Path(folder) / name)
        both = [
            jax.tree.leaves(jax.device_get(load_run(f"{folder}/{name}").params)) for name in ("straight", "resumed")
        ]
    worst = max(float(np.abs(a - b).max()) for a, b in zip(*both, strict=True))
    return judged({"parameters differ by": worst}, 0.0)


# Measurements.


def training(size: Size, devices: Sequence[jax.Device], dtype: str) -> Figures:
    """The step on full rows: what is measured beside what the compiler says of the same program."""
    model = dataclasses.replace(size.model, dtype=dtype)
    config, mesh = ExperimentConfig(model=model), sharding.make_mesh(MeshConfig(), devices)
    steps = CompiledRuns([config], [make_schedule(config.optimizer, model.d_model, 100_000)], mesh)
    made = Work(model, size.rows * len(devices), size.length).batch()
    batch, began = sharding.place_batch(made, mesh), time.perf_counter()
    program = steps.compile_ahead(ThreadPoolExecutor(1), [batch])[0].result()
    compiled = time.perf_counter() - began
    step = training_peers.repeated(steps.advance, steps.new_states(), (batch,))
    seconds = median_seconds(step, size.steps)
    tokens, peak = made.target_output.size, peak_flops(model)[0]
    flops = training_flops(model, size.length, size.length).of(tokens, tokens)
    needed, measured, bandwidth = memory(program), memory_peak(), here().chip.bandwidth
    return {
        "ms a step": 1000 * seconds,
        "target tokens/s": tokens / seconds,
        "MFU": peak and flops / (seconds * len(devices) * peak),
        "GB at the peak, measured": measured and measured / 1e9,  # of all parts up to here; None if not reported
        "GB at the peak, compiled": needed.peak / 1e9,
        **traffic_of(program, seconds, bandwidth),
        "s to compile": compiled,
    }


def traffic_of(program: jax.stages.Compiled, seconds: float, bandwidth: float) -> Figures:
    """The traffic that the compiler has scheduled, and the rate of it in the time measured."""
    try:
        accessed = sum(Traffic(str(program.as_text())).accesses().values())
    except (ValueError, KeyError) as error:  # a backend whose programs the reader does not know
        return {"traffic": f"not known: {error}"}
    share = {"share of the bandwidth": accessed / seconds / bandwidth} if bandwidth else {}
    return {"GB of traffic, compiled": accessed / 1e9, "GB/s of traffic": accessed / seconds / 1e9, **share}


def median_seconds(run: Callable[[], object], count: int) -> float:
    return side_by_side.medians(side_by_side.turn_by_turn({"": run}, count))[""]


def peer(size: Size, key: str) -> Figures:
    """Another implementation's step on the same rows, on one device."""
    batch = Work(size.model, size.rows, size.length).batch()
    seconds = median_seconds(training_peers.SYSTEMS[key].build(size.model, batch), size.steps)
    return {"ms a step": 1000 * seconds, "target tokens/s": batch.target_output.size / seconds}


def beam_search(size: Size) -> Figures:
    """Random weights never end by themselves: each translation is as long as its source."""
    model = dataclasses.replace(size.model, dtype="bfloat16")
    source = Work(model, size.sentences, size.length).batch().source
    rows = Rows(source, np.full(size.sentences, size.length, np.int32), np.arange(size.sentences, dtype=np.int32))
    params, figures = random_params(model), Figures()
    for beam in (1, 4):
        decode = DecodeConfig(beam=beam, min_length=size.length)
        run = functools.partial(SEARCH, params, rows, model=model, decode=decode, max_length=size.length + 50)
        seconds = median_seconds(lambda run=run: jax.block_until_ready(run()), 3)
        figures[f"beam {beam}: sentences/s"] = size.sentences / seconds
    return figures


def runs_together(size: Size) -> Figures:
    """Small runs in one program: target tokens per second of all, relative to one."""
    base, mesh = ExperimentConfig(model=size.small), sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    batch = sharding.place_batch(Work(size.small, size.small_rows, size.length).batch(), mesh)
    seconds = {runs: together.Case(base, runs, batch, mesh).seconds_a_step(size.steps) for runs in (1, 2, 4, 8)}
    return {f"{runs} runs": f"{1000 * s:.3g} ms, x {runs * seconds[1] / s:.2f}" for runs, s in seconds.items()}


def limits(size: Size) -> Figures:
    if size.model is LEAST:
        return {"left out": "at the tiny size"}
    measured = side_by_side.limits(["jax float32", "jax bfloat16"])
    rates = {f"{name}: TFLOP/s": flops / 1e12 for name, flops in measured.products.items()}
    return {**rates, "memory: GB/s": measured.bandwidth / 1e9}


def parts() -> dict[str, Callable[[Size], Figures]]:
    """In their order: should the time end, the first have been more important."""
    devices = jax.devices()
    one = functools.partial(training, devices=devices[:1])
    by_name: dict[str, Callable[[Size], Figures]] = {
        "value and gradient beside a CPU": step_beside_cpu,
        "fused attention beside plain": fused_beside_plain,
        "cached decoding beside a whole pass": cached_decoding,
        "searches beside a CPU": searches_beside_cpu,
        "resuming to the bit": resumes_to_the_bit,
        "matrix products beside a CPU": products_beside_cpu,
        "bfloat16 beside a CPU in float32": bfloat16_beside_cpu,
        "step in bfloat16": functools.partial(one, dtype="bfloat16"),
        "linen's modules in bfloat16": functools.partial(peer, key="linen-bf16"),
        "beam search in bfloat16": beam_search,
        "runs together": runs_together,
        "limits": limits,
        "step in float32": functools.partial(one, dtype="float32"),
    }
    if len(devices) > 1:
        by_name[f"step in bfloat16 on {len(devices)} devices"] = functools.partial(
            training, devices=devices, dtype="bfloat16"
        )
    if side_by_side.version_of("torch"):
        by_name["torch, autocast"] = functools.partial(peer, key="torch-bf16")
        by_name["torch, compiled, autocast"] = functools.partial(peer, key="torch-compiled-bf16")
    return by_name


# The report.


def page(machine: str, results: dict[str, Figures]) -> str:
    def shown(value: Any) -> str:
        return f"{value:,.4g}" if isinstance(value, float) else str(value)

    lines = [f"## {machine}", "", "| | | |", "|---|---|---|"]
    for name, figures in results.items():
        verdict = {True: "right", False: "**wrong**"}.get(figures.get("right"), "")  # type: ignore[call-overload]
        texts = [f"{key} {shown(value)}" for key, value in figures.items() if key not in ("right", "seconds")]
        lines.append(f"| {name} | {verdict} | {'; '.join(texts)} |".replace("\n", " "))
    return "\n".join(lines) + "\n\nCompiled: by the compiler's report. All other figures are measured.\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="the limit for everything")
    parser.add_argument("--size", choices=SIZES, help="base, or tiny on a CPU")
    parser.add_argument("--output", default="device", metavar="NAME", help="of NAME.json and NAME.md")
    options = parser.parse_args(arguments)
    began, results = time.monotonic(), dict[str, Figures]()
    size = SIZES[options.size or ("tiny" if jax.default_backend() == "cpu" else "base")]
    machine, everything = side_by_side.machine(), parts()
    use_cache(tempfile.mkdtemp())  # so that programs that occur twice are compiled once

    def write() -> None:
        left_out = {name: {"left out": "no time was left"} for name in everything if name not in results}
        Path(f"{options.output}.md").write_text(page(machine, {**results, **left_out}))
        file = Path(f"{options.output}.json")
        side_by_side.write_json(file, machine=machine, results=results, left_out=[*left_out])

    def stop() -> None:
        write()
        os._exit(0)  # whatever the device is doing

    limit = threading.Timer(60 * options.minutes, stop)
    limit.daemon = True
    limit.start()
    for name, part in everything.items():
        start = time.monotonic()
        try:
            figures = part(size)
        except Exception as error:
            traceback.print_exc()
            figures = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        results[name] = {**figures, "seconds": time.monotonic() - start}
        print(f"{time.monotonic() - began:6.0f} s  {name}: {figures}", flush=True)
        write()
    limit.cancel()
    print(Path(f"{options.output}.md").read_text())


if __name__ == "__main__":
    main()
