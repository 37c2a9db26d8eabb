"use strict";
// Sorting, highlighting and values under the pointer; the page says all of it without this too.
const all = (where, what) => [...where.querySelectorAll(what)];

function highlight(group) {
  document.body.classList.toggle("focus", group !== null);
  for (const part of all(document, ".on")) part.classList.remove("on");
  if (group !== null) for (const part of all(document, `[data-group="${group}"]`)) part.classList.add("on");
}

function number(cell) {
  const found = cell.dataset.sort ?? (cell.textContent.match(/[-+]?[\d.]+/) || [""])[0];
  return found === "" ? NaN : Number(found);
}

function sortable(table) {
  all(table, "thead th").forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === (at ? "descending" : "ascending");
      for (const other of all(table, "thead th")) other.removeAttribute("aria-sort");
      const ascending = at ? up : !up;
      head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const key = (row) => (at ? number(row.cells[at]) : row.cells[0].textContent);
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [key(row), row]);
      const empty = (value) => Number(value !== value);
      rows.sort(([a], [b]) => empty(a) - empty(b) || (a < b ? -1 : a > b ? 1 : 0) * (ascending ? 1 : -1));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

function records(text) {
  const [heads, ...lines] = text.trim().split("\n").map((line) =>
    [...line.matchAll(/("(?:[^"]|"")*"|[^,]*)(?:,|$)/g)].map((cell) => cell[1].replace(/^"|"$/g, "").replace(/""/g, '"')));
  return lines.map((line) => Object.fromEntries(heads.map((head, at) => [head, line[at]])));
}

function hover(figure, names, tip) {
  const link = figure.querySelector("a[download]"), svg = figure.querySelector("svg");
  const bytes = Uint8Array.from(atob(link.href.split(",")[1]), (letter) => letter.charCodeAt(0));
  const lines = records(new TextDecoder().decode(bytes));
  const points = all(svg, ".line[data-group]").flatMap((line) => {
    const own = lines.filter((row) => row.method === names[line.dataset.group]);
    const ends = [...line.querySelector("path").getAttribute("d").matchAll(/[ML]\s*([-\d.]+)\s+([-\d.]+)/g)];
    return ends.map((end, at) => ({ x: +end[1], y: +end[2], group: line.dataset.group, row: own[Math.min(at, own.length - 1)] }));
  });
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const far = (point) => Math.hypot(point.x - at.x, point.y - at.y);
    const near = points.reduce((best, point) => (far(point) < far(best) ? point : best), points[0]);
    if (!near || !near.row || far(near) > 24) return leave();
    const { method, rounds, bytes, mean, low, high, seeds } = near.row;
    const range = low ? `\n95 % interval ${(+low).toFixed(2)} to ${(+high).toFixed(2)}, ${seeds} seeds` : "";
    tip.textContent = `${method}: ${(+mean).toFixed(2)}\nround ${rounds}, ${(+bytes).toLocaleString("en")} bytes${range}`;
    tip.style.whiteSpace = "pre-line";
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6)}px`;
    tip.style.top = `${Math.max(6, event.clientY - tip.offsetHeight - 12)}px`;
    highlight(near.group);
  });
  const leave = () => { tip.hidden = true; highlight(null); };
  svg.addEventListener("pointerleave", leave);
}

const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
const names = {};
for (const row of all(document, ".result tbody tr")) names[row.dataset.group] = row.dataset.label;
all(document, "table.sortable").forEach(sortable);
all(document, "figure.curves").forEach((figure) => hover(figure, names, tip));
for (const row of all(document, "tbody tr[data-group]")) {
  row.addEventListener("pointerenter", () => highlight(row.dataset.group));
  row.addEventListener("pointerleave", () => highlight(null));
}
