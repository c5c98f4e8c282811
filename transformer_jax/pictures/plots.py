"""Plots of attention (the paper's figures 3 to 5), position encodings, schedules and learning curves.

Each function returns a matplotlib Figure; `save` writes it as PNG, SVG or PDF, by the file's suffix. matplotlib is
imported when a figure is drawn, and needs no screen.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import explained, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

FORMATS = (".png", ".svg", ".pdf")
INK = "#1f2933"
HEAT, SIGNED = "Blues", "RdBu_r"
# Fonts with Chinese, Japanese and Korean letters, on Linux, macOS and Windows.
CJK_FONTS = re.compile("CJK|Nanum|WenQuanYi|Gothic Neo|Hiragino|PingFang|Malgun|Yu Gothic|YaHei")
COLOURS = ("#2f6fb3", "#d1603d", "#3a8f5c", "#8a5aa8", "#c2912e", "#4a9aa5", "#b0467a", "#6b7280")


def save(figure: Figure, path: str | Path) -> None:
    """Writes a figure as PNG, SVG or PDF."""
    check_format(path)
    drawn = encoded(figure, Path(path).suffix.removeprefix(".").lower(), dpi=160, bbox_inches="tight")
    with explained(Path(path)):
        write_atomically(Path(path), drawn, follow=True)


def encoded(figure: Figure, form: str, **options: Any) -> bytes:
    """A figure as the content of a file. Letters that matplotlib's font lacks come from an installed CJK font."""
    import matplotlib
    from matplotlib.font_manager import get_font_names
    from matplotlib.text import Text

    fonts = sorted(name for name in get_font_names() if CJK_FONTS.search(name))
    for text in figure.findobj(Text) if fonts else ():
        text.set_fontfamily([*text.get_fontfamily(), *fonts])
    # The same figure gives the same file.
    options.setdefault("metadata", {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {}))
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "transformer_jax"}):
        figure.savefig(file, format=form, **options)
    return file.getvalue()


def check_format(path: str | Path, formats: Sequence[str] = FORMATS) -> None:
    """Raises an error for a file that no figure can be written to, before anything is drawn."""
    if Path(path).suffix.lower() not in formats or not Path(path).resolve().parent.is_dir():
        raise BadInput(f"{path}: must end in one of {' '.join(formats)}, in a directory that exists")


def attention_map(
    weights_TS: ArrayLike, source_pieces: Sequence[str], target_pieces: Sequence[str], title: str = ""
) -> Figure:
    """One head as a heat map: a row for each query (target piece), a column for each key (source piece)."""
    weights = _checked(weights_TS, source_pieces, target_pieces)
    rows, columns = weights.shape
    figure, axes = _axes(max(3.0, 0.34 * columns + 1.6), max(2.4, 0.34 * rows + 1.4), title)
    image = _heat_map(axes, weights, source_pieces, target_pieces)
    figure.colorbar(image, ax=axes, pad=0.03, fraction=0.04, ticks=[0, 0.5, 1])
    return figure


