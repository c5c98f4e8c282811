"""Shows what a config describes: every option, every parameter of the model, and what training costs.

transformer-jax inspect --config=configs/base.py
transformer-jax inspect --config=configs/base.py --config.model.num_heads=16
transformer-jax inspect --config=configs/base.py --workdir=runs/base --data
transformer-jax inspect --config=configs/base.py --program=step.txt
transformer-jax inspect --config=configs/base.py --compile-for=v5e:2x4
transformer-jax inspect --options
"""

import argparse
import collections
import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

from transformer_jax import schema
from transformer_jax.commands import configuration
from transformer_jax.commands.arguments import add_run, path
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput

# The model's modules in the order of the forward pass.
ORDER = ("source_embedding", "encoder", "target_embedding", "decoder", "output_embedding", "output_bias")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser, required=False)
    add_run(parser, "a run's folder: show its config, unless --config is given", required=False)
    one = parser.add_mutually_exclusive_group()
    about = "the prepared data, and batches in buckets and packed: programs, padding"
    one.add_argument("--data", action="store_true", help=about)
    one.add_argument("--options", action="store_true", help="list all options with defaults and meanings")
    about = "write the compiled program to FILE and print its memory; without --compile-for it is for this machine"
    one.add_argument("--program", type=path, metavar="FILE", help=about)
    about = (
        "cross-compile for GPUs or TPUs that need not be here; print memory, FLOPs, bytes accessed and collectives: "
    )
    about += "8xH100, 64xA100, v5e:2x4, v5p:8x8x8 (docs/accelerators.md)"
    parser.add_argument("--compile-for", metavar="DEVICES", help=about)
    about = "the program to compile: the train step (default), or the search"
    parser.add_argument("--program-of", choices=("train", "decode"), help=about)
    parser.add_argument("--json", action="store_true", help="print what was compiled as JSON")


def run(arguments: argparse.Namespace) -> None:
    is_compiled = arguments.compile_for or arguments.program
    if is_compiled and (arguments.data or arguments.options):
        raise BadInput("--compile-for and --program have no effect with --data or --options")
    if (arguments.json or arguments.program_of) and not is_compiled:
        raise BadInput("--json and --program-of need --compile-for or --program")
    if arguments.options:
        print(options_table())
        return
    experiment = inspected(arguments)
    if arguments.data:
        print(data_report(experiment, arguments.workdir))
        return
    from transformer_jax.experiment import try_out

    try_out(experiment)
    if is_compiled:
        print(compiled_report(experiment, arguments))
    else:
        print(f"{resolved(experiment)}\n\n{size_report(experiment)}")


def inspected(arguments: argparse.Namespace) -> ExperimentConfig:
    """The experiment of a config file, or of a run."""
    if arguments.config is not None:
        return configuration.load(arguments.config, arguments.overrides)
    if arguments.workdir is None:
        raise BadInput("inspect needs --config=FILE.py, --workdir=RUN or --options")
    if arguments.overrides:
        raise BadInput("--config.NAME=VALUE changes a config file: give --config=FILE.py, too")
    from transformer_jax.runs.folder import RunFolder

    return RunFolder(arguments.workdir).load_config()


