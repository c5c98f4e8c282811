"""Pictures: attention (the paper's figures 3-5), positional encodings, learning-rate schedules. PNG, SVG or PDF.

Each function returns a matplotlib Figure; `save` writes it in the format that the file's suffix names. matplotlib is
imported when a picture is drawn, and draws without a screen.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import explained, published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
INK = "#1f2933"
HEAT, SIGNED = "Blues", "RdBu_r"
COLOURS = ("#2f6fb3", "#d1603d", "#3a8f5c", "#8a5aa8", "#c2912e", "#4a9aa5", "#b0467a", "#6b7280")


def save(figure: Figure, path: str | Path) -> None:
    """Writes a picture as PNG, SVG or PDF, as the file's suffix says."""
    check_format(path)
    # Without a date, so that the same picture is the same file.
    metadata = {"Date": None} if Path(path).suffix == ".svg" else {}
    drawn, form = io.BytesIO(), Path(path).suffix.removeprefix(".").lower()
    figure.savefig(drawn, format=form, dpi=160, bbox_inches="tight", facecolor="white", metadata=metadata)
    with explained(Path(path)), published(Path(path)) as file:
        file.write(drawn.getvalue())


def check_format(path: str | Path) -> None:
    """Refuses a file name that no picture can be written to, before anything is drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise BadInput(f"{path}: the name of a picture must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    check_directory(path)


def check_directory(path: str | Path) -> None:
    if not Path(path).resolve().parent.is_dir():
        raise BadInput(f"{path}: the directory {Path(path).parent} does not exist")


def attention_map(
    weights_TS: ArrayLike, source_pieces: Sequence[str], target_pieces: Sequence[str], title: str = ""
) -> Figure:
    """One head as a heat map: a row for each query (target piece), a column for each key (source piece)."""
    weights = _weights_of(weights_TS, source_pieces, target_pieces)
    rows, columns = weights.shape
    figure, axes = _one(max(3.0, 0.34 * columns + 1.6), max(2.4, 0.34 * rows + 1.4))
    image = _heat(axes, weights)
    _pieces(axes, source_pieces, target_pieces)
    if title:
        axes.set_title(_plain(title), pad=10, loc="left", color=INK)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.03, ticks=[0, 0.5, 1])
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=INK, labelsize=8)
    return figure


def attention_heads(
    weights_HTS: ArrayLike, source_pieces: Sequence[str], target_pieces: Sequence[str], title: str = ""
) -> Figure:
    """All heads of one layer side by side, at most four in a row; pieces are named at the outer edges."""
    heads = np.asarray(weights_HTS, np.float64)
    if heads.ndim != 3:
        raise BadInput(f"the weights of all heads have three axes (head, query, key), here {heads.shape}")
    checked = [_weights_of(head, source_pieces, target_pieces) for head in heads]
    across = min(4, len(checked))
    down = -(-len(checked) // across)
    size = (max(1.8, 0.2 * len(source_pieces)), max(1.6, 0.2 * len(target_pieces)))
    figure = _canvas(across * size[0] + 1.4, down * (size[1] + 0.35) + 1.2)
    for number, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        if number >= len(checked):
            axes.set_visible(False)
            continue
        _heat(axes, checked[number])
        _pieces(
            axes,
            source_pieces if number < across else (),
            target_pieces if number % across == 0 else (),
            size=7,
        )
        axes.set_xlabel(f"head {number + 1}", fontsize=9, color=INK)
    if title:
        figure.suptitle(_plain(title), color=INK)
    return figure


def attention_lines(
    weights_HTS: ArrayLike, source_pieces: Sequence[str], target_pieces: Sequence[str], title: str = ""
) -> Figure:
    """As in the paper's appendix: pieces above (queries) tied to pieces below (keys), a colour for each head.

    The stronger the weight, the thicker and darker the line; weights under 0.02 have none.
    """
    heads = np.asarray(weights_HTS, np.float64)
    heads = heads[None] if heads.ndim == 2 else heads
    checked = [_weights_of(head, source_pieces, target_pieces) for head in heads]
    width = max(len(source_pieces), len(target_pieces))
    figure, axes = _one(max(4.0, 0.42 * width + 0.6), 4.2)
    for head, weights in enumerate(checked):
        colour = COLOURS[head % len(COLOURS)]
        for t, s in zip(*np.nonzero(weights >= 0.02), strict=True):
            strength = weights[t, s]
            look = {"alpha": 0.15 + 0.75 * strength, "linewidth": 0.4 + 3.2 * strength, "solid_capstyle": "round"}
            axes.plot([t, s], [1, 0], color=colour, **look)
    for pieces, height, alignment in ((target_pieces, 1.03, "bottom"), (source_pieces, -0.03, "top")):
        for place, piece in enumerate(pieces):
            axes.text(place, height, _plain(piece), rotation=90, ha="center", va=alignment, fontsize=9, color=INK)
    axes.set(xlim=(-0.6, width - 0.4), ylim=(-0.02, 1.02))
    axes.set_axis_off()
    if title:
        figure.suptitle(_plain(title), color=INK)
    return figure


def positional_encoding(table_LD: ArrayLike, title: str = "Positional encoding") -> Figure:
    """A table of positions, `sinusoidal_positions(50, 128)` or a learned one: a row each, a column a dimension."""
    table = np.asarray(table_LD, np.float64)
    largest = float(np.abs(table).max())
    figure, axes = _one(8.4, 4.4)
    image = axes.imshow(table, cmap=SIGNED, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    axes.set_xlabel("dimension", color=INK)
    axes.set_ylabel("position", color=INK)
    axes.set_title(_plain(title), loc="left", pad=10, color=INK)
    _bare(axes)
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02, ticks=[-largest, 0, largest], format="%.2g")
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=INK)
    return figure


def schedule(rate: Callable[[Any], Any], steps: int, title: str = "Learning rate") -> Figure:
    """A learning-rate schedule (step -> rate) over its steps, with its peak marked."""
    at = np.unique(np.linspace(0, steps, 1001).astype(int))
    rates = np.array([float(rate(int(step))) for step in at])
    figure, axes = _one(7.0, 3.4)
    axes.plot(at, rates, color=COLOURS[0], linewidth=2)
    peak = int(rates.argmax())
    axes.plot(at[peak], rates[peak], "o", color=COLOURS[1], markersize=6)
    axes.annotate(
        f"{rates[peak]:.2e} at step {at[peak]:,}",
        (at[peak], rates[peak]),
        (9, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        fontsize=9,
    )
    axes.set(xlim=(0, steps), ylim=(0, rates[peak] * 1.12 or 1))
    axes.set_xlabel("step", color=INK)
    axes.set_title(_plain(title), loc="left", pad=10, color=INK)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    _bare(axes)
    return figure


def learning_curves(
    lines: Sequence[Mapping[str, Any]], names: Mapping[str, str], title: str = "", scale: str = "linear"
) -> Figure:
    """Metrics over steps, as read from a metrics.jsonl: `names` says which, and what to call them in the legend."""
    figure, axes = _one(7.0, 3.4)
    for (name, label), colour in zip(names.items(), COLOURS, strict=False):
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if points:
            steps, values = zip(*points, strict=True)
            marker = "." if len(points) < 40 else ""
            axes.plot(steps, values, color=colour, linewidth=2, marker=marker, label=f"{label}: {values[-1]:.3g}")
    axes.set_xlabel("step", color=INK)
    axes.set_title(_plain(title), loc="left", pad=10, color=INK)
    axes.set_yscale(scale)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    if axes.lines:
        axes.legend(frameon=False, labelcolor=INK)
    _bare(axes)
    return figure


def _one(width: float, height: float) -> tuple[Figure, Axes]:
    figure = _canvas(width, height)
    return figure, figure.subplots()


def _canvas(width: float, height: float) -> Figure:
    """A figure of its own, outside pyplot: nothing global is touched, and nothing needs to be closed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _heat(axes: Axes, weights_TS: np.ndarray) -> Any:
    _bare(axes)
    rows, columns = weights_TS.shape
    axes.set_xticks(np.arange(columns - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(rows - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)
    return axes.imshow(weights_TS, cmap=HEAT, vmin=0, vmax=1, aspect="auto", interpolation="nearest")


def _pieces(axes: Axes, source_pieces: Sequence[str], target_pieces: Sequence[str], size: float = 9) -> None:
    """Keys above the columns, queries beside the rows."""
    axes.xaxis.tick_top()
    axes.set_xticks(
        range(len(source_pieces)), [_plain(p) for p in source_pieces], rotation=60, ha="left", fontsize=size
    )
    axes.set_yticks(range(len(target_pieces)), [_plain(p) for p in target_pieces], fontsize=size)


def _bare(axes: Axes) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, colors=INK)


def _plain(text: str) -> str:
    """Text is never a formula: matplotlib would read what stands between two dollar signs as one."""
    return text.replace("$", r"\$")


def _weights_of(weights: ArrayLike, source_pieces: Sequence[str], target_pieces: Sequence[str]) -> np.ndarray:
    array = np.asarray(weights, np.float64)
    wanted = (len(target_pieces), len(source_pieces))
    if array.shape != wanted:
        raise BadInput(
            f"attention weights of shape {array.shape} do not belong to {wanted[0]} target pieces (rows) "
            f"and {wanted[1]} source pieces (columns)"
        )
    return array
