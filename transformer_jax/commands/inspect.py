"""Shows what a config means before anything runs: every option, and the model it describes, parameter by parameter.

transformer-jax inspect --config=configs/base.py
transformer-jax inspect --config=configs/base.py --config.model.num_heads=16
transformer-jax inspect --config=configs/base.py --workdir=runs/base --data
transformer-jax inspect --options
"""

import argparse
import collections
import math
import re
from typing import NamedTuple

from transformer_jax import schema
from transformer_jax.commands import configuration
from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.errors import BadInput

# Sentences that the cost of a token is told for: attention's share of it grows with their length.
LENGTH = 32
# The model's own modules in the order in which a sentence meets them.
ORDER = ("source_embedding", "encoder", "target_embedding", "decoder", "output_embedding", "output_bias")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser, required=False)
    parser.add_argument(
        "--workdir", metavar="RUN", help="a run's folder: its own config, where --config gives no other"
    )
    parser.add_argument("--data", action="store_true", help="the prepared data and its batches: shapes and padding")
    parser.add_argument("--options", action="store_true", help="list every option there is, with default and meaning")


def run(arguments: argparse.Namespace) -> None:
    if arguments.options:
        print(options_table())
        return
    experiment = inspected(arguments)
    if arguments.data:
        print(data_report(experiment, arguments.workdir))
        return
    from transformer_jax.tryout import try_out

    try_out(experiment)
    print(f"{resolved(experiment)}\n\n{size_report(experiment)}")


def inspected(arguments: argparse.Namespace) -> ExperimentConfig:
    """The experiment of a config file, or the one a run was started with."""
    if arguments.config is not None:
        return configuration.load(arguments.config, arguments.overrides)
    if arguments.workdir is None:
        raise BadInput("inspect needs --config=FILE.py, --workdir=RUN or --options")
    if arguments.overrides:
        raise BadInput(f"--config.{arguments.overrides[0][0]}: needs --config=FILE.py, whose option it changes")
    from transformer_jax.training.run_folder import RunFolder

    return RunFolder(arguments.workdir).load_config()


def data_report(experiment: ExperimentConfig, workdir: str | None) -> str:
    """What was prepared, and the batches that are made of it."""
    from transformer_jax.data.batching import training_batches
    from transformer_jax.data.prepared import Prepared
    from transformer_jax.training.run_folder import RunFolder

    if experiment.data.directory is None and workdir is None:
        raise BadInput("inspect --data needs --workdir=RUN or --config.data.directory=DIR, where the data was prepared")
    prepared = Prepared.open(RunFolder(workdir or "").data(experiment))
    batches = training_batches(experiment.data, prepared.pairs("train"))
    return f"{prepared.summary()}\n\n{experiment.data.batching}: {batches.statistics()}"


def options_table() -> str:
    """Every option as a Markdown table: what docs/options.md holds."""
    rows = ["| option | default | what it may be | meaning |", "|---|---|---|---|"]
    for option in schema.options(ExperimentConfig):
        limits = " and ".join(f"{word} {limit:g}" for word, limit in option.limits.items())
        kind = option.type_name.replace("|", "\\|") + (f", {limits}" if limits else "")
        rows.append(f"| `{option.path}` | `{shown(option.default)}` | {kind} | {option.meaning} |")
    return "\n".join(rows)


def resolved(experiment: ExperimentConfig) -> str:
    """The whole config, one option a line; what differs from the defaults is marked."""
    lines = []
    for option in schema.options(ExperimentConfig):
        value = schema.value_at(experiment, option.path)
        mark, note = ("*", f"   (default {shown(option.default)})") if value != option.default else (" ", "")
        lines.append(f"{mark} {option.path:<38} {shown(value)}{note}")
    return "\n".join(lines)


class Group(NamedTuple):
    """Parameters of one name and shape, in as many layers as have them."""

    name: str
    shape: tuple[int, ...]
    times: int

    @property
    def total(self) -> int:
        return math.prod(self.shape) * self.times


def parameter_groups(model: ModelConfig) -> list[Group]:
    """The parameters of the model as it is really built, replaced parts included; layers that are alike are one."""
    import jax
    import jax.numpy as jnp

    from transformer_jax.model.transformer import Transformer

    tokens = jnp.ones((1, 1), jnp.int32)
    params = jax.eval_shape(Transformer(model).init, jax.random.key(0), tokens, tokens)["params"]
    counted: collections.Counter[tuple[str, tuple[int, ...]]] = collections.Counter()
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for path, leaf in sorted(leaves, key=lambda item: ORDER.index(item[0][0].key)):
        name = "/".join(key.key for key in path)
        counted[re.sub(r"(layers|positions)_\d+", r"\1", name), leaf.shape] += 1
    return [Group(name, shape, times) for (name, shape), times in counted.items()]


def size_report(experiment: ExperimentConfig) -> str:
    """Every parameter, their number, and what a token and a batch cost."""
    model = experiment.model
    groups = parameter_groups(model)
    lines = [f"  {'parameters':<50} {'shape':>14}  layers {'total':>13}"]
    for group in groups:
        shape, times = " x ".join(map(str, group.shape)), f"x {group.times}" if group.times > 1 else ""
        lines.append(f"  {group.name:<50} {shape:>14} {times:>7} {group.total:>13,}")
    lines.append(f"  {'all':<50} {'':>14} {'':>7} {sum(group.total for group in groups):>13,}")
    return "\n".join([*lines, "", *_cost(model, experiment.data.tokens_per_batch)])


def _cost(model: ModelConfig, tokens: int) -> list[str]:
    from transformer_jax.model.size import forward_flops, training_flops

    forward, training = (flops(model, LENGTH, LENGTH) for flops in (forward_flops, training_flops))
    own = [name for name in schema.to_dict(model.parts) if getattr(model.parts, name) is not None]
    return [
        f"  Matrix products, in sentences of {LENGTH} + {LENGTH} tokens, training = 3 x forward (model/size.py):",
        f"  a source token {forward.source_token / 1e6:,.1f} MFLOP forward, {training.source_token / 1e6:,.1f} trained",
        f"  a target token {forward.target_token / 1e6:,.1f} MFLOP forward, {training.target_token / 1e6:,.1f} trained",
        f"  a batch of {tokens:,} + {tokens:,} tokens {training.of(tokens, tokens) / 1e12:,.3g} TFLOP trained",
        *([f"  (counted with the library's own {', '.join(own)})"] if own else []),
    ]


def shown(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
