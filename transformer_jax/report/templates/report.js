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
    const words = (input ? input.value : "").toLowerCase().split(/\s+/).filter(Boolean);
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
// Columns are shown as far as the page has room for them; the others by a click.
for (const controls of document.querySelectorAll(".controls")) {
  const boxes = [...controls.querySelectorAll("input[data-hides]")], table = document.getElementById(boxes[0].dataset.of);
  const show = box => table.classList.toggle("no-" + box.dataset.hides, !box.checked);
  for (const box of boxes) {
    box.addEventListener("change", () => show(box));
    show(box);
  }
  for (const kind of ["published", "options"]) {
    const box = boxes.find(box => box.dataset.hides === kind);
    if (!box || table.offsetWidth <= table.parentElement.clientWidth) continue;
    box.checked = false;
    show(box);
  }
}
