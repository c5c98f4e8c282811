"""Programs compiled from shapes alone, without data or parameters, and what they need on each device.

XLA compiles for a description of devices. For TPUs libtpu has all descriptions (`jax[tpu]`), for GPUs the CUDA plugin
(`jax[cuda13]`) is given one from accelerators.py. Neither needs a device, and nothing is run: times are those of the
data sheet.
"""

import collections
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.accelerators import ACCELERATORS, GPU, Accelerator
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch
from transformer_jax.data.buckets import Shape
from transformer_jax.errors import BadInput, did_you_mean
from transformer_jax.model import build
from transformer_jax.model.size import training_flops
from transformer_jax.model.transformer import abstract_params
from transformer_jax.model_config import ModelConfig
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.translation import translate
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

GPUS_PER_HOST = 8
MAX_DEVICES = 4096
CHIPS = {chip.name: chip for chip in ACCELERATORS.values() if chip.name}
# Tokens of the sentences that programs are compiled for: attention's share grows with the length.
LENGTH = 32
# Instructions of a program in XLA's text. TPUs repeat a collective that they send in steps, under one number.
COLLECTIVE = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\((.*)")
NUMBER = re.compile(r"chain_id=\"(\d+)\"")
ATTENTION_KERNEL = re.compile(r'custom_call_target="([^"]*(?:cudnn\$fmha|splash|flash|mosaic)[^"]*)"')


class Target(NamedTuple):
    """Devices to compile for, and the options of their compiler."""

    name: str
    platforms: tuple[str, ...] | None  # to lower a program for: "tpu" or "cuda"; None = the devices here
    chip: Accelerator
    devices: tuple[Any, ...]  # jax.Device, without a device behind it unless it is here
    options: dict[str, str]


def here() -> Target:
    """The devices of this process."""
    kind = jax.devices()[0].device_kind
    chip = ACCELERATORS.get(kind, Accelerator(kind, None, None, None, ""))
    return Target("this machine", None, chip, tuple(jax.devices()), {})


def parse_target(text: str) -> Target:
    """The devices that v5e:2x4, v5p:8x8x8, H100 or 64xH100 names."""
    if (tpu := re.fullmatch(r"(\w+):(\d+x\d+(?:x\d+)?)", text)) and tpu[1] in CHIPS and not CHIPS[tpu[1]].gpu:
        layout = [int(size) for size in tpu[2].split("x")]
        if math.prod(layout) <= MAX_DEVICES:
            return _tpus(text, CHIPS[tpu[1]], layout)
    elif (gpu := re.fullmatch(r"(?:(\d{1,4})x)?(\w+)", text)) and gpu[2] in CHIPS and CHIPS[gpu[2]].gpu:
        count = int(gpu[1] or 1)
        if 1 <= count <= GPUS_PER_HOST or (count % GPUS_PER_HOST == 0 and 0 < count <= MAX_DEVICES):
            return _gpus(text, CHIPS[gpu[2]], count)
    names = [f"8x{name}" if chip.gpu else f"{name}:2x2x1" for name, chip in CHIPS.items()] + ["v5e:2x4", "v6e:2x4"]
    sizes = f"at most {MAX_DEVICES:,} devices, GPUs in machines of {GPUS_PER_HOST}"
    raise BadInput(f"--compile-for={text}: is not known ({sizes}); {did_you_mean(text, names)}")


def _gpus(text: str, chip: Accelerator, count: int) -> Target:
    shape = f"1x{max(count // GPUS_PER_HOST, 1)}x{min(count, GPUS_PER_HOST)}"
    config = GPU.format(chip=chip)
    devices = _topology(text, "jax[cuda13]", platform="cuda", topology_name=shape, topology=shape, target_config=config)
    # On the machine itself autotuning times kernels; here there is nothing to time.
    return Target(text, ("cuda",), chip, devices, {"xla_gpu_autotune_level": "0"})


def _tpus(text: str, chip: Accelerator, layout: list[int]) -> Target:
    # Otherwise libtpu asks the cloud what machine this is, and holds a lock that only one process can have.
    settings = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
    os.environ.update({name: value for name, value in settings.items() if name not in os.environ})
    one_host = {"chips_per_host_bounds": (*layout, 1, 1)[:3]} if math.prod(layout) < 4 else {}
    return Target(text, ("tpu",), chip, _topology(text, "jax[tpu]", platform="tpu", topology_name=text, **one_host), {})


def _topology(text: str, extra: str, **description: Any) -> tuple[Any, ...]:
    from jax.experimental import topologies

    plugins = {"jax[tpu]": ("libtpu",), "jax[cuda13]": ("jax_cuda13_plugin", "jax_cuda12_plugin")}[extra]
    if not any(map(importlib.util.find_spec, plugins)):
        raise BadInput(f"--compile-for={text}: needs its compiler: pip install '{extra}' (no device is needed)")
    jax.config.update("jax_platforms", "cpu")  # the plugin compiles, and runs nothing
    try:
        return tuple(topologies.get_topology_desc(**description).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise BadInput(f"--compile-for={text}: the compiler has no such devices: {reason}") from None


class Compiled(NamedTuple):
    """A program, the mesh that it was compiled for, and the FLOPs of its matrix products on each device."""

    program: jax.stages.Compiled
    mesh: Mesh
    flops: float | None  # of a train step, by the closed formula (model/size.py)


def compile_for(
    config: ExperimentConfig, target: Target, program: str = "train", shape: Shape | None = None
) -> Compiled:
    """The train step or the search ("decode") of a config, for the target.

    `shape` is a batch's; the default is the config's batches in sentences of `LENGTH` tokens, or in packed rows. A
    search has as many sentences as a translation would have at once.
    """
    mesh = sharding.make_mesh(config.mesh, target.devices)
    if shape is None and program == "decode":
        lengths = [LENGTH] * (config.decode.tokens_per_batch + mesh.size)  # more sentences than fit
        group = next(translate.groups_of(config.model, config.decode, mesh, lengths))
        shape = Shape(group.rows, LENGTH, LENGTH)
    elif shape is None:
        packed, tokens = config.data.batching == "packing", config.data.tokens_per_batch
        length = min(config.data.max_length if packed else LENGTH, tokens)
        parts = sharding.batch_shards(mesh) * config.train.accumulate
        shape = Shape(-(-max(1, tokens // length) // parts) * parts, length, length)
    traced = (_search if program == "decode" else _step)(config, mesh, shape)
    compiled = traced.lower(lowering_platforms=target.platforms).compile(compiler_options=target.options)
    formula = training_flops(config.model, shape.source, shape.target)
    flops = formula.of(shape.rows * shape.source, shape.rows * shape.target) / mesh.size
    return Compiled(compiled, mesh, flops if program == "train" else None)


def _step(config: ExperimentConfig, mesh: Mesh, shape: Shape) -> Any:
    sides: Any = [jax.ShapeDtypeStruct((shape.rows, length), np.int32) for length in (shape.source, shape.target)]
    source, target = sides
    places = (source, source, target, target) if config.data.batching == "packing" else ()
    batch = Batch(source, target, target, *places)
    schedule = make_schedule(config.optimizer, config.model.base_d_model, config.train.steps)
    steps = CompiledRuns([config], [schedule], mesh)
    return steps.step_program.jitted.trace(*steps.step_arguments, steps.abstract_state, batch)


def _search(config: ExperimentConfig, mesh: Mesh, shape: Shape) -> Any:
    model, by_row, rows = build.with_loaded_modules(config.model), translate.rows_sharding(mesh), shape.rows
    group = next(translate.groups_of(model, config.decode, mesh, [shape.source]))  # its room for both sides
    params = abstract_params(model)
    shardings = sharding.param_shardings(params, mesh, model, config.mesh.replicate)
    numbers_B = jax.ShapeDtypeStruct((rows,), np.int32, sharding=by_row)
    return translate.compiled_search(model, mesh).trace(
        jax.tree.map(lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=spec), params, shardings),
        translate.Rows(jax.ShapeDtypeStruct((rows, group.source), np.int32, sharding=by_row), numbers_B, numbers_B),
        mesh=mesh,
        model=model,
        decode=config.decode,
        max_length=group.target,
        tail=translate.tail_of(rows, mesh),
    )


class CompiledMemory(NamedTuple):
    """Bytes that a compiled program needs on one device."""

    state: int  # parameters, optimizer and batch: the arguments and results of the step
    temporary: int  # gradients, activations, logits

    @property
    def peak(self) -> int:
        return sum(self)


def memory(program: jax.stages.Compiled) -> CompiledMemory:
    """The memory of a program as the compiler reports it."""
    reported: Any = program.memory_analysis()
    # Results reuse the memory of donated arguments, but for a few numbers.
    new_results = reported.output_size_in_bytes - reported.alias_size_in_bytes
    return CompiledMemory(reported.argument_size_in_bytes + new_results, reported.temp_size_in_bytes)


def examine(compiled: Compiled, target: Target, model: ModelConfig) -> dict[str, Any]:
    """The needs of a compiled program on each device, as `inspect --json` prints it."""
    text, costs = str(compiled.program.as_text()), compiled.program.cost_analysis() or {}
    teraflops, flops_type = target.chip.teraflops(model.dtype, model.matmul_precision)
    peak = 1e12 * target.chip.share * teraflops if teraflops else None
    found = {
        (kind, numbered[1] if (numbered := NUMBER.search(rest)) else rest) for kind, rest in COLLECTIVE.findall(text)
    }
    return {
        "target": target.name,
        "device": target.chip.kind,
        "devices": compiled.mesh.size,
        "mesh": {str(axis): size for axis, size in compiled.mesh.shape.items()},
        "memory": memory(compiled.program)._asdict(),
        "capacity": target.chip.memory or None,
        "flops": compiled.flops,
        "flops_type": flops_type,
        "flops_ms": compiled.flops / peak * 1000 if compiled.flops and peak else None,  # at the data sheet's rate
        "custom_parts": [name for name, part in dataclasses.asdict(model.parts).items() if part is not None],
        "bytes_accessed": costs.get("bytes accessed"),  # in any memory; as collectives, in a loop once
        "collectives": dict(sorted(collections.Counter(kind for kind, _ in found).items())),
        "attention_kernels": dict(collections.Counter(ATTENTION_KERNEL.findall(text))),
    }


def in_words(report: Mapping[str, Any]) -> str:
    """The report of `examine` as `inspect` prints it."""
    needed, capacity = CompiledMemory(**report["memory"]), report["capacity"]
    fits = ", which it exceeds" if capacity and needed.peak > capacity else ""
    room = f" of {capacity / 1e9:.3g} GB{fits}" if capacity else ""
    arithmetic = "not counted for a search"
    if report["flops"] is not None:
        arithmetic = f"{report['flops'] / 1e12:.4g} TFLOP of matrix products"
    if report["flops_ms"] is not None:
        arithmetic += f", {report['flops_ms']:.3g} ms at the peak of {report['flops_type']}"
    if report["custom_parts"]:
        arithmetic += f" (counted with the built-in {', '.join(report['custom_parts'])})"
    kernels, collectives = (
        ", ".join(f"{count} x {name}" for name, count in report[found].items())
        for found in ("attention_kernels", "collectives")
    )
    accessed = "not known" if report["bytes_accessed"] is None else f"{report['bytes_accessed'] / 1e9:.3g} GB"
    return "\n".join([
        f"Compiled, not run, for {report['target']}: {report['devices']} x {report['device']}, "
        f"{' x '.join(f'{axis} {size}' for axis, size in report['mesh'].items())}. On each device:",
        f"  memory       {needed.peak / 1e9:.3g} GB{room}: {needed.state / 1e9:.3g} GB of state and batch, "
        f"{needed.temporary / 1e9:.3g} GB temporary",
        f"  arithmetic   {arithmetic}",
        f"  accessed     {accessed} by the estimate of XLA, on-chip memory included",
        f"  attention    {kernels or 'plain matrix products'}",
        f"  collectives  {collectives or 'none'}",
    ])  # fmt: skip
