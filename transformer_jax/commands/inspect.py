"""Shows what a config describes: every option, every parameter of the model, and what training costs.

transformer-jax inspect --config=configs/base.py
transformer-jax inspect --config=configs/base.py --config.model.num_heads=16
transformer-jax inspect --config=configs/base.py --workdir=runs/base --data
transformer-jax inspect --config=configs/big.py --cluster=64xH100
transformer-jax inspect --config=configs/base.py --program=step.txt
transformer-jax inspect --config=configs/base.py --compile-for=v5e:2x4
transformer-jax inspect --options
"""

import argparse
import collections
import itertools
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax import schema
from transformer_jax.commands import configuration
from transformer_jax.commands.arguments import add_run, path
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.model_config import ModelConfig

if TYPE_CHECKING:
    from transformer_jax.planning.cost import Work
    from transformer_jax.planning.device_report import DeviceReport

# Tokens of the sentences that costs are computed for: attention's share grows with the length.
LENGTH = 32
# The most meshes that are shown for a cluster.
SHOWN_PLANS = 5
# The model's modules in the order of the forward pass.
ORDER = ("source_embedding", "encoder", "target_embedding", "decoder", "output_embedding", "output_bias")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser, required=False)
    add_run(parser, "a run's folder: show its config, unless --config is given", required=False)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--data", action="store_true", help="the prepared data and its batches: shapes and padding")
    instead.add_argument(
        "--program",
        type=path,
        metavar="FILE",
        help="compile the train step, without data, write the compiled program to FILE and print its memory",
    )
    instead.add_argument("--options", action="store_true", help="list all options with defaults and meanings")
    instead.add_argument(
        "--cluster",
        metavar="NxDEVICE",
        help="predict the time of an update there, and the best mesh: 64xH100; 64xH100,utilisation=0.3; or "
        "64,flops=989e12,memory=80e9,bandwidth=450e9,group=8,between=50e9 (docs/scaling.md)",
    )
    instead.add_argument(
        "--compile-for",
        metavar="DEVICES",
        help="compile for accelerators that need not be here, and print memory, arithmetic, traffic and messages: "
        "8xH100, 64xA100, v5e:2x4, v5p:8x8x8 (docs/accelerators.md)",
    )
    parser.add_argument(
        "--program-of",
        choices=("train", "decode"),
        help="what --compile-for compiles: the train step (default), or the search",
    )
    parser.add_argument("--json", action="store_true", help="with --compile-for: print JSON")


def run(arguments: argparse.Namespace) -> None:
    if arguments.compile_for is None and (arguments.json or arguments.program_of):
        raise BadInput(f"{'--json' if arguments.json else '--program-of'}: has an effect only with --compile-for")
    if arguments.options:
        if arguments.config is not None or arguments.workdir is not None or arguments.overrides:
            raise BadInput("--options: lists the defaults of all options; leave out --config and --workdir")
        print(options_table())
        return
    experiment = inspected(arguments)
    if arguments.data:
        print(data_report(experiment, arguments.workdir))
        return
    from transformer_jax.experiment import try_out

    try_out(experiment)
    if arguments.cluster is not None:
        print(cluster_report(experiment, arguments.cluster))
        return
    if arguments.program is not None:
        print(program_report(experiment, Path(arguments.program)))
        return
    if arguments.compile_for is not None:
        report = compiled_report(experiment, arguments.compile_for, arguments.program_of or "train")
        print(json.dumps(report.to_json(), indent=2) if arguments.json else report)
        return
    print(f"{resolved(experiment)}\n\n{size_report(experiment)}\n\n{device_report(experiment)}")


def inspected(arguments: argparse.Namespace) -> ExperimentConfig:
    """The experiment of a config file, or of a run."""
    if arguments.config is not None and arguments.workdir is not None and not arguments.data:
        raise BadInput(f"--workdir={arguments.workdir}: has no effect with --config, except with --data; give only one")
    if arguments.config is not None:
        return configuration.load(arguments.config, arguments.overrides)
    if arguments.workdir is None:
        raise BadInput("inspect needs --config=FILE.py, --workdir=RUN or --options")
    if arguments.overrides:
        raise BadInput(f"--config.{arguments.overrides[0][0]}: needs --config=FILE.py, whose option it changes")
    from transformer_jax.runs.folder import RunFolder

    return RunFolder(arguments.workdir).load_config()


def data_report(experiment: ExperimentConfig, workdir: str | None) -> str:
    """The prepared data, and its batches."""
    from transformer_jax.data.batching import training_batches
    from transformer_jax.data.prepared import Prepared
    from transformer_jax.runs.folder import RunFolder

    if experiment.data.directory is None and workdir is None:
        raise BadInput("inspect --data needs --workdir=RUN or --config.data.directory=DIR, where the data was prepared")
    prepared = Prepared.open(RunFolder(workdir or "").data(experiment))
    batches = training_batches(experiment.data, prepared.pairs("train"))
    return f"{prepared.summary()}\n\n{experiment.data.batching}: {batches.statistics()}"


