"use strict";
// Draws the curves in the page's data as SVG, at the size of their cells, for the chosen axes.

const MARKERS = {
  "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", "s": "M-3.6-3.6H3.6V3.6H-3.6Z",
  "^": "M0-4.6L4.2 3.4H-4.2Z", "v": "M0 4.6L4.2-3.4H-4.2Z", "<": "M-4.6 0L3.4-4.2V4.2Z",
  ">": "M4.6 0L-3.4-4.2V4.2Z", "D": "M0-5L5 0L0 5L-5 0Z", "d": "M0-5L3 0L0 5L-3 0Z",
  "P": "M-1.5-4.4H1.5V-1.5H4.4V1.5H1.5V4.4H-1.5V1.5H-4.4V-1.5H-1.5Z",
  "X": "M-4.2-2.4L-2.4-4.2L0-1.8L2.4-4.2L4.2-2.4L1.8 0L4.2 2.4L2.4 4.2L0 1.8L-2.4 4.2L-4.2 2.4L-1.8 0Z",
  "*": "M0-5.4L1.5-1.7L5.2-1.7L2.3.8L3.2 4.4L0 2.3L-3.2 4.4L-2.3.8L-5.2-1.7L-1.5-1.7Z",
  "h": "M0-4.8L4.2-2.4V2.4L0 4.8L-4.2 2.4V-2.4Z", "p": "M0-4.8L4.6-1.5L2.8 3.9H-2.8L-4.6-1.5Z",
};

function plain(value) {
  return value === 0 ? "0" : Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3
    ? value.toExponential(2).replace(/\.?0*e\+?/, "e") : Number(value.toPrecision(4)).toLocaleString("en");
}

function format(value, unit) {
  if (unit !== "B" && unit !== "bit") return plain(value) + (unit && value !== 0 ? " " + unit : "");
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.abs(value) || 1) / 3)));
  return Number((value / 1000 ** power).toPrecision(4)) + " " + ["", "k", "M", "G", "T"][power] + unit;
}

function power(exponent) {
  return "10" + [...String(exponent)].map(c => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] || "⁻").join("");
}

function linearTicks(low, high, count) {
  const raw = (high - low || Math.abs(high) || 1) / count, size = 10 ** Math.floor(Math.log10(raw));
  const step = size * [1, 2, 2.5, 5, 10].find(m => m * size >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks.map(at => ({at, text: plain(at)}));
}

function logTicks(low, high, count) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), ticks = [];
  const few = last - first <= 3, every = Math.max(1, Math.ceil((last - first) / count));
  for (let exponent = first; exponent <= last; exponent++)
    for (const digit of few ? [1, 2, 5] : [1])
      if (few || (exponent - first) % every === 0) ticks.push(
        {at: digit * 10 ** exponent, text: few ? plain(digit * 10 ** exponent) : power(exponent)});
  return ticks.filter(tick => tick.at >= low * 0.999 && tick.at <= high * 1.001);
}

// What to draw in a panel: the points of each curve in data units, the ranges and the axis type.
function layout(panel, x, y, hidden) {
  const log = panel.log[y], curves = [];
  for (const curve of panel.curves) {
    if (hidden.has(curve.label)) continue;
    const at = curve.values[y][x], points = [];
    curve.costs[x].forEach((cost, i) => {
      if (at.middle[i] !== null) points.push({x: cost, middle: at.middle[i],
        low: at.low ? at.low[i] : at.middle[i], high: at.high ? at.high[i] : at.middle[i]});
    });
    if (points.length) curves.push({curve, points});
  }
  const all = curves.flatMap(c => c.points), medians = all.map(p => p.middle);
  if (!all.length) return null;
  const max = values => values.reduce((a, b) => Math.max(a, b), -Infinity);
  const min = values => values.reduce((a, b) => Math.min(a, b), Infinity);
  const positive = medians.filter(v => v > 0), zeros = log && medians.includes(0);
  let bottom = log ? min(positive) : min(medians), top = log ? max(positive) : max(medians);
  const edge = bottom / 2;  // where an exact 0 stands on a logarithmic axis
  const slack = (top - bottom) / 2 || Math.abs(top) / 10 || 1;
  const lowest = log ? bottom / 10 : bottom - slack, highest = log ? top * 10 : top + slack;
  for (const p of all) {  // bands widen the range, but a diverged seed must not flatten the medians
    if (p.low !== null && p.low > 0 === log && p.low >= lowest) bottom = Math.min(bottom, p.low);
    if (p.high !== null && p.high <= highest) top = Math.max(top, p.high);
  }
  if (!log) for (const p of all) if (p.low !== null && p.low >= lowest) bottom = Math.min(bottom, p.low);
  if (log) [bottom, top] = [zeros ? Math.min(bottom, edge) : bottom / 1.15, top * 1.15];
  else { const pad = (top - bottom) * 0.05 || Math.abs(top) * 0.05 || 1; [bottom, top] = [bottom - pad, top + pad]; }
  const place = v => v === null ? null : log && v <= 0 ? edge : v;
  return {log, zeros, bottom, top, place, curves, left: min(all.map(p => p.x)), right: max(all.map(p => p.x))};
}

