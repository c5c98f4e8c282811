"""The coordinate check of muP (Yang et al. 2022, appendix D.1): how large activations are in a few updates, by width.

    python experiments/coordinates.py --config=configs/demo.py --output=coordinates.svg
    python experiments/coordinates.py --config=configs/demo.py --widths=64,128,256 --config.model.mup_base_d_model=64

Under the right parametrisation a layer's output is as large, and an update changes it as much, in a wide model as in a
narrow one. In the standard one the changes grow with the width. The batches are from the config's data where it is
prepared; otherwise random tokens that are to be copied. docs/tuning.md
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer_jax.commands import configuration
from transformer_jax.commands.arguments import add_run, at_least
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch, training_batches
from transformer_jax.data.prepared import MANIFEST, Prepared
from transformer_jax.data.tokenizer import BOS, EOS, SPECIAL_PIECES
from transformer_jax.errors import BadInput
from transformer_jax.experiment import with_vocabulary
from transformer_jax.model.transformer import AttentionInputs, Transformer, matmul_precision
from transformer_jax.pictures import plots
from transformer_jax.processes.compilation import use_cache
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule
from transformer_jax.update.step import PACKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The most tokens of a side in a batch, and the rows and lengths of random ones.
MOST_TOKENS, ROWS, LENGTH = 2048, 32, 16
# An exponent of the width this near to 0 is flat. Scores and logits begin at -1/2 under muP, where initial weights,
# which are independent, dominate them, and their first changes may lie between.
FLAT, FALLING, TINY = 0.25, ("scores", "logits"), 1e-30
# Quantity -> what it is at each token (or pair of tokens).
Activations = dict[str, jax.Array]


class Sizes(NamedTuple):
    """Mean absolute values of one quantity, by width and update: initially, after one update, after two ..."""

    values_WU: np.ndarray
    changes_WU: np.ndarray  # since the start; the first column is zero

    def slopes(self, widths: Sequence[int]) -> tuple[float, float]:
        """The exponents with which the size and the change grow with the width, after the last update."""
        last = (np.log(np.maximum(sizes_WU[:, -1], TINY)) for sizes_WU in self)
        values, changes = (float(np.polyfit(np.log(widths), each, 1)[0]) for each in last)
        return values, changes


def coordinate_check(
    config: ExperimentConfig,
    widths: Sequence[int],
    batches: Sequence[Batch],
) -> dict[str, Sizes]:
    """The sizes of each quantity, on the first batch, of models of these widths while they train on the batches.

    All updates have the learning rate of the config's peak.
    """
    found = []
    for width in widths:
        found.append(_of_width(widened(config, width), batches))
    return {
        name: Sizes(*(np.array([sizes[name][kind] for sizes in found]) for kind in (0, 1)))
        for name in sorted(found[0], key=_order)
    }


def verdict(sizes: dict[str, Sizes], widths: Sequence[int]) -> str:
    """Whether the parametrisation is right, in a sentence."""
    if broken := [name for name, each in sizes.items() if not np.isfinite(each).all()]:
        return f"diverged: {broken[0]} is not finite; the learning rate may be too high"
    slopes = {name: each.slopes(widths) for name, each in sizes.items()}
    most = max(slopes, key=lambda name: max(slopes[name]))
    vanishing = {name: change + 0.5 * name.endswith(FALLING) for name, (_, change) in slopes.items()}
    least = min(vanishing, key=lambda name: vanishing[name])
    if max(slopes[most]) > FLAT:
        return (
            f"not flat: {most} grow with the width, as its power {max(slopes[most]):.2f}; a rate is for one width only"
        )
    if vanishing[least] < -FLAT:
        return f"not flat: the updates of {least} vanish with the width, as its power {slopes[least][1]:.2f}"
    return f"flat: nothing grows with the width (at most as its power {max(slopes[most]):.2f})"


def widened(config: ExperimentConfig, width: int) -> ExperimentConfig:
    """The config with another d_model, and the other widths in proportion; the same numbers of heads and layers."""
    model = config.model
    sizes = {name: getattr(model, name) for name in ("d_model", "d_ff", "d_k", "d_v")}
    in_proportion = {name: round(size * width / model.d_model) for name, size in sizes.items() if size}
    train = dataclasses.replace(config.train, accumulate=1)
    return dataclasses.replace(config, model=dataclasses.replace(model, **in_proportion), train=train)


def random_batch(config: ExperimentConfig) -> Batch:
    """Sentences of random tokens that are to be copied."""
    model, random = config.model, np.random.default_rng(config.seed)
    classes = min(model.vocab_size, model.target_vocab_size or model.vocab_size)
    words = random.integers(min(len(SPECIAL_PIECES), classes - 1), classes, (ROWS, LENGTH - 1), np.int32)
    first, last = (np.full((ROWS, 1), token, np.int32) for token in (BOS, EOS))
    sentences = np.concatenate([words, last], axis=1)
    return Batch(sentences, np.concatenate([first, words], axis=1), sentences)


def _of_width(config: ExperimentConfig, batches: Sequence[Batch]) -> dict[str, Any]:
    """For each quantity its sizes and changes, initially and after each update."""
    mesh = sharding.make_mesh(config.mesh)
    constant = dataclasses.replace(config.optimizer, schedule="constant")
    peak = float(make_schedule(constant, config.model.base_d_model, 1)(constant.warmup_steps))
    steps = CompiledRuns([config], [lambda count: peak + 0.0 * count], mesh)
    placed = [sharding.place_batch(_cut(batch, sharding.batch_shards(mesh)), mesh) for batch in batches]

    @jax.jit
    def sizes(params: Any, initial: Any) -> dict[str, tuple[jax.Array, jax.Array]]:
        now, before = (activations(config, each, placed[0]) for each in (params, initial))
        # The mean over what is not masked, where it is zero at all times.
        share = {name: jnp.mean(jnp.abs(now[name]) + jnp.abs(before[name]) > 0) for name in now}
        means = {name: (jnp.mean(jnp.abs(now[name])), jnp.mean(jnp.abs(now[name] - before[name]))) for name in now}
        return {name: (value / share[name], change / share[name]) for name, (value, change) in means.items()}

    state = steps.new_states()
    initial = jax.tree.map(jnp.copy, state.params)
    found = [jax.device_get(sizes(initial, initial))]
    for batch in placed:
        state, _ = steps.advance(state, batch)
        found.append(jax.device_get(sizes(state.params, initial)))
    return {
        name: ([float(each[name][0]) for each in found], [float(each[name][1]) for each in found]) for name in found[0]
    }


def activations(config: ExperimentConfig, params: Any, batch: Batch) -> Activations:
    """Each layer's output, attention's scores and the logits; zero at padding, and where attention is masked.

    The scores follow from attention's weights, up to a constant for each query: here their mean is zero.
    """
    inputs = AttentionInputs(**{name: getattr(batch, name) for name in PACKING})
    with matmul_precision(config.model):
        logits_BTN, state = Transformer(config.model).apply(
            {"params": params},
            batch.source,
            batch.target_input,
            inputs,
            capture_intermediates=lambda module, method: method == "__call__" and _is_layer(module),
            mutable=["intermediates"],
        )
    found: Activations = {}
    tokens = {"encoder": batch.source, "decoder": batch.target_output}
    kept = {side: (ids != config.model.pad_id)[..., None] for side, ids in tokens.items()}
    for side in tokens:
        layers = state["intermediates"][side]
        for layer in sorted(layers, key=lambda name: int(name.rpartition("_")[2])):
            for output in layers[layer].pop("__call__"):
                number = sum(name.startswith(f"{side} layer") for name in found) + 1
                x_BTD = output[0] if isinstance(output, tuple) else output
                found[f"{side} layer {number}"] = jnp.where(kept[side], x_BTD.astype(jnp.float32), 0)
            for attention, sown in layers[layer].items():
                for weights_BHTS in sown.get("weights", ()):
                    name = f"{side} {attention.replace('_', '-')} scores"
                    more = _scores(weights_BHTS, kept[side])
                    found[name] = jnp.concatenate([found[name], more]) if name in found else more
    return {**found, "logits": jnp.where(kept["decoder"], logits_BTN, 0)}


def _order(name: str) -> tuple[int, bool, int]:
    """Layers as data passes them, then scores, then logits."""
    last = name.split()[-1]
    kind = FALLING.index(last) + 1 if last in FALLING else 0
    return kind, not name.startswith("encoder"), int(last) if last.isdigit() else 0


def _is_layer(module: nn.Module) -> bool:
    return module.name is not None and module.name.startswith("layers_")


def _scores(weights_BHTS: jax.Array, kept_BT1: jax.Array) -> jax.Array:
    seen = (weights_BHTS > 0) & kept_BT1[:, None]
    scores = jnp.where(seen, jnp.log(jnp.where(seen, weights_BHTS, 1)), 0)
    mean = jnp.sum(scores, axis=-1, keepdims=True) / jnp.maximum(jnp.sum(seen, axis=-1, keepdims=True), 1)
    return jnp.where(seen, scores - mean, 0)


def _cut(batch: Batch, devices: int) -> Batch:
    """The first rows of a batch, at most this number of tokens per side, equally many on each device."""
    length = max(batch.source.shape[1], batch.target_input.shape[1])
    rows = min(len(batch.source), MOST_TOKENS // length)
    return jax.tree.map(lambda array: array[: max(rows // devices, 1) * devices], batch)


def batches_of(
    experiment: ExperimentConfig, workdir: str | None, updates: int
) -> tuple[ExperimentConfig, list[Batch], str]:
    """The experiment with the vocabulary of its data, the batches, and where they are from."""
    directory = RunFolder(workdir or "").data(experiment)
    if (workdir is None and experiment.data.directory is None) or not (directory / MANIFEST).is_file():
        return experiment, [random_batch(experiment)] * updates, "random tokens"
    prepared, mesh = Prepared.open(directory), sharding.make_mesh(experiment.mesh)
    batches = training_batches(experiment.data, prepared.pairs("train"), sharding.batch_shards(mesh))
    share = sharding.batch_share(mesh)
    first = [batches.batch(step, *share) for step in range(updates)]
    return with_vocabulary(experiment, prepared), first, str(directory)


def drawn(sizes: Mapping[str, Any], widths: Sequence[int], title: str = "") -> Figure:
    """A coordinate check: the size of each quantity, and its change since the start, by width, with a line per update.

    `sizes` has both for each quantity, with an axis of widths and one of updates. All panels span the same factor, so
    that what is flat looks flat.
    """
    panels: dict[str, np.ndarray] = {}
    for name, (values_WU, changes_WU) in sizes.items():
        panels |= {name: np.asarray(values_WU), f"{name}: change": np.asarray(changes_WU)[:, 1:]}
    panels = {name: np.where(np.isfinite(panel) & (panel > 0), panel, np.nan) for name, panel in panels.items()}
    known = {name: panel[~np.isnan(panel)] for name, panel in panels.items()}
    factor = max([30.0, *(1.5 * panel.max() / panel.min() for panel in known.values() if panel.size)])
    across = min(4, len(panels))
    down = -(-len(panels) // across)
    figure = plots.plain_figure(2.6 * across, 1.9 * down + 0.8)
    grid = figure.subplots(down, across, squeeze=False, sharex=True).flat
    for axes, (name, panel_WU) in zip(grid, panels.items(), strict=False):
        for shade, sizes_W in zip(np.linspace(0.2, 1, panel_WU.shape[1]), panel_WU.T, strict=True):
            axes.plot(widths, sizes_W, color=plots.COLOURS[0], alpha=shade, linewidth=1.5, marker=".")
        axes.set_title(name, loc="left", fontsize=8, color=plots.INK)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        if known[name].size:
            middle = float(np.sqrt(known[name].max() * known[name].min()))
            axes.set_ylim(middle * factor**-0.5, middle * factor**0.5)
        axes.set_xticks(widths, [f"{width:,}" for width in widths])
        axes.yaxis.set_minor_formatter("")
        axes.tick_params(labelsize=7, colors=plots.INK)
        plots.lines_across(axes)
        axes.set_frame_on(False)
    for axes in grid:
        axes.set_visible(False)
    figure.suptitle(plots.literal(title), color=plots.INK)
    figure.supxlabel("d_model (the darker the line, the later the update)", fontsize=8, color=plots.INK)
    return figure


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    configuration.add_arguments(parser)
    parser.add_argument(
        "--widths",
        type=lambda text: sorted(set(map(at_least(1), text.split(",")))),
        default=[64, 128, 256, 512],
        help="two or more values of d_model; d_ff, d_k and d_v change in proportion (default 64,128,256,512)",
    )
    parser.add_argument(
        "--updates", type=at_least(1), default=5, help="updates, all at the peak learning rate (default 5)"
    )
    parser.add_argument("--output", type=Path, required=True, help="the picture: .svg, .png or .pdf")
    add_run(parser, "where the data is prepared; by default data.directory, or random tokens", required=False)
    overrides, rest = configuration.split_overrides(list(sys.argv[1:] if words is None else words))
    arguments = parser.parse_args(rest)
    if len(arguments.widths) < 2:
        parser.error("--widths: must be two or more")
    plots.check_format(arguments.output)
    experiment, batches, source = batches_of(
        configuration.load(arguments.config, overrides), arguments.workdir, arguments.updates
    )
    use_cache(experiment.train.compile_cache)
    print(f"{arguments.updates} updates at each of {len(arguments.widths)} widths, on {source}")
    sizes = coordinate_check(experiment, arguments.widths, batches)
    print(f"{'power of the width after the last update':<40} {'size':>6} {'change':>7}")
    for name, each in sizes.items():
        value, change = each.slopes(arguments.widths)
        print(f"{name:<40} {value:>6.2f} {change:>7.2f}")
    conclusion = verdict(sizes, arguments.widths)
    print(conclusion)
    base = experiment.model.mup_base_d_model
    kind = "standard parametrisation" if base is None else f"muP, base {base}"
    plots.save(drawn(sizes, arguments.widths, f"{kind}: {conclusion.partition(':')[0]}"), arguments.output)


if __name__ == "__main__":
    try:
        main()
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
