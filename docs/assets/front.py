"""Draws docs/assets/report.svg, the picture of the front page, from docs/results/table3-eight-seeds.

python docs/assets/front.py

The other picture, attention.svg, is drawn after `make demo` by
transformer-jax plot attention --workdir=runs/demo --head=1 --output=docs/assets/attention.svg \\
    --text="yesterday the child who sings has bought the red car ."
"""

import csv
import math
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ASSETS = Path(__file__).parent
ROWS = {
    "big": "the big model",
    "D eps_ls=0": "no label smoothing",
    "A h=1": "1 head instead of 8",
    "A h=32": "32 heads instead of 8",
    "B d_k=16": "keys four times narrower",
    "C N=2": "a third of the layers",
    "D P_drop=0": "no dropout",
}
OURS, PAPER, UNCLEAR = "#b23a2e", "#1f2933", "#8a94a3"


def percent(difference_of_logarithms: float) -> float:
    return 100 * math.expm1(difference_of_logarithms)


def main() -> None:
    with open(ASSETS.parent / "results/table3-eight-seeds/table.csv", newline="") as file:
        table = {row["variant"]: row for row in csv.DictReader(file)}
    plt.rcParams.update({"font.size": 13, "svg.hashsalt": "front", "svg.fonttype": "path"})
    figure, axes = plt.subplots(figsize=(7.2, 4.6))
    base = float(table["base"]["published_perplexity"])
    for y, name in enumerate(ROWS):
        row = table[name]
        low, value, high = (percent(float(row[f"log_perplexity_difference_{end}"])) for end in ("low", "value", "high"))
        color = OURS if low > 0 or high < 0 else UNCLEAR
        axes.plot([low, high], [y, y], color=color, linewidth=2.5, solid_capstyle="round")
        axes.plot(value, y, "o", color=color, markersize=9)
        paper = 100 * (float(row["published_perplexity"]) / base - 1)
        axes.plot(paper, y, "D", color=PAPER, fillstyle="none", markersize=8)
    axes.axvline(0, color=PAPER, linewidth=1)
    axes.set_yticks(range(len(ROWS)), list(ROWS.values()))
    axes.invert_yaxis()
    axes.set_xlabel("perplexity compared with the base model (%)\n←  better                  worse  →")
    axes.plot([], [], "o-", color=OURS, linewidth=2.5, label="different from base")
    axes.plot([], [], "o-", color=UNCLEAR, linewidth=2.5, label="not significant")
    axes.plot([], [], "D", color=PAPER, fillstyle="none", label="the paper")
    axes.legend(loc="lower left", fontsize=11, frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(ASSETS / "report.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