if (typeof document !== "undefined") {
  const report = JSON.parse(document.getElementById("data").textContent);
  const menus = {x: document.getElementById("x"), y: document.getElementById("y")};
  const hidden = report.figures.map(() => new Set());

  function add(parent, name, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  function draw(cell) {
    const number = Number(cell.closest(".figure").dataset.figure);
    const panel = report.figures[number].panels[Number(cell.dataset.panel)];
    const x = menus.x.value, y = menus.y.value, view = layout(panel, x, y, hidden[number]);
    const width = Math.max(cell.clientWidth, 220), height = Math.round(Math.min(460, Math.max(260, width * 0.55)));
    cell.replaceChildren();
    const svg = add(cell, "svg", {width, height, role: "img", viewBox: `0 0 ${width} ${height}`});
    const label = report.columns[y].label + (view && view.zeros ? " (0: at the lower edge)" : "");
    svg.setAttribute("aria-label", `${label} against ${report.columns[x].label}`);
    add(svg, "text", {x: 0, y: 14, class: "ylabel"}, label);
    if (!view) { add(svg, "text", {x: 0, y: 50}, "no finite values"); return; }
    const rows = Math.max(3, Math.floor(height / 60)), columns = Math.max(2, Math.floor(width / 110));
    const yticks = view.log ? logTicks(view.bottom, view.top, rows) : linearTicks(view.bottom, view.top, rows);
    const xticks = linearTicks(view.left, view.right, columns);
    const margin = {left: 12 + 7.5 * Math.max(2, ...yticks.map(t => t.text.length)), right: 14, top: 26, bottom: 46};
    const inner = {width: width - margin.left - margin.right, height: height - margin.top - margin.bottom};
    const px = v => margin.left + inner.width * (v - view.left) / (view.right - view.left || 1);
    const share = v => view.log ? Math.log(v / view.bottom) / Math.log(view.top / view.bottom)
      : (v - view.bottom) / (view.top - view.bottom);
    const py = v => margin.top + inner.height * (1 - Math.min(3, Math.max(-3, share(view.place(v)))));
    for (const tick of yticks) {
      add(svg, "path", {class: "grid", d: `M${margin.left} ${py(tick.at)}h${inner.width}`});
      add(svg, "text", {x: margin.left - 6, y: py(tick.at) + 4, "text-anchor": "end"}, tick.text);
    }
    for (const tick of xticks) {
      add(svg, "path", {class: "grid", d: `M${px(tick.at)} ${margin.top}v${inner.height}`});
      const end = px(tick.at) > width - 30 ? "end" : "middle";
      add(svg, "text", {x: end === "end" ? width - 1 : px(tick.at), y: height - 27, "text-anchor": end},
        format(tick.at, report.columns[x].unit));
    }
    add(svg, "text", {x: margin.left + inner.width / 2, y: height - 6, "text-anchor": "middle", class: "xlabel"},
      report.columns[x].label);
    const clip = `clip-${number}-${cell.dataset.panel}`;
    add(add(svg, "clipPath", {id: clip}), "rect",
      {x: margin.left - 6, y: margin.top - 4, width: inner.width + 12, height: inner.height + 8});
    const group = add(svg, "g", {class: "curves", "clip-path": `url(#${clip})`});
    for (const {curve, points} of view.curves) {
      const edgeOf = (p, side) => p[side] === null ? (side === "low" ? view.bottom / 1e3 : view.top * 1e3) : p[side];
      const path = side => points.map(p => `${px(p.x).toFixed(1)} ${py(edgeOf(p, side)).toFixed(1)}`);
      if (points.some(p => p.low !== p.high)) add(group, "path", {class: "band", fill: curve.colour,
        "fill-opacity": 0.17, d: `M${[...path("low"), ...path("high").reverse()].join("L")}Z`});
      add(group, "path", {class: "median", fill: "none", stroke: curve.colour, "stroke-width": 2.2,
        "stroke-linejoin": "round", "stroke-dasharray": curve.dash.map(v => 2 * v).join(" "),
        d: `M${path("middle").join("L")}`});
      const every = Math.max(1, Math.floor(points.length / 8));
      for (let i = Math.floor(every / 3 * (panel.curves.indexOf(curve) % 3)); i < points.length; i += every)
        add(group, "path", {d: MARKERS[curve.marker] || MARKERS.o, fill: curve.colour,
          transform: `translate(${px(points[i].x).toFixed(1)} ${py(points[i].middle).toFixed(1)})`});
    }
    add(svg, "path", {class: "frame", d: `M${margin.left} ${margin.top}v${inner.height}h${inner.width}`});
    const cursor = add(svg, "path", {class: "cursor", d: "", fill: "none"});
    const values = document.createElement("div");
    values.className = "values";
    values.hidden = true;
    cell.append(values);
    svg.addEventListener("pointerleave", () => { values.hidden = true; cursor.setAttribute("d", ""); });
    svg.addEventListener("pointermove", event => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      if (at < margin.left || at > width - margin.right) return;
      const cost = view.left + (at - margin.left) / inner.width * (view.right - view.left);
      values.replaceChildren(`${format(cost, report.columns[x].unit)} ${report.columns[x].label}`);
      for (const {curve, points} of view.curves) {
        const point = points.findLast(p => p.x <= cost) || points[0], line = document.createElement("div");
        const swatch = document.createElement("i");
        swatch.style.background = curve.colour;
        line.append(swatch, `${curve.label}: ${plain(point.middle)}`);
        values.append(line);
      }
      values.hidden = false;
      values.style.left = at < width / 2 ? `${at + 14}px` : "auto";
      values.style.right = at < width / 2 ? "auto" : `${width - at + 14}px`;
      cursor.setAttribute("d", `M${at} ${margin.top}v${inner.height}`);
    });
  }

  const cells = [...document.querySelectorAll(".plot")];
  const drawAll = () => cells.forEach(draw);
  for (const marker of document.querySelectorAll("[data-marker]"))
    marker.setAttribute("d", MARKERS[marker.dataset.marker] || MARKERS.o);
  menus.x.addEventListener("change", drawAll);
  menus.y.addEventListener("change", drawAll);
  for (const button of document.querySelectorAll(".legend button")) button.addEventListener("click", () => {
    const number = Number(button.closest(".figure").dataset.figure), label = button.dataset.label;
    const show = hidden[number].delete(label);
    if (!show) hidden[number].add(label);
    button.setAttribute("aria-pressed", String(show));
    drawAll();
  });
  for (const button of document.querySelectorAll("button.csv")) button.addEventListener("click", () => {
    const figure = report.figures[Number(button.closest(".figure").dataset.figure)];
    const quote = text => '"' + text.replaceAll('"', '""') + '"', rows = ["panel,curve,cost,at,column,low,median,high"];
    for (const panel of figure.panels) for (const curve of panel.curves)
      for (const [y, byCost] of Object.entries(curve.values)) for (const [x, at] of Object.entries(byCost))
        curve.costs[x].forEach((cost, i) => rows.push([quote(panel.title), quote(curve.label), x, cost, y,
          (at.low || at.middle)[i], at.middle[i], (at.high || at.middle)[i]].join(",")));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([rows.join("\n") + "\n"], {type: "text/csv"}));
    link.download = figure.name.replaceAll("/", "-") + ".csv";
    link.click();
  });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
  drawAll();
}
