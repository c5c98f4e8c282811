"""How a report's page looks, and what it does when touched. No network, no library."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2933; --soft: #66737f; --line: #e4e7eb; --panel: #f6f8fa;
  --accent: #2f6fb3; --better: #2e7d4f; --worse: #b3412f; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181d; --ink: #e3e8ed; --soft: #94a1ad; --line: #2b333c; --panel: #1c2229;
    --accent: #6fa8e0; --better: #6cc28f; --worse: #e68a78; }
}
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 78rem; }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; } p { max-width: 52rem; } .soft { color: var(--soft); }
ul { padding-left: 1.2rem; max-width: 52rem; } li { margin: .3rem 0; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .8rem 0 0; font-size: .92rem; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
.state { border-left: 4px solid var(--accent); padding: .2rem .9rem; margin: 1rem 0; }
.state.partial { border-color: var(--worse); }
.controls { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; align-items: center; margin: .6rem 0; }
.controls input[type=search] { font: inherit; padding: .3rem .6rem; border: 1px solid var(--line); width: 15rem;
  border-radius: .4rem; background: var(--panel); color: var(--ink); max-width: 100%; }
.controls label { font-size: .9rem; color: var(--soft); white-space: nowrap; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .4rem; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
td, th { text-align: right; padding: .3rem .55rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; background: var(--panel); }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort] button::after { content: " \\2193"; } th[aria-sort=ascending] button::after { content: " \\2191"; }
th[scope=row], thead th:first-child, td.left { text-align: left; }
th[scope=row], thead th:first-child { position: sticky; left: 0; background: var(--paper); z-index: 1; }
thead th:first-child { background: var(--panel); }
th[scope=row] { font-weight: 500; max-width: 15rem; white-space: normal; min-width: 8.5rem; }
th small, td small { display: block; color: var(--soft); font-weight: 400; font-size: .8rem; line-height: 1.3; }
tr.group td { text-align: left; color: var(--soft); background: var(--panel); font-size: .85rem; }
tr.group span { position: sticky; left: .7rem; }
tr.base { background: color-mix(in srgb, var(--accent) 9%, transparent); }
tr.base th { background: color-mix(in srgb, var(--accent) 9%, var(--paper)); }
td.better { color: var(--better); font-weight: 600; } td.worse { color: var(--worse); font-weight: 600; }
.no-options .options, .no-differences .differences, .no-published .published, .no-cost .cost { display: none; }
h4 { font-size: .92rem; font-weight: 500; margin: .9rem 0 .3rem; }
.scroll:has(.plain) { width: fit-content; max-width: 100%; }
table.plain td:first-child, table.plain th:first-child { text-align: left; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 1.4rem; }
.pictures { margin: 1rem 0; } .large { grid-template-columns: repeat(auto-fill, minmax(min(100%, 29rem), 1fr)); }
figure { margin: 0; min-width: 0; } figure svg, figure img { width: 100%; height: auto; display: block; }
figcaption { font-size: .92rem; margin: 0 0 .3rem; font-weight: 500; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .tick, svg .title { fill: var(--soft); }
svg .tick { font-size: 11px; } svg .grid { stroke: var(--line); }
svg .zero { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .line { fill: none; stroke-width: 1.8; } svg .line.strong { stroke-width: 2.6; }
svg .line:hover { stroke-width: 4; }
svg .band { opacity: .13; } svg .usual { fill: none; stroke: var(--soft); stroke-dasharray: 5 4; }
svg .front { fill: none; stroke: var(--ink); stroke-width: 1.5; } svg .hit { fill: transparent; }
svg .interval { stroke: var(--soft); stroke-width: 2; } svg .value { fill: var(--soft); }
svg .better .interval { stroke: var(--better); } svg .better .value { fill: var(--better); }
svg .worse .interval { stroke: var(--worse); } svg .worse .value { fill: var(--worse); }
svg .published { fill: var(--paper); stroke: var(--ink); } svg .row:hover .hit { fill: var(--panel); }
.legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: .82rem; color: var(--soft); }
.legend { padding-left: .6rem; }
.legend i { display: inline-block; width: .8rem; height: .25rem; margin-right: .35rem; vertical-align: middle; }
details { margin: .5rem 0; } summary { cursor: pointer; font-weight: 500; }
pre { background: var(--panel); padding: .8rem 1rem; overflow-x: auto; border-radius: .4rem; font-size: .85rem; }
.sample { border-top: 1px solid var(--line); padding: .7rem 0; } .sample p { margin: .15rem 0; max-width: none; }
.sample .who { color: var(--soft); font-size: .82rem; } .sample .off { color: var(--worse); }
.sample .right { color: var(--better); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; } dt { color: var(--soft); }
dd { margin: 0; } #tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--paper); z-index: 9;
  font-size: .82rem; padding: .25rem .55rem; border-radius: .3rem; max-width: 20rem; display: none; }
@media (max-width: 40rem) {
  body { padding: 1.2rem .8rem 3rem; } dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
  th[scope=row] { max-width: 8rem; min-width: 6.5rem; } h1 { font-size: 1.4rem; }
}
"""

SCRIPT = """
"use strict";
// Tables: a click on a column's head sorts by it, a second one the other way, a third restores the order of the sweep.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], original = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const text = row.cells[column].dataset.value ?? "";
    return text === "" ? null : isNaN(text) ? text : Number(text);
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  const sort = (column, direction) => {
    heads.forEach((head, at) => at === column && direction
      ? head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort"));
    table.classList.toggle("sorted", direction !== 0);
    if (!direction) return body.append(...original), filter();
    const rows = original.filter(row => !row.classList.contains("group"));
    const groups = original.filter(row => row.classList.contains("group"));
    rows.sort((a, b) => {
      const [x, y] = [value(a, column), value(b, column)];
      return x === null || y === null ? (x === null) - (y === null) : direction * compare(x, y);
    });
    body.append(...rows, ...groups);
    filter();
  };
  const input = document.querySelector(`input[data-filters="${table.id}"]`);
  const filter = () => {
    const words = (input ? input.value : "").toLowerCase().split(/\\s+/).filter(Boolean);
    let group = null, groupName = "";
    for (const row of body.rows) {
      if (row.classList.contains("group")) {
        [group, groupName] = [row, row.textContent.toLowerCase()];
        group.hidden = true;
        continue;
      }
      const text = row.textContent.toLowerCase() + " " + (row.dataset.group ?? "").toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      if (group && !row.hidden && !table.classList.contains("sorted")) group.hidden = false;
    }
  };
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const now = head.getAttribute("aria-sort");
    sort(column, now === null ? 1 : now === "ascending" ? -1 : 0);
  }));
  input?.addEventListener("input", filter);
}
for (const box of document.querySelectorAll("input[data-hides]")) {
  const table = document.getElementById(box.dataset.of);
  // A narrow screen begins with what was found.
  if (innerWidth < 640 && box.dataset.hides !== "differences") box.checked = false;
  const show = () => table.classList.toggle("no-" + box.dataset.hides, !box.checked);
  box.addEventListener("change", show);
  show();
}
// What is pointed at, or touched, tells its values.
const tip = document.getElementById("tip");
const tell = event => {
  const pointed = event.target.closest?.("[data-tip]");
  tip.style.display = pointed ? "block" : "none";
  if (!pointed) return;
  tip.textContent = pointed.dataset.tip;
  tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 6)) + "px";
  tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 10) + "px";
};
addEventListener("pointermove", tell);
addEventListener("pointerdown", tell);
addEventListener("scroll", () => { tip.style.display = "none"; }, {passive: true});
"""
