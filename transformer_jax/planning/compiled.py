"""Programs compiled from shapes alone, without data or parameters, and what they need on each device.

Compiled, not measured: times are the data sheet's, for the formula's FLOPs and the bytes that the program writes.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch, BatchStatistics
from transformer_jax.data.buckets import Shape
from transformer_jax.model import build
from transformer_jax.model.size import training_flops
from transformer_jax.model.transformer import abstract_params
from transformer_jax.model_config import ModelConfig
from transformer_jax.planning.hlo import Program
from transformer_jax.planning.target import Target
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.translation import translate
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

# Tokens of the sentences that programs are compiled for: attention's share grows with the length.
LENGTH = 32
ATTENTION = re.compile(r"cudnn\$fmha|splash|flash|mosaic")


class CompiledMemory(NamedTuple):
    """Bytes that a compiled program needs on one device."""

    state: int  # parameters, optimizer and batch: the arguments and results of the step
    temporary: int  # gradients, activations, logits

    @property
    def peak(self) -> int:
        return sum(self)


class Compiled(NamedTuple):
    """A program, the mesh that it was compiled for, and the FLOPs of its matrix products on each device."""

    program: jax.stages.Compiled
    mesh: Mesh
    flops: float | None  # of a train step, by the closed formula (model/size.py)


def compile_for(
    config: ExperimentConfig, target: Target, program: str = "train", shape: Shape | None = None
) -> Compiled:
    """The train step or the search ("decode") of a config, for the target.

    `shape` is a batch's; the default is the config's batches in sentences of `LENGTH` tokens, or in packed rows.
    """
    mesh = sharding.make_mesh(config.mesh, target.devices)
    if shape is None:
        packed = program == "train" and config.data.batching == "packing"
        tokens = (config.decode if program == "decode" else config.data).tokens_per_batch
        length = min(config.data.max_length if packed else LENGTH, tokens)
        parts = mesh.size if program == "decode" else sharding.batch_shards(mesh) * config.train.accumulate
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
    steps = CompiledSteps([config], [schedule], mesh)
    step: Any = steps.train_step
    return step.func.trace(*step.args, steps.abstract_state, batch)


def _search(config: ExperimentConfig, mesh: Mesh, shape: Shape) -> Any:
    model, by_row, rows = build.with_loaded_modules(config.model), translate.rows_sharding(mesh), shape.rows
    group = next(translate.groups_of(model, config.decode, mesh, [shape.source]))  # its room for both sides
    params = abstract_params(model)
    shardings = sharding.state_shardings({"params": params}, mesh, model, config.mesh.replicate)["params"]
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


def memory(program: jax.stages.Compiled) -> CompiledMemory:
    """The memory of a program as the compiler reports it."""
    reported: Any = program.memory_analysis()
    # Results reuse the memory of donated arguments, but for a few numbers.
    new_results = reported.output_size_in_bytes - reported.alias_size_in_bytes
    return CompiledMemory(reported.argument_size_in_bytes + new_results, reported.temp_size_in_bytes)


def microseconds_per_token(config: ExperimentConfig, target: Target, batches: BatchStatistics) -> float:
    """The least time of an epoch for each of its target tokens, at the data sheet's rates.

    The shape with the most cells is compiled, in sizes that all compilers like; the others take time in proportion to
    their cells. An update takes the time of its products, or of writing and reading every result once, whichever is
    longer.
    """
    cells = {shape: count * shape.rows * (shape.source + shape.target) for shape, count in batches.shapes}
    shards = sharding.batch_shards(sharding.make_mesh(config.mesh, target.devices)) * config.train.accumulate
    common = max(cells, key=cells.__getitem__)
    shape = Shape(*(size + -size % n for size, n in zip(common, (16 * shards, 8, 8), strict=True)))
    compiled = compile_for(config, target, shape=shape)
    written, (peak, _) = Program(str(compiled.program.as_text())).written(), target.flops(config.model)
    seconds = max((compiled.flops or 0) / (peak or math.inf), 2 * written / target.chip.bandwidth)
    updates = sum(cells.values()) / (shape.rows * (shape.source + shape.target))  # if all were of this shape
    return 1e6 * seconds * updates / batches.target_tokens


def examine(compiled: Compiled, target: Target, model: ModelConfig) -> dict[str, Any]:
    """The needs of a compiled program on each device, as `inspect --json` prints it."""
    program = Program(str(compiled.program.as_text()))
    peak, flops_type = target.flops(model)
    sizes = {str(axis): size for axis, size in compiled.mesh.shape.items()}
    alike = collections.defaultdict(list)
    for collective in program.collectives():
        alike[collective.kind, collective.axes(sizes), collective.in_loop].append(collective)
    return {
        "target": target.name,
        "device": target.chip.kind,
        "devices": compiled.mesh.size,
        "mesh": sizes,
        "memory": memory(compiled.program)._asdict(),
        "capacity": target.chip.memory or None,
        "flops": compiled.flops,
        "flops_type": flops_type,
        "flops_ms": compiled.flops / peak * 1000 if compiled.flops and peak else None,  # at the data sheet's rate
        "custom_parts": [name for name, part in dataclasses.asdict(model.parts).items() if part is not None],
        "collectives": [
            {
                "kind": kind,
                "axes": axes,
                "count": sum(one.times for one in ones),
                "sent": sum(one.sent for one in ones),  # bytes of each device
                "asynchronous": sum(one.times for one in ones if one.is_asynchronous),
                "in_loop": in_loop,  # then each counts once, unless the length of the loop is known
            }
            for (kind, axes, in_loop), ones in alike.items()
        ],
        # Without any, attention is ordinary products.
        "attention_kernels": {name: count for name, count in program.kernels().items() if ATTENTION.search(name)},
    }


def in_words(report: Mapping[str, Any]) -> str:
    """The report of `examine` as `inspect` prints it."""
    needed, capacity = CompiledMemory(**report["memory"]), report["capacity"]
    fits = ", which it exceeds" if capacity and needed.peak > capacity else ""
    room = f" of {capacity / 1e9:.3g} GB{fits}" if capacity else ""
    products = (
        "not counted for a search"
        if report["flops"] is None
        else f"{report['flops'] / 1e12:.4g} TFLOP of matrix products"
    )
    if report["flops_ms"] is not None:
        products += f", {report['flops_ms']:.3g} ms at the peak of {report['flops_type']}"
    if report["custom_parts"]:
        products += f" (counted with the built-in {', '.join(report['custom_parts'])})"
    kernels = [f"{count} x {name}" for name, count in report["attention_kernels"].items()]
    lines = [
        f"Compiled, not run, for {report['target']}: {report['devices']} x {report['device']}, "
        f"{' x '.join(f'{axis} {size}' for axis, size in report['mesh'].items())}. On each device:",
        f"  memory       {needed.peak / 1e9:.3g} GB{room}: {needed.state / 1e9:.3g} GB of state and batch, "
        f"{needed.temporary / 1e9:.3g} GB temporary",
        f"  arithmetic   {products}",
        f"  attention    {', '.join(kernels) or 'plain matrix products'}",
    ]
    for one in report["collectives"]:
        where = f"{' in a loop' if one['in_loop'] else ''} over {' and '.join(one['axes'])}"
        how = f"{one['asynchronous']} asynchronous" if one["asynchronous"] else "synchronous"
        lines.append(f"  collectives  {one['count']} x {one['kind']}{where}: {one['sent'] / 1e9:.3g} GB, {how}")
    return "\n".join(lines if report["collectives"] else [*lines, "  collectives  none"])
