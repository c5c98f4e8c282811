"""Do narrow and wide models have the same best learning rate, with muP and without?

    transformer-jax sweep experiments/mup.py --scale=demo --workdir=runs/mup --jobs=2
    python experiments/mup.py runs/mup losses.svg

Models of d_model 64 to 512, each trained for 200 updates at learning rates a factor of 1.41 apart, in the standard
parametrisation and under muP (Yang et al. 2022) with the narrowest as the base, which is the same model in both. The
second command prints the final validation loss by width and rate, and each width's best rate: the lowest point of the
parabola through the best of the rates and its neighbours, as losses there differ by little. With the name of a picture
it plots them, too. It also works while the sweep is running. Expected: under muP the best rates are within a factor of
1.5 of each other; without, they fall by nearly as much as the width grows.

There is no dropout, which would have to be tuned for each width.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.errors import BadInput
from transformer_jax.extension import load_module
from transformer_jax.pictures import plots
from transformer_jax.report.results import load_sweep
from transformer_jax.sweeps import Sweep, Variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = ("demo",)
WIDTHS = (64, 128, 256, 512)
STANDARD, MUP = "standard", "muP"
# Learning rates of the base are 2 to the half of these. Without muP the best one falls by the width or by its root.
EXPONENTS = range(-18, -9)
# Losses by the parametrisation and the width, and by the learning rate.
Losses = dict[tuple[str, int], dict[float, float]]


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    base.model.update({"num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 4, "dropout": 0.0})
    base.model.d_model, base.model.d_ff = WIDTHS[0], 4 * WIDTHS[0]
    base.optimizer.warmup_steps = 50
    base.train.update({"steps": 200, "eval_every": 200, "checkpoint_every": 200})
    # The question is about losses: translate little, and quickly.
    base.data.task.test_size = 50
    base.decode.beam = 1
    variants = [
        variant(kind, width, rate) for width in WIDTHS for kind in (STANDARD, MUP) for rate in rates(kind, width)
    ]
    return Sweep(
        name="mup",
        question="Do narrow and wide models have the same best learning rate, with muP and without?",
        base=base,
        variants=variants,
        baseline=next(each.name for each in variants if each.group == f"{STANDARD}, d_model={WIDTHS[0]}"),
        primary="perplexity",
        notes=("`python experiments/mup.py SWEEP` prints the best learning rate of each width.",),
    )


def rates(kind: str, width: int) -> list[float]:
    """The learning rates of a width, to three digits; at the base both parametrisations are one."""
    if kind == MUP and width == WIDTHS[0]:
        return []
    doublings = int(math.log2(width / WIDTHS[0])) if kind == STANDARD else 0
    exponents = range(EXPONENTS.start - 2 * doublings, EXPONENTS.stop - doublings)
    return [float(f"{2 ** (exponent / 2):.3g}") for exponent in exponents]


def variant(kind: str, width: int, rate: float) -> Variant:
    changes = {"model.d_model": width, "model.d_ff": 4 * width, "optimizer.learning_rate": rate}
    if kind == MUP:
        changes["model.mup_base_d_model"] = WIDTHS[0]
    return Variant(f"{kind} d_model={width} rate={rate:g}", changes, group=f"{kind}, d_model={width}")


def best_rate(losses: Mapping[float, float]) -> tuple[float, bool]:
    """The learning rate of the lowest loss by a parabola over log(rate), and whether it is at the edge of the rates."""
    ordered = sorted(losses)
    at = ordered.index(min(losses, key=losses.__getitem__))
    if at in (0, len(ordered) - 1):
        return ordered[at], True
    (x, y, z), (a, b, c) = (
        (values[at - 1], values[at], values[at + 1])
        for values in (list(map(math.log, ordered)), [losses[rate] for rate in ordered])
    )
    # The vertex of the parabola through three points.
    above = (y - x) ** 2 * (b - c) - (y - z) ** 2 * (b - a)
    below = (y - x) * (b - c) - (y - z) * (b - a)
    return math.exp(y - 0.5 * above / below), False


def losses_of(folder: str) -> Losses:
    """The mean final validation loss of the finished runs."""
    losses: Losses = {}
    for each in load_sweep(folder).variants:
        found = [run.result["valid"]["loss"] for run in each.finished]
        if found:
            kind, width = each.group.split(", d_model=")
            mean = sum(found) / len(found)
            losses.setdefault((kind, int(width)), {})[each.changes["optimizer.learning_rate"]] = mean
    return losses


def print_losses(losses: Losses) -> None:
    tried = sorted({rate for by_rate in losses.values() for rate in by_rate})
    print(" ".join([f"{'d_model':<14}", *(f"{rate:>8g}" for rate in tried), "    best"]))
    for (kind, width), by_rate in sorted(losses.items(), key=lambda item: (item[0][0] == MUP, item[0][1])):
        cells = [f"{by_rate[rate]:>8.4f}" if rate in by_rate else f"{'':>8}" for rate in tried]
        rate, is_edge = best_rate(by_rate)
        print(" ".join([f"{kind + ' ' + str(width):<14}", *cells, f"{rate:>8.3g}"]), "(at the edge)" * is_edge)


def plot_losses(losses: Losses) -> Figure:
    """A panel of each parametrisation, with a line of losses and the best rate of each width."""
    figure = plots.plain_figure(8.0, 3.4)
    for axes, kind in zip(figure.subplots(1, 2, sharex=True, sharey=True), (STANDARD, MUP), strict=True):
        for width, colour in zip(WIDTHS, plots.COLOURS, strict=False):
            # At the base both parametrisations are one.
            by_rate = losses.get((STANDARD if width == WIDTHS[0] else kind, width))
            if by_rate:
                rates, values = zip(*sorted(by_rate.items()), strict=True)
                axes.plot(rates, values, color=colour, marker=".", label=f"d_model {width}")
                axes.axvline(best_rate(by_rate)[0], color=colour, linewidth=1, linestyle=":")
        axes.set_xscale("log")
        axes.set_xlabel("peak learning rate (dotted: the best)", color=plots.INK)
        plots.style(axes, kind)
        plots.lines_across(axes)
    figure.axes[0].set_ylabel("validation loss", color=plots.INK)
    if figure.axes[1].lines:
        figure.axes[1].legend(frameon=False, labelcolor=plots.INK)
    return figure


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    try:
        found = losses_of(sys.argv[1])
        print_losses(found)
        for picture in sys.argv[2:]:
            plots.save(plot_losses(found), picture)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
