"use strict";
// Draws one chart as SVG: medians, bands, seeds, the target. Colours and fonts are attributes, not
// rules of a style sheet, so that the same element is right in the page and in a file of its own.

const MARKERS = {
  "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", "s": "M-3.6-3.6H3.6V3.6H-3.6Z",
  "^": "M0-4.6L4.2 3.4H-4.2Z", "v": "M0 4.6L4.2-3.4H-4.2Z", "<": "M-4.6 0L3.4-4.2V4.2Z",
  ">": "M4.6 0L-3.4-4.2V4.2Z", "D": "M0-5L5 0L0 5L-5 0Z", "d": "M0-5L3 0L0 5L-3 0Z",
  "P": "M-1.5-4.4H1.5V-1.5H4.4V1.5H1.5V4.4H-1.5V1.5H-4.4V-1.5H-1.5Z",
  "X": "M-4.2-2.4L-2.4-4.2L0-1.8L2.4-4.2L4.2-2.4L1.8 0L4.2 2.4L2.4 4.2L0 1.8L-2.4 4.2L-4.2 2.4L-1.8 0Z",
  "*": "M0-5.4L1.5-1.7L5.2-1.7L2.3.8L3.2 4.4L0 2.3L-3.2 4.4L-2.3.8L-5.2-1.7L-1.5-1.7Z",
  "h": "M0-4.8L4.2-2.4V2.4L0 4.8L-4.2 2.4V-2.4Z", "p": "M0-4.8L4.6-1.5L2.8 3.9H-2.8L-4.6-1.5Z",
};
const FONT = "system-ui, sans-serif";
const LIGHT = {ink: "#1b1b1f", soft: "#5c5c66", line: "#dcdce2", paper: "#ffffff"};

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

const largest = values => values.reduce((a, b) => Math.max(a, b), -Infinity);
const smallest = values => values.reduce((a, b) => Math.min(a, b), Infinity);

// What to draw in a panel: the points of each curve in data units, the ranges and the axis types.
// choice: {x, y, xlog, ylog, hidden, target}; ylog is true, false or null for the panel's own.
function layout(panel, choice) {
  const {x, y, xlog, hidden, target} = choice, curves = [];
  for (const curve of panel.curves) {
    if (hidden.has(curve.label)) continue;
    const at = curve.values[y][x], points = [];
    curve.costs[x].forEach((cost, i) => {
      if (at.middle[i] !== null && (!xlog || cost > 0)) points.push({x: cost, middle: at.middle[i],
        low: at.low ? at.low[i] : at.middle[i], high: at.high ? at.high[i] : at.middle[i]});
    });
    if (points.length) curves.push({curve, points});
  }
  const all = curves.flatMap(c => c.points), medians = all.map(p => p.middle);
  if (!all.length) return null;
  const positive = medians.filter(v => v > 0);
  const log = Boolean((choice.ylog ?? panel.log[y]) && positive.length);
  const zeros = log && medians.some(v => v <= 0);
  let bottom = log ? smallest(positive) : smallest(medians), top = log ? largest(positive) : largest(medians);
  const edge = bottom / 2;  // where 0 and less stand on a logarithmic axis
  const slack = (top - bottom) / 2 || Math.abs(top) / 10 || 1;
  const lowest = log ? bottom / 10 : bottom - slack, highest = log ? top * 10 : top + slack;
  const widen = v => {  // bands widen the range, but a diverged seed must not flatten the medians
    if (v === null || v === undefined || v < lowest || v > highest) return;
    [bottom, top] = [Math.min(bottom, v), Math.max(top, v)];
  };
  for (const p of all) { widen(p.low); widen(p.high); }
  if (target && target.column === y) widen(target.value);
  if (log) [bottom, top] = [zeros ? Math.min(bottom, edge) : bottom / 1.15, top * 1.15];
  else { const pad = (top - bottom) * 0.05 || Math.abs(top) * 0.05 || 1; [bottom, top] = [bottom - pad, top + pad]; }
  const place = v => v === null ? null : log && v <= 0 ? edge : v;
  const left = smallest(all.map(p => p.x)), right = largest(all.map(p => p.x));
  return {log, xlog, zeros, bottom, top, place, curves, left, right};
}

