"use strict";
// Connects the page's menus, legends and buttons with the charts that chart.js draws. It is our own
// 300 lines and not a chart library, because a report is one file that must open offline in years
// to come, and because the charts need what libraries lack: bands of diverged runs, costs to a
// target, one style for a method in every file, and SVG that can be saved.

const dark = matchMedia("(prefers-color-scheme: dark)");
const hiddenCurves = {};  // labels by the figure's name
let report, printing = false;

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const menu = id => document.getElementById(id);
const figureOf = node => report.figures[Number(node.closest(".figure").dataset.figure)];

function theme() {
  if (printing) return LIGHT;
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(Object.keys(LIGHT).map(key => [key, style.getPropertyValue("--" + key).trim()]));
}

function chosen(figure) {
  const ylog = {log: true, linear: false}[menu("yscale").value] ?? null;
  return {x: menu("x").value, y: menu("y").value, xlog: menu("xscale").value === "log", ylog,
    hidden: hiddenCurves[figure.name] ??= new Set(), target: report.target};
}

function drawCell(cell) {
  const figure = figureOf(cell), panel = figure.panels[Number(cell.dataset.panel)], choice = chosen(figure);
  const width = printing ? (figure.columns > 1 ? 330 : 680) : Math.max(cell.clientWidth, 220);
  const height = Math.round(Math.min(460, Math.max(printing ? 200 : 260, width * 0.55)));
  const {x, y} = choice, unit = report.columns[x].unit, seeds = menu("seeds") !== null && menu("seeds").checked;
  cell.replaceChildren();
  const id = `clip-${cell.closest(".figure").dataset.figure}-${cell.dataset.panel}`;
  const drawn = drawChart(cell, panel, choice, {width, height, theme: theme(), columns: report.columns, id, seeds});
  if (report.target && report.target.column === y) {
    const costs = panel.curves.filter(c => !choice.hidden.has(c.label)).map(c => c.label + " "
      + (c.reached[x] === null ? "not reached" : format(c.reached[x], unit)));
    const line = document.createElement("p");
    line.className = "note costs";
    const cost = report.columns[x].label;
    line.textContent = `${cost[0].toUpperCase()}${cost.slice(1)} to ${report.columns[y].label} ${plain(report.target.value)}: ${costs.join("; ")}`;
    cell.append(line);
  }
  if (drawn.view) followPointer(cell, drawn, choice, width);
}

function followPointer(cell, {svg, view, margin, inner, costAt}, {x}, width) {
  const colours = theme(), cursor = add(svg, "path", {stroke: colours.soft, "stroke-dasharray": "3 3", d: "", fill: "none"});
  const values = document.createElement("div");
  values.className = "values";
  values.hidden = true;
  cell.append(values);
  const bound = v => v === null ? "∞" : plain(v);
  svg.addEventListener("pointerleave", () => { values.hidden = true; cursor.setAttribute("d", ""); });
  svg.addEventListener("pointermove", event => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    if (at < margin.left || at > width - margin.right) return;
    const cost = costAt(at), column = report.columns[x];
    values.replaceChildren(`${format(cost, column.unit)} ${column.label}`);
    for (const {curve, points} of view.curves) {
      const point = points.findLast(p => p.x <= cost) || points[0], line = document.createElement("div");
      const swatch = document.createElement("i");
      swatch.style.background = visible(curve.colour, colours.paper);
      const band = point.low === point.high ? "" : ` (${bound(point.low)} to ${bound(point.high)})`;
      line.append(swatch, `${curve.label}: ${plain(point.middle)}${band}`);
      values.append(line);
    }
    values.hidden = false;
    values.style.left = at < width / 2 ? `${at + 14}px` : "auto";
    values.style.right = at < width / 2 ? "auto" : `${width - at + 14}px`;
    cursor.setAttribute("d", `M${at} ${margin.top}v${inner.height}`);
  });
}

function drawAll() {
  const paper = theme().paper;
  for (const marker of all(".legend .marker")) {
    marker.setAttribute("d", MARKERS[marker.dataset.marker] || MARKERS.o);
    marker.setAttribute("fill", visible(marker.dataset.colour, paper));
    marker.previousElementSibling.setAttribute("stroke", visible(marker.dataset.colour, paper));
  }
  for (const button of all(".legend button"))
    button.setAttribute("aria-pressed", String(!chosen(figureOf(button)).hidden.has(button.dataset.label)));
  all(".plot").forEach(drawCell);
}

function save(content, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], {type}));
  link.download = name.replaceAll("/", "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function csv(figure) {
  const quote = text => '"' + text.replaceAll('"', '""') + '"', rows = ["panel,curve,cost,at,column,low,median,high"];
  for (const panel of figure.panels) for (const curve of panel.curves)
    for (const [y, byCost] of Object.entries(curve.values)) for (const [x, at] of Object.entries(byCost))
      curve.costs[x].forEach((cost, i) => rows.push([quote(panel.title), quote(curve.label), x, cost, y,
        (at.low || at.middle)[i], at.middle[i], (at.high || at.middle)[i]].join(",")));
  return rows.join("\n") + "\n";
}

function figureSvg(figure) {
  const seeds = menu("seeds") !== null && menu("seeds").checked;
  return drawFigure(figure, chosen(figure), {columns: report.columns, seeds});
}

function savePng(figure) {
  const svg = figureSvg(figure), image = new Image(), scale = 3;
  image.addEventListener("load", () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [scale * image.width, scale * image.height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(blob => save(blob, "image/png", figure.name + ".png"));
  });
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg.outerHTML);
}

const SAVE = {
  csv: figure => save(csv(figure), "text/csv", figure.name + ".csv"),
  svg: figure => save(figureSvg(figure).outerHTML, "image/svg+xml", figure.name + ".svg"),
  png: savePng,
};

function start() {
  report = JSON.parse(document.getElementById("data").textContent);
  for (const field of all(".menus select, .menus input")) field.addEventListener("change", drawAll);
  for (const button of all(".legend button")) button.addEventListener("click", () => {
    const {hidden} = chosen(figureOf(button)), label = button.dataset.label;
    if (!hidden.delete(label)) hidden.add(label);
    drawAll();
  });
  for (const button of all("button[data-save]"))
    button.addEventListener("click", () => SAVE[button.dataset.save](figureOf(button)));
  drawAll();
}

let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
addEventListener("beforeprint", () => { printing = true; drawAll(); });
addEventListener("afterprint", () => { printing = false; drawAll(); });
dark.addEventListener("change", drawAll);
start();
