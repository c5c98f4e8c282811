"""Every layer and head of one translation on one page, to be explored by hovering. Self-contained; works offline.

The pieces of text travel as JSON in which no tag can begin, and are shown as text, never as HTML.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class View(NamedTuple):
    """One of the three attentions: its weights NHTS (layer, head, query, key), and the pieces on either side."""

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    weights_NHTS: np.ndarray


def attention_page(title: str, views: Sequence[View]) -> str:
    """The page, as HTML. Weights are rounded to a hundredth: more the eye cannot see."""
    data = [
        {
            "name": view.name,
            "queries": list(view.queries),
            "keys": list(view.keys),
            "weights": np.rint(np.asarray(view.weights_NHTS) * 100).astype(int).tolist(),
        }
        for view in views
    ]
    # "<" is never written, so that no piece of text can end the script or begin a tag.
    script_data = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    # All placeholders at once: none is looked for in the text that another was replaced with.
    return PAGE.format(title=html.escape(title), style=STYLE, script=SCRIPT.replace("$DATA", script_data))


PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
<h1>{title}</h1>
<p class="note">Each small square is a head: layers downwards, heads across, their mean last. Choose one; then point at
a word on the left to see what it attends to, or at one on the right to see who attends to it.</p>
<div id="views" role="tablist"></div>
<div id="heads"></div>
<h2 id="chosen"></h2>
<svg id="lines" role="img"></svg>
<script>{script}</script>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light; --ink: #1f2933; --soft: #66737f; --accent: #2f6fb3; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 60rem; }
body { margin: 0 auto; padding: 1.6rem 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1rem; margin: 1.2rem 0 .4rem; } .note { color: var(--soft); }
#views button { font: inherit; border: 0; background: none; color: var(--soft); padding: .3rem .7rem; cursor: pointer; }
#views button[aria-selected=true] { color: var(--ink); border-bottom: 3px solid var(--accent); }
#heads { display: grid; gap: 4px; margin-top: .8rem; width: max-content; max-width: 100%; overflow-x: auto; }
#heads canvas { width: 46px; height: 46px; border: 2px solid transparent; cursor: pointer; image-rendering: pixelated; }
#heads canvas[aria-pressed=true] { border-color: var(--accent); }
#heads span { align-self: center; color: var(--soft); font-size: .8rem; padding-right: .4rem; }
#lines { width: 100%; } #lines text { font: 15px system-ui, sans-serif; fill: var(--ink); cursor: default; }
#lines line { stroke: var(--accent); } #lines .faded { opacity: .25; }
#lines .weight { fill: var(--accent); font-size: 12px; }
"""

SCRIPT = """
"use strict";
const views = $DATA;
const ROW = 26, LEFT = 250, RIGHT = 470, WIDTH = 720;
const state = {view: 0, layer: 0, head: 0};
const byId = id => document.getElementById(id);
const svgNode = (name, attributes, parent) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  return parent.appendChild(node);
};

// One head's weights, or behind the last head the mean of them all.
function weightsOf(view, layer, head) {
  const heads = view.weights[layer];
  if (head < heads.length) return heads[head];
  return heads[0].map((row, t) => row.map((_, s) => heads.reduce((sum, h) => sum + h[t][s], 0) / heads.length));
}

function drawHead(canvas, weights) {
  canvas.width = weights[0].length;
  canvas.height = weights.length;
  const context = canvas.getContext("2d");
  weights.forEach((row, t) => row.forEach((weight, s) => {
    context.fillStyle = `rgba(47, 111, 179, ${Math.max(weight / 100, 0.04)})`;
    context.fillRect(s, t, 1, 1);
  }));
}

function showViews() {
  byId("views").replaceChildren(...views.map((view, index) => {
    const button = document.createElement("button");
    button.textContent = view.name;
    button.setAttribute("role", "tab");
    button.setAttribute("aria-selected", index === state.view);
    button.onclick = () => { Object.assign(state, {view: index, layer: 0, head: 0}); show(); };
    return button;
  }));
}

function showHeads() {
  const view = views[state.view], count = view.weights[0].length + 1, grid = byId("heads");
  grid.style.gridTemplateColumns = `auto repeat(${count}, 50px)`;
  grid.replaceChildren();
  view.weights.forEach((_, layer) => {
    const label = document.createElement("span");
    label.textContent = `layer ${layer + 1}`;
    grid.append(label);
    for (let head = 0; head < count; head++) {
      const canvas = document.createElement("canvas");
      canvas.title = headName(view, layer, head);
      canvas.setAttribute("aria-pressed", layer === state.layer && head === state.head);
      canvas.onclick = () => { Object.assign(state, {layer, head}); show(); };
      drawHead(canvas, weightsOf(view, layer, head));
      grid.append(canvas);
    }
  });
}

function headName(view, layer, head) {
  const which = head < view.weights[layer].length ? `head ${head + 1}` : "mean of all heads";
  return `${view.name}, layer ${layer + 1}, ${which}`;
}

function showLines() {
  const view = views[state.view], weights = weightsOf(view, state.layer, state.head), svg = byId("lines");
  const y = index => ROW * (index + 0.8);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${ROW * (Math.max(view.queries.length, view.keys.length) + 0.5)}`);
  const lines = [];
  weights.forEach((row, t) => row.forEach((weight, s) => {
    if (weight < 1) return;
    const place = {x1: LEFT + 8, y1: y(t) - 5, x2: RIGHT - 8, y2: y(s) - 5};
    lines.push({t, s, weight, node: svgNode("line", {...place, "stroke-width": 3, opacity: weight / 100}, svg)});
  }));
  const words = (pieces, x, anchor, side) => pieces.map((piece, index) => {
    const word = svgNode("text", {x, y: y(index), "text-anchor": anchor}, svg);
    word.textContent = piece;
    word.onmouseenter = () => point(side, index);
    word.onmouseleave = () => point(null);
    return word;
  });
  const texts = {t: words(view.queries, LEFT, "end", "t"), s: words(view.keys, RIGHT, "start", "s")};

  function point(side, index) {
    svg.querySelectorAll(".weight").forEach(node => node.remove());
    const other = side === "t" ? "s" : "t";
    const touched = new Set(lines.filter(line => side && line[side] === index).map(line => line[other]));
    lines.forEach(line => line.node.setAttribute("opacity", side && line[side] !== index ? 0 : line.weight / 100));
    for (const key of ["t", "s"]) texts[key].forEach((text, at) =>
      text.classList.toggle("faded", Boolean(side) && !(key === side ? at === index : touched.has(at))));
    if (!side) return;
    lines.filter(line => line[side] === index).forEach(line => {
      const x = side === "t" ? WIDTH - 10 : 10, anchor = side === "t" ? "end" : "start";
      const label = svgNode("text", {class: "weight", x, y: y(line[other]), "text-anchor": anchor}, svg);
      label.textContent = (line.weight / 100).toFixed(2);
    });
  }
}

function show() {
  const view = views[state.view];
  byId("chosen").textContent = headName(view, state.layer, state.head);
  showViews();
  showHeads();
  showLines();
}
show();
"""