function add(parent, name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function luminance(colour) {
  const part = i => { const v = parseInt(colour.slice(i, i + 2), 16) / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
}

// The colour itself where it stands out from the paper by 3:1 or the paper is light, else a lighter
// one. On light paper a method keeps the very colour that it has in files.
function visible(colour, paper) {
  const back = luminance(paper);
  for (let share = 0; back < 0.2 && share < 1; share += 0.1) {
    const mixed = "#" + [1, 3, 5].map(i => {
      const v = parseInt(colour.slice(i, i + 2), 16);
      return Math.round(v + (255 - v) * share).toString(16).padStart(2, "0");
    }).join("");
    if ((luminance(mixed) + 0.05) / (back + 0.05) >= 3.5) return mixed;
  }
  return colour;
}

// Draws a panel into `parent`, an HTML or an SVG element.
// look: {width, height, theme, columns, id, seeds}. Returns the SVG and what the pointer needs.
function drawChart(parent, panel, choice, look) {
  const {x, y, target} = choice, {width, height, theme, columns} = look, view = layout(panel, choice);
  const svg = add(parent, "svg", {width, height, role: "img", viewBox: `0 0 ${width} ${height}`,
    "font-family": FONT, "font-size": 13, fill: theme.ink});
  const label = columns[y].label + (view && view.zeros ? " (0: at the lower edge)" : "");
  svg.setAttribute("aria-label", `${label} against ${columns[x].label}`);
  add(svg, "text", {x: 0, y: 14, class: "ylabel"}, label);
  if (!view) { add(svg, "text", {x: 0, y: 50}, "no finite values"); return {svg, view}; }
  const down = Math.max(3, Math.floor(height / 60)), across = Math.max(2, Math.floor(width / 110));
  const yticks = (view.log ? logTicks : linearTicks)(view.bottom, view.top, down);
  const xticks = (view.xlog ? logTicks : linearTicks)(view.left, view.right, across);
  const margin = {left: 12 + 7.5 * Math.max(2, ...yticks.map(t => t.text.length)), right: 14, top: 26, bottom: 46};
  const inner = {width: width - margin.left - margin.right, height: height - margin.top - margin.bottom};
  const share = (v, low, high, log) => log ? Math.log(v / low) / (Math.log(high / low) || 1) : (v - low) / (high - low || 1);
  const px = v => margin.left + inner.width * share(v, view.left, view.right, view.xlog);
  const py = v => margin.top + inner.height
    * (1 - Math.min(3, Math.max(-3, share(view.place(v), view.bottom, view.top, view.log))));
  for (const tick of yticks) {
    add(svg, "path", {stroke: theme.line, d: `M${margin.left} ${py(tick.at)}h${inner.width}`});
    add(svg, "text", {x: margin.left - 6, y: py(tick.at) + 4, "text-anchor": "end"}, tick.text);
  }
  let free = -Infinity;  // ticks of a logarithmic axis stand at uneven distances
  for (const tick of xticks) {
    add(svg, "path", {stroke: theme.line, d: `M${px(tick.at)} ${margin.top}v${inner.height}`});
    const text = view.xlog && !columns[x].unit ? tick.text : format(tick.at, columns[x].unit);
    const half = 4 * text.length, atEnd = px(tick.at) > width - half;
    if ((atEnd ? width - 2 * half : px(tick.at) - half) < free) continue;
    free = px(tick.at) + half + 4;
    add(svg, "text", {x: atEnd ? width - 1 : px(tick.at), y: height - 27, "text-anchor": atEnd ? "end" : "middle"}, text);
  }
  add(svg, "text", {x: margin.left + inner.width / 2, y: height - 6, "text-anchor": "middle", class: "xlabel"},
    columns[x].label);
  add(add(svg, "clipPath", {id: look.id}), "rect",
    {x: margin.left - 6, y: margin.top - 4, width: inner.width + 12, height: inner.height + 8});
  const group = add(svg, "g", {"clip-path": `url(#${look.id})`});
  const join = points => "M" + points.map(([a, b]) => `${px(a).toFixed(1)} ${py(b).toFixed(1)}`).join("L");
  for (const {curve, points} of view.curves) {
    const colour = visible(curve.colour, theme.paper);
    const edgeOf = (p, side) => p[side] ?? (side === "low" ? view.bottom / 1e3 : view.top * 1e3);
    const path = side => points.map(p => [p.x, edgeOf(p, side)]);
    const dash = curve.dash.map(v => 2 * v).join(" ");
    for (const run of look.seeds ? curve.runs || [] : []) {
      const own = run.costs[x].map((cost, i) => [cost, run.values[y][i]]).filter(([cost, v]) => v !== null && (!view.xlog || cost > 0));
      if (own.length) add(group, "path", {class: "seed", fill: "none", stroke: colour, "stroke-width": 1,
        "stroke-opacity": 0.55, "stroke-dasharray": dash, d: join(own)});
    }
    if (!look.seeds && points.some(p => p.low !== p.high)) add(group, "path", {class: "band", fill: colour,
      "fill-opacity": 0.18, d: join([...path("low"), ...path("high").reverse()]) + "Z"});
    add(group, "path", {class: "median", fill: "none", stroke: colour, "stroke-width": 2.2,
      "stroke-linejoin": "round", "stroke-dasharray": dash, d: join(path("middle"))});
    const every = Math.max(1, Math.floor(points.length / 8));
    for (let i = Math.floor(every / 3 * (panel.curves.indexOf(curve) % 3)); i < points.length; i += every)
      add(group, "path", {d: MARKERS[curve.marker] || MARKERS.o, fill: colour,
        transform: `translate(${px(points[i].x).toFixed(1)} ${py(points[i].middle).toFixed(1)})`});
  }
  if (target && target.column === y && target.value >= view.bottom && target.value <= view.top) {
    const at = py(target.value);
    add(svg, "path", {class: "target", stroke: theme.ink, "stroke-dasharray": "6 4", d: `M${margin.left} ${at}h${inner.width}`});
    add(svg, "text", {x: width - margin.right - 4, y: at < margin.top + 20 ? at + 15 : at - 5, "text-anchor": "end", stroke: theme.paper,
      "stroke-width": 4, "paint-order": "stroke"}, `target ${plain(target.value)}`);
    for (const {curve} of view.curves) {
      const cost = curve.reached ? curve.reached[x] : null;
      if (cost !== null && cost >= view.left && cost <= view.right) add(svg, "circle", {class: "reached",
        cx: px(cost), cy: at, r: 5, fill: theme.paper, stroke: visible(curve.colour, theme.paper), "stroke-width": 2.5});
    }
  }
  add(svg, "path", {fill: "none", stroke: theme.soft, d: `M${margin.left} ${margin.top}v${inner.height}h${inner.width}`});
  const costAt = pixel => {
    const part = (pixel - margin.left) / inner.width;
    return view.xlog ? view.left * (view.right / view.left) ** part : view.left + part * (view.right - view.left);
  };
  return {svg, view, margin, inner, costAt};
}

function wrap(text, width, font) {
  const pen = document.createElement("canvas").getContext("2d"), lines = [""];
  pen.font = font;
  for (const word of text.split(" ")) {
    const longer = (lines.at(-1) + " " + word).trim();
    if (pen.measureText(longer).width <= width || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return {lines, widths: lines.map(line => pen.measureText(line).width)};
}

// Draws a whole figure for a file: its title in lines that fit, the legend, and all panels.
function drawFigure(figure, choice, look) {
  const wide = Math.min(figure.columns, figure.panels.length) || 1, cell = wide > 1 ? 480 : 760;
  const width = wide * (cell + 24) + 24, height = Math.round(cell * 0.6), theme = LIGHT;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const paper = add(svg, "rect", {width, fill: theme.paper});
  let y = 12;
  for (const line of wrap(figure.title, width - 48, `600 17px ${FONT}`).lines)
    add(svg, "text", {x: 24, y: y += 22, "font-size": 17, "font-weight": 600, class: "title"}, line);
  let x = 24;
  y += 26;
  for (const curve of figure.legend.filter(entry => !choice.hidden.has(entry.label))) {
    const wanted = 44 + wrap(curve.label, 1e9, `13px ${FONT}`).widths[0];
    if (x > 24 && x + wanted > width - 24) [x, y] = [24, y + 20];
    add(svg, "path", {d: `M${x} ${y - 4}h32`, stroke: curve.colour, "stroke-width": 2.5, "stroke-dasharray": curve.dash.map(v => 2 * v).join(" ")});
    add(svg, "path", {d: MARKERS[curve.marker] || MARKERS.o, fill: curve.colour, transform: `translate(${x + 16} ${y - 4})`});
    add(svg, "text", {x: x + 38, y}, curve.label);
    x += wanted + 16;
  }
  y += 16;
  figure.panels.forEach((panel, i) => {
    const left = 24 + (i % wide) * (cell + 24);
    const title = panel.title ? wrap(panel.title, cell, `600 14px ${FONT}`).lines : [];
    title.forEach((line, j) => add(svg, "text", {x: left, y: y + 16 + 18 * j, "font-size": 14, "font-weight": 600}, line));
    const top = y + 18 * title.length + 6;
    const drawn = drawChart(svg, panel, choice, {...look, theme, width: cell, height, id: `clip-file-${i}`});
    drawn.svg.setAttribute("x", left);
    drawn.svg.setAttribute("y", top);
    if (i % wide === wide - 1 || i === figure.panels.length - 1) y = top + height + 14;
  });
  paper.setAttribute("height", y);
  for (const [key, value] of Object.entries({xmlns: "http://www.w3.org/2000/svg", width, height: y,
    viewBox: `0 0 ${width} ${y}`, "font-family": FONT, "font-size": 13, fill: theme.ink})) svg.setAttribute(key, value);
  return svg;
}