def options_table() -> str:
    """All options as Markdown, a table for each group: the content of docs/options.md."""
    lines = []
    groups = itertools.groupby(schema.options(ExperimentConfig), lambda option: option.path.partition(".")[0])
    for name, options in groups:
        lines += [f"\n## {name}\n"]
        lines += ["| option | default | what it may be | meaning |", "|---|---|---|---|"]
        for option in options:
            kind = schema.type_name(option.kind).replace("|", "\\|")
            limits = schema.in_words(option.limits)
            kind += f", {limits}" if limits else ""
            lines.append(f"| `{option.path}` | `{shown(option.default)}` | {kind} | {option.meaning} |")
    return "\n".join(lines)


def resolved(experiment: ExperimentConfig) -> str:
    """The whole config, an option a line; those that differ from the defaults are marked."""
    lines = []
    for option in schema.options(ExperimentConfig):
        value = schema.value_at(experiment, option.path)
        mark, note = ("*", f"   (default {shown(option.default)})") if value != option.default else (" ", "")
        lines.append(f"{mark} {option.path:<38} {shown(value)}{note}")
    return "\n".join(lines)


def parameter_groups(model: ModelConfig) -> list[tuple[str, tuple[int, ...], int]]:
    """The name, shape and number of layers of the parameters, as the model is built, with custom modules."""
    import jax

    from transformer_jax.model.transformer import abstract_params

    counted: collections.Counter[tuple[str, tuple[int, ...]]] = collections.Counter()
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params(model))
    for keys, leaf in sorted(leaves, key=lambda item: ORDER.index(item[0][0].key)):
        name = "/".join(key.key for key in keys)
        counted[re.sub(r"(layers|positions)_\d+", r"\1", name), leaf.shape] += 1
    return [(name, shape, times) for (name, shape), times in counted.items()]


def size_report(experiment: ExperimentConfig) -> str:
    """All parameters, their number, and the FLOPs of a token and a batch."""
    model = experiment.model
    lines, all_of_them = [f"  {'parameters':<50} {'shape':>14}  layers {'total':>13}"], 0
    for name, sizes, layers in parameter_groups(model):
        shape, times, total = (
            " x ".join(map(str, sizes)),
            f"x {layers}" if layers > 1 else "",
            layers * math.prod(sizes),
        )
        lines.append(f"  {name:<50} {shape:>14} {times:>7} {total:>13,}")
        all_of_them += total
    lines.append(f"  {'all':<50} {'':>14} {'':>7} {all_of_them:>13,}")
    return "\n".join([*lines, "", *_cost(model, experiment.data.tokens_per_batch)])


def _cost(model: ModelConfig, tokens: int) -> list[str]:
    from transformer_jax.model.size import forward_flops, training_flops

    forward, training = (flops(model, LENGTH, LENGTH) for flops in (forward_flops, training_flops))
    custom = [name for name in schema.to_dict(model.parts) if getattr(model.parts, name) is not None]
    return [
        f"  Matrix products, in sentences of {LENGTH} + {LENGTH} tokens, training = 3 x forward (model/size.py):",
        f"  a source token {forward.source_token / 1e6:,.1f} MFLOP forward, {training.source_token / 1e6:,.1f} trained",
        f"  a target token {forward.target_token / 1e6:,.1f} MFLOP forward, {training.target_token / 1e6:,.1f} trained",
        f"  a batch of {tokens:,} + {tokens:,} tokens {training.of(tokens, tokens) / 1e12:,.3g} TFLOP trained",
        *([f"  (counted with the built-in {', '.join(custom)})"] if custom else []),
    ]


