"use strict";
const SVG = "http://www.w3.org/2000/svg", WIDTH = 760, HEIGHT = 320, LEFT = 62, BOTTOM = 40, MANY = 12;
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c8c", "#a08000"];
const put = (parent, made, attributes = {}, text = undefined) => {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
};
const html = (parent, name, ...more) => put(parent, document.createElement(name), ...more);
const svg = (parent, name, ...more) => put(parent, document.createElementNS(SVG, name), ...more);
const number = (cell) => cell.dataset.v === undefined ? NaN : Number(cell.dataset.v);
const order = (a, b) => {
  const [x, y] = [number(a), number(b)];
  if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
  return isNaN(x) ? a.textContent.localeCompare(b.textContent, "en", {numeric: true}) : x - y;
};
for (const table of document.querySelectorAll("table:has(thead)")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, place) => {
    const name = head.textContent;
    head.textContent = "";
    html(head, "button", {type: "button", title: "sort"}, name).addEventListener("click", () => {
      const isUp = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => order(a.cells[place], b.cells[place]) * (isUp ? 1 : -1)));
    });
  });
}
const filtering = (parent, rows, then) => {
  const filter = html(parent, "input", {type: "search", placeholder: "filter: words of a row", "aria-label": "filter"});
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    then();
  });
};
const explore = (table) => {
  const names = [...table.tHead.rows[0].cells].map((head) => head.textContent), rows = [...table.tBodies[0].rows];
  const hollow = "overloaded";
  const values = (place) => new Set(rows.map((row) => row.cells[place].textContent)).size;
  const all = names.map((_, place) => place);
  const numeric = all.filter((place) => rows.some((row) => !isNaN(number(row.cells[place]))));
  const bar = document.createElement("p");
  table.parentNode.before(bar);
  filtering(bar, rows, draw);
  const choice = (label, places, first) => {
    const select = html(html(bar, "label", {}, ` ${label} `), "select");
    for (const place of places) html(select, "option", {value: place}, names[place]);
    select.value = places.includes(first) ? first : places[0];
    select.addEventListener("change", draw);
    return select;
  };
  const across = choice("over", numeric, -1);
  const up = choice("show", numeric, names.indexOf("mean E2EL, ms"));
  const few = all.filter((place) => values(place) <= COLOURS.length);
  const colour = choice("colour by", few, names.indexOf("policy"));
  const chart = put(bar, document.createElementNS(SVG, "svg"), {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img"});
  const told = html(bar, "output", {}, `Point at a dot to read its row; hollow: ${hollow}.`);
  function draw() {
    const [x, y, by] = [across, up, colour].map((select) => Number(select.value));
    const shown = rows.filter((row) => !row.hidden && !isNaN(number(row.cells[x])) && !isNaN(number(row.cells[y])));
    chart.textContent = "";
    if (shown.length === 0) return;
    const scale = (place, from, to) => {
      const found = shown.map((row) => number(row.cells[place])), low = Math.min(0, ...found);
      const high = Math.max(...found, low + 1e-9), at = (value) => from + (to - from) * (value - low) / (high - low);
      const least = (high - low) / 6, ten = 10 ** Math.floor(Math.log10(least));
      const step = ten * [1, 2, 5, 10].find((part) => part * ten >= least);
      const ticks = Array.from({length: 8}, (_, place) => (Math.ceil(low / step) + place) * step);
      return {at, ticks: ticks.filter((tick) => tick <= high)};
    };
    const sx = scale(x, LEFT, WIDTH - 12), sy = scale(y, HEIGHT - BOTTOM, 14);
    const short = (value) => Number(value.toPrecision(3)).toLocaleString("en");
    for (const tick of sy.ticks) {
      svg(chart, "line", {x1: LEFT, x2: WIDTH - 12, y1: sy.at(tick), y2: sy.at(tick), class: "rule"});
      svg(chart, "text", {x: LEFT - 6, y: sy.at(tick) + 4, "text-anchor": "end"}, short(tick));
    }
    for (const tick of sx.ticks) {
      svg(chart, "text", {x: sx.at(tick), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle"}, short(tick));
    }
    const title = `${names[y]} (up) by ${names[x]} (across)`;
    svg(chart, "text", {x: WIDTH / 2, y: HEIGHT - 6, "text-anchor": "middle"}, title);
    const groups = [...new Set(rows.map((row) => row.cells[by].textContent))];
    for (const row of shown) {
      const paint = COLOURS[groups.indexOf(row.cells[by].textContent) % COLOURS.length];
      const isOver = row.lastElementChild.textContent === hollow;
      const text = names.map((name, place) => `${name}: ${row.cells[place].textContent}`).join("; ");
      const dot = svg(chart, "circle", {
        cx: sx.at(number(row.cells[x])), cy: sy.at(number(row.cells[y])), r: 5, tabindex: 0, "aria-label": text,
        stroke: paint, fill: isOver ? "transparent" : paint, "stroke-width": 2,
      });
      for (const event of ["mouseenter", "focus"]) dot.addEventListener(event, () => {
        told.textContent = text;
        for (const other of rows) other.classList.toggle("pointed", other === row);
      });
    }
    groups.forEach((group, place) => {
      svg(chart, "text", {x: LEFT + 8, y: 24 + 15 * place, fill: COLOURS[place], class: "key"}, `● ${group}`);
    });
  }
  draw();
};
for (const table of document.querySelectorAll("table:has(thead):not(#points)")) {
  const rows = [...table.tBodies[0].rows], bar = document.createElement("p");
  if (rows.length < MANY) continue;
  (table.closest(".wide") ?? table).before(bar);
  filtering(bar, rows, () => {});
}
const points = document.getElementById("points");
if (points !== null) explore(points);
