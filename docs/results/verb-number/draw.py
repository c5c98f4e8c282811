"""Draws the means of analyses.csv as squares, by layer and position: python docs/results/verb-number/draw.py"""

import csv
import html
from pathlib import Path

HERE = Path(__file__).parent
CELL, ROW, LEFT, GAP = 74, 34, 110, 26
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1f2933; text-anchor: middle; dominant-baseline: central; }
    .paper { fill: #ffffff; }
    .share { fill: #4a7fb5; }
    .strong { fill: #ffffff; }
    .left { text-anchor: end; }
    .title { font-size: 15px; text-anchor: start; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e7eb; }
      .paper { fill: #1e2129; }
      .strong { fill: #ffffff; }
    }
"""


def means() -> dict[tuple[str, str], dict[str, list[tuple[str, float]]]]:
    """By variant and stack, for each layer the mean of each position."""
    found: dict[tuple[str, str], dict[str, list[tuple[str, float]]]] = {}
    with open(HERE / "analyses.csv", newline="") as file:
        for row in csv.DictReader(file):
            layers = found.setdefault((row["variant"], row["table"]), {})
            layers.setdefault(row["label"], []).append((row["column"], float(row["mean"])))
    return found


def picture() -> str:
    tables, parts, top = means(), [], 12
    for (variant, stack), layers in sorted(tables.items(), key=lambda item: item[0][::-1], reverse=True):
        parts.append(
            f'<text class="title" x="12" y="{top + 12}">{stack}, {variant}-norm: share of the number, %</text>'
        )
        top += 30
        labels = [label for label, _ in next(iter(layers.values()))]
        for column, label in enumerate(labels):
            parts.append(f'<text x="{LEFT + (column + 0.5) * CELL}" y="{top + 10}">{html.escape(label)}</text>')
        top += 24
        for layer, cells in layers.items():
            parts.append(f'<text class="left" x="{LEFT - 10}" y="{top + ROW / 2}">{layer}</text>')
            for column, (_, mean) in enumerate(cells):
                parts.append(_cell(LEFT + column * CELL, top, mean))
            top += ROW
        top += GAP
    width = LEFT + 8 * CELL + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{top}"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _cell(x: float, y: float, mean: float) -> str:
    share = min(max(mean / 100, 0), 1)
    kind = ' class="strong"' if share > 0.8 else ""
    return (
        f'<rect class="share" fill-opacity="{share:.2f}" x="{x}" y="{y}" width="{CELL - 2}" height="{ROW - 2}"/>'
        f'<text{kind} x="{x + CELL / 2}" y="{y + ROW / 2}">{abs(round(mean))}</text>'
    )


if __name__ == "__main__":
    (HERE / "picture.svg").write_text(picture())