def data_report(experiment: ExperimentConfig, workdir: str | None) -> str:
    """The prepared data, and its batches on the config's mesh, whose devices need not be here, both in buckets and
    packed."""
    import jax

    from transformer_jax.data.batching import training_batches
    from transformer_jax.data.prepared import Prepared
    from transformer_jax.runs.folder import RunFolder

    if workdir is None and experiment.data.directory is None:
        raise BadInput("--data needs --workdir=RUN or --config.data.directory=FOLDER")
    prepared = Prepared.open(RunFolder(workdir or "").data(experiment))
    mesh = experiment.mesh
    shares = (mesh.data or max(jax.device_count() // (mesh.fsdp * mesh.tensor), 1)) * mesh.fsdp
    parts = shares * experiment.train.accumulate
    lines = [f"{'':<9}{'programs':>10}{'updates per epoch':>18}{'not padding':>13}"]
    for batching in ("buckets", "packing"):
        data = dataclasses.replace(experiment.data, batching=batching)
        found = training_batches(data, prepared.pairs("train"), parts).statistics()
        lines.append(f"{batching:<9}{len(found.shapes):>10,}{found.steps_per_epoch:>18,}{found.share:>13.1%}")
        if batching == experiment.data.batching:
            chosen = f"{batching}, in {parts} parts (devices that share a batch x train.accumulate): {found}"
    return "\n".join([prepared.summary(), "", *lines, "", chosen])


def options_table() -> str:
    """All options as Markdown, a table for each group."""
    lines = []
    groups = itertools.groupby(schema.options(ExperimentConfig), lambda option: option.path.partition(".")[0])
    for name, options in groups:
        lines += [f"\n## {name}\n", "| option | default | what it may be | meaning |", "|---|---|---|---|"]
        for option in options:
            kind = option.kind_in_words.replace("|", "\\|")
            limits = f", {option.limits_in_words}" if option.limits else ""
            lines.append(f"| `{option.path}` | `{shown(option.default)}` | {kind}{limits} | {option.meaning} |")
    return "\n".join(lines)


def resolved(experiment: ExperimentConfig) -> str:
    """The whole config, an option a line; those that differ from the defaults are marked."""
    lines = []
    for option in schema.options(ExperimentConfig):
        value = schema.value_at(experiment, option.path)
        mark, note = ("*", f"   (default {shown(option.default)})") if value != option.default else (" ", "")
        lines.append(f"{mark} {option.path:<38} {shown(value)}{note}")
    return "\n".join(lines)


def size_report(experiment: ExperimentConfig) -> str:
    """All parameters as the model is built, with custom modules, and the FLOPs of a token and a batch."""
    from transformer_jax.model.size import forward_flops, training_flops
    from transformer_jax.model.transformer import abstract_params
    from transformer_jax.planning import LENGTH
    from transformer_jax.runs.export import flat

    model, tokens = experiment.model, experiment.data.tokens_per_batch
    counted: collections.Counter[tuple[str, tuple[int, ...]]] = collections.Counter()
    for name, leaf in sorted(flat(abstract_params(model)).items(), key=lambda item: ORDER.index(item[0].split("/")[0])):
        counted[re.sub(r"(layers|positions)_\d+", r"\1_N", name), leaf.shape] += 1
    lines = [f"  {'parameters':<50} {'shape':>14}  layers {'total':>13}"]
    for (name, sizes), layers in counted.items():
        shape, times = " x ".join(map(str, sizes)), f"x {layers}" if layers > 1 else ""
        lines.append(f"  {name:<50} {shape:>14} {times:>7} {layers * math.prod(sizes):>13,}")
    total = sum(layers * math.prod(sizes) for (_, sizes), layers in counted.items())
    forward, training = (flops(model, LENGTH, LENGTH) for flops in (forward_flops, training_flops))
    lines += [
        f"  {'all':<50} {'':>14} {'':>7} {total:>13,}\n",
        f"  Matrix products, for sentences of {LENGTH} + {LENGTH} tokens, training = 3 x forward (model/size.py):",
        f"  source token {forward.source_token / 1e6:,.1f} MFLOP forward, {training.source_token / 1e6:,.1f} training",
        f"  target token {forward.target_token / 1e6:,.1f} MFLOP forward, {training.target_token / 1e6:,.1f} training",
        f"  batch of {tokens:,} + {tokens:,} tokens {training.of(tokens, tokens) / 1e12:,.3g} TFLOP training",
    ]
    if custom := [name for name, part in dataclasses.asdict(model.parts).items() if part is not None]:
        lines.append(f"  (counted with the built-in {', '.join(custom)})")
    return "\n".join(lines)


def compiled_report(experiment: ExperimentConfig, arguments: argparse.Namespace) -> str:
    """The needs of a compiled program on each device; writes it, in XLA's text format, to the --program file."""
    from transformer_jax.files.atomic import write_text
    from transformer_jax.files.progress import tell
    from transformer_jax.planning import compile_for, examine, here, in_words, parse_target

    target = here() if arguments.compile_for is None else parse_target(arguments.compile_for)
    if arguments.program and not Path(arguments.program).parent.is_dir():
        raise BadInput(f"--program={arguments.program}: must be in a directory that exists")
    tell(f"compiling for {len(target.devices)} x {target.chip.kind}; large models take minutes ...")
    compiled = compile_for(experiment, target, arguments.program_of or "train")
    if arguments.program:
        write_text(Path(arguments.program), str(compiled.program.as_text()))
    report = examine(compiled, target, experiment.model)
    return json.dumps(report, indent=2) if arguments.json else in_words(report)


def shown(value: object) -> str:
    if value in (None, (), {}):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