def attention_heads(
    weights_HTS: ArrayLike, source_pieces: Sequence[str], target_pieces: Sequence[str], title: str = ""
) -> Figure:
    """All heads of one layer side by side, at most four per row; pieces are named at the outer edges."""
    heads = np.asarray(weights_HTS, np.float64)
    checked = [_checked(head, source_pieces, target_pieces) for head in heads]
    across = min(4, len(checked))
    down = -(-len(checked) // across)
    size = (max(1.8, 0.2 * len(source_pieces)), max(1.6, 0.2 * len(target_pieces)))
    figure = plain_figure(across * size[0] + 1.4, down * (size[1] + 0.35) + 1.2)
    for number, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        if number >= len(checked):
            axes.set_visible(False)
            continue
        above, beside = (source_pieces if number < across else ()), (target_pieces if number % across == 0 else ())
        _heat_map(axes, checked[number], above, beside, font_size=7)
        axes.set_xlabel(f"head {number + 1}", fontsize=9, color=INK)
    figure.suptitle(literal(title), color=INK)
    return figure


def positional_encoding(table_LD: ArrayLike, title: str = "Positional encoding") -> Figure:
    """A table of position encodings, such as `sinusoidal_positions(50, 128)`: a row per position."""
    table = np.asarray(table_LD, np.float64)
    largest = float(np.abs(table).max())
    figure, axes = _axes(8.4, 4.4, title)
    image = axes.imshow(table, cmap=SIGNED, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    axes.set_xlabel("dimension", color=INK)
    axes.set_ylabel("position", color=INK)
    figure.colorbar(image, ax=axes, pad=0.03, fraction=0.03, ticks=[-largest, 0, largest], format="%.2g")
    return figure


def schedule(rate: Callable[[Any], Any], steps: int, title: str = "Learning rate") -> Figure:
    """A learning-rate schedule (step -> rate) over its steps, with its peak marked."""
    at = np.unique(np.linspace(0, steps, 1001).astype(int))
    rates = np.array([float(rate(int(step))) for step in at])
    figure, axes = _axes(7.0, 3.4, title)
    axes.plot(at, rates, color=COLOURS[0], linewidth=2)
    peak = int(rates.argmax())
    axes.plot(at[peak], rates[peak], "o", color=COLOURS[1], markersize=6)
    text = f"{rates[peak]:.2e} at update {at[peak]:,}"
    axes.annotate(text, (at[peak], rates[peak]), (9, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set(xlim=(0, steps), ylim=(0, rates[peak] * 1.12 or 1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.set_xlabel("updates", color=INK)
    lines_across(axes)
    return figure


def learning_curves(
    lines: Sequence[Mapping[str, Any]], names: Mapping[str, str], title: str = "", scale: str = "linear"
) -> Figure:
    """Metrics over steps, from the lines of a metrics.jsonl; `names` maps each metric to its name in the legend."""
    figure, axes = _axes(7.0, 3.4, title)
    for (name, label), colour in zip(names.items(), COLOURS, strict=False):
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if points:
            steps, values = zip(*points, strict=True)
            marker = "." if len(points) < 40 else ""
            axes.plot(steps, values, color=colour, linewidth=2, marker=marker, label=f"{label}: {values[-1]:.3g}")
    axes.set_yscale(scale)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_xlabel("updates", color=INK)
    lines_across(axes)
    if axes.lines:
        axes.legend(frameon=False, labelcolor=INK)
    return figure


def plain_figure(width: float, height: float) -> Figure:
    """A figure outside pyplot: there is no global state, and nothing to close."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _axes(width: float, height: float, title: str = "") -> tuple[Figure, Axes]:
    figure = plain_figure(width, height)
    axes = figure.subplots()
    style(axes, title)
    return figure, axes


def style(axes: Axes, title: str = "") -> None:
    """A title on the left, and neither frame nor tick marks."""
    axes.set_title(literal(title), loc="left", pad=10, color=INK)
    axes.set_frame_on(False)
    axes.tick_params(which="both", length=0, colors=INK)


def lines_across(axes: Axes) -> None:
    """Faint lines across, behind what is plotted."""
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)


def _heat_map(
    axes: Axes, weights_TS: np.ndarray, above: Sequence[str], beside: Sequence[str], font_size: float = 9
) -> AxesImage:
    """Keys above the columns, queries beside the rows."""
    axes.set_frame_on(False)
    axes.tick_params(length=0, colors=INK)
    image = axes.imshow(weights_TS, cmap=HEAT, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(above)), [*map(literal, above)], rotation=60, ha="left", fontsize=font_size)
    axes.set_yticks(range(len(beside)), [*map(literal, beside)], fontsize=font_size)
    return image


def literal(text: str) -> str:
    """Text that matplotlib does not take for a formula, as it would between two dollar signs."""
    return text.replace("$", r"\$")


def _checked(weights: ArrayLike, source_pieces: Sequence[str], target_pieces: Sequence[str]) -> np.ndarray:
    array = np.asarray(weights, np.float64)
    wanted = (len(target_pieces), len(source_pieces))
    if array.shape != wanted:
        raise BadInput(f"attention weights of shape {array.shape}: must be {wanted}, target pieces by source pieces")
    return array
