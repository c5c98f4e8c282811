const ROW = 26;
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
  // On a narrow page the columns of words move together, rather than shrink.
  const width = Math.min(svg.clientWidth, 720), left = 0.35 * width, right = 0.65 * width;
  const y = index => ROW * (index + 0.8);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${ROW * (Math.max(view.queries.length, view.keys.length) + 0.5)}`);
  const lines = [];
  weights.forEach((row, t) => row.forEach((weight, s) => {
    if (weight < 1) return;
    const place = {x1: left + 8, y1: y(t) - 5, x2: right - 8, y2: y(s) - 5};
    lines.push({t, s, weight, node: svgNode("line", {...place, "stroke-width": 3, opacity: weight / 100}, svg)});
  }));
  const words = (pieces, x, anchor, side) => pieces.map((piece, index) => {
    const word = svgNode("text", {x, y: y(index), "text-anchor": anchor}, svg);
    word.textContent = piece;
    word.onmouseenter = () => point(side, index);
    word.onmouseleave = () => point(null);
    return word;
  });
  const texts = {t: words(view.queries, left, "end", "t"), s: words(view.keys, right, "start", "s")};

  function point(side, index) {
    svg.querySelectorAll(".weight").forEach(node => node.remove());
    const other = side === "t" ? "s" : "t";
    const touched = new Set(lines.filter(line => side && line[side] === index).map(line => line[other]));
    lines.forEach(line => line.node.setAttribute("opacity", side && line[side] !== index ? 0 : line.weight / 100));
    for (const key of ["t", "s"]) texts[key].forEach((text, at) =>
      text.classList.toggle("faded", Boolean(side) && !(key === side ? at === index : touched.has(at))));
    if (!side) return;
    lines.filter(line => line[side] === index).forEach(line => {
      const x = side === "t" ? width - 10 : 10, anchor = side === "t" ? "end" : "start";
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
window.onresize = showLines;