def work_of(experiment: ExperimentConfig) -> "Work":
    """The size of an update: rows of sentences of `LENGTH` tokens, or packed rows."""
    from transformer_jax.planning.cost import Work

    data, is_packed = experiment.data, experiment.data.batching == "packing"
    length = min(data.max_length if is_packed else LENGTH, data.tokens_per_batch)
    rows, train = max(1, data.tokens_per_batch // length), experiment.train
    return Work(rows, length, length, train.accumulate, is_packed, train.rematerialize)


def moments_of(experiment: ExperimentConfig) -> float:
    """The number of values that the optimizer stores for each parameter, on average."""
    import jax

    from transformer_jax.update.optimizer import make_optimizer
    from transformer_jax.update.step import new_state

    optimizer = make_optimizer(experiment.optimizer, lambda count: 0.0 * count)  # the state does not depend on the rate
    state = jax.eval_shape(lambda: new_state(experiment, optimizer))
    held, parameters = (sum(leaf.size for leaf in jax.tree.leaves(each)) for each in (state.optimizer, state.params))
    return round(held / parameters, 1)


def device_report(experiment: ExperimentConfig) -> str:
    """The memory of each device and the bytes it sends, from formulas."""
    import jax

    from transformer_jax.planning.cost import MeshSize, amount, bytes_sent, memory

    mesh, work = experiment.mesh, work_of(experiment)
    size = MeshSize(mesh.data or max(jax.device_count() // (mesh.fsdp * mesh.tensor), 1), mesh.fsdp, mesh.tensor)
    here = jax.devices()[0].platform
    platform = here if here in ("gpu", "tpu") else "cpu"
    held = memory(experiment.model, work, size, moments_of(experiment), platform)
    sent = bytes_sent(experiment.model, work, size, platform)
    return "\n".join(
        [
            f"  On each device of {size}, in rows of {work.source} + {work.target} tokens (planning/cost.py):",
            f"  memory {amount(held.total)}: "
            + ", ".join(f"{name} {amount(part)}" for name, part in held._asdict().items()),
            "  sent in an update: " + ", ".join(f"{axis} {amount(part)}" for axis, part in sent._asdict().items()),
        ]
    )


def cluster_report(experiment: ExperimentConfig, text: str) -> str:
    """The best meshes on a cluster that need not exist, with predictions."""
    from transformer_jax.planning.cluster import parse_cluster, plans
    from transformer_jax.planning.cost import amount

    cluster, work = parse_cluster(text), work_of(experiment)
    found = plans(experiment.model, work, cluster, moments_of(experiment))
    lines = [
        f"Predicted, not measured: {cluster.devices} devices of {cluster.flops / 1e12:,.4g} TFLOP/s, used at "
        f"{cluster.utilisation:.0%}, and {amount(cluster.memory)};",
        f"an update of {work.source_tokens:,} + {work.target_tokens:,} tokens, rows of {work.source} + {work.target}.",
    ]
    if experiment.model.dtype != "bfloat16" and cluster.sheet is not None:
        peak = cluster.sheet.float32
        known = "" if peak is None else f"; the data sheet's float32 peak is flops={peak:g}e12"
        lines.append(f"That peak is bfloat16's, this config computes in float32: it will take longer{known}.")
    lines += ["", " data  fsdp  tensor  parts    memory      sent     update  efficiency  target tokens/s"]
    for plan in found[:SHOWN_PLANS]:
        mesh, fits = plan.mesh, plan.memory.total <= cluster.memory
        lines.append(
            f"{mesh.data:>5} {mesh.fsdp:>5} {mesh.tensor:>7} {plan.work.parts:>6} {amount(plan.memory.total):>9} "
            f"{amount(sum(plan.sent)):>9} {1000 * plan.seconds:>7,.1f} ms {plan.efficiency:>11.0%} "
            f"{plan.work.target_tokens / plan.seconds:>16,.0f}" + ("" if fits else "   does not fit")
        )
    if found[0].memory.total > cluster.memory:
        return "\n".join([*lines, "", "None fits: use more devices, or a smaller model or batch"])
    mesh, parts = found[0].mesh, found[0].work.parts
    options = {"mesh.data": mesh.data, "mesh.fsdp": mesh.fsdp, "mesh.tensor": mesh.tensor, "train.accumulate": parts}
    return "\n".join([*lines, "", " ".join(f"--config.{name}={value}" for name, value in options.items())])


def program_report(experiment: ExperimentConfig, file: Path) -> str:
    """Writes the compiled train step in XLA's text format; returns the memory it needs on each device."""
    from transformer_jax.files.atomic import explained, write_atomically
    from transformer_jax.planning.compiled import compiled_step, divisible, memory, mesh_of
    from transformer_jax.planning.cost import amount

    if not file.parent.is_dir():
        raise BadInput(f"--program={file}: there is no directory {file.parent}")
    work, mesh = work_of(experiment), mesh_of(experiment)
    rows = divisible(experiment, work.rows, mesh)
    program = compiled_step(experiment, mesh, (rows, work.source, work.target))
    with explained(file.parent), write_atomically(file) as written:
        written.write(str(program.as_text()).encode())
    needed = memory(program)
    return (
        f"{file}: the train step for {rows:,} rows of {work.source} + {work.target} tokens, compiled here. On "
        f"each device it needs {amount(needed.peak)}:\n  {amount(needed.state)} of state and batch, "
        f"{amount(needed.temporary)} of gradients, activations and logits"
    )


def compiled_report(experiment: ExperimentConfig, devices: str, program: str) -> "DeviceReport":
    """What a program of the config needs on accelerators that need not be here."""
    from transformer_jax.files.progress import tell
    from transformer_jax.planning import compiled
    from transformer_jax.planning.accelerators import parse_target
    from transformer_jax.planning.device_report import examine

    target = parse_target(devices)
    mesh, work, decode = compiled.mesh_of(experiment, target), work_of(experiment), experiment.decode
    tell(f"compiling for {len(target.devices)} x {target.chip.kind}; large models take minutes ...")
    if program == "train":
        rows = compiled.divisible(experiment, work.rows, mesh)
        made = compiled.compiled_step(experiment, mesh, (rows, work.source, work.target), target)
    else:
        rows = compiled.divisible(experiment, max(1, decode.tokens_per_batch // LENGTH), mesh)
        made = compiled.compiled_search(experiment, mesh, (rows, LENGTH), target)
    return examine(made, target, mesh, experiment.model, trains=program == "train")


def shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
