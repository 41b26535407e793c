"""A report as one page that opens offline: panels with switchable axes, claims, settings, data to download.

With plotly installed (`pip install 'fedpage[plotly]'`) the curves are interactive; without it they are images, and the
same switch exchanges them.
"""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.report.plots import COLOURS, MARKERS, NAMES, band, scale
from fedpage.runs.history import History, by_method

AXES = ("round", "clients", "bytes_up", "bytes_down", "gradients_per_client")
"""What the x axis can be switched to."""
_POINTS = 120


@dataclass(frozen=True)
class PanelRuns:
    """One plot: its title, and its runs by label."""

    title: str
    curves: Mapping[str, Sequence[History]]


@dataclass(frozen=True)
class FigureRuns:
    """Panels that belong together, so many in a row."""

    name: str
    title: str
    paper: str
    columns: int
    panels: tuple[PanelRuns, ...]


def draw(figure: FigureRuns, x: str = "round", y: str = "grad_norm") -> Any:
    """The figure laid out as in the paper: a matplotlib Figure with one legend."""
    from matplotlib.figure import Figure

    rows = -(-len(figure.panels) // figure.columns)
    page = Figure(figsize=(4.1 * figure.columns, 3.1 * rows + 0.9), layout="constrained")
    grid = np.atleast_1d(page.subplots(rows, figure.columns, squeeze=False)).ravel()
    labels = list(dict.fromkeys(label for panel in figure.panels for label in panel.curves))
    seen: dict[str, Any] = {}
    for ax, panel in zip(grid, figure.panels, strict=False):
        medians = []
        for label, runs in panel.curves.items():
            if not runs:
                continue
            number = labels.index(label)
            costs, (low, middle, high) = band(runs, x, y, (0.25, 0.75))
            shown = np.isfinite(middle)
            medians.append(middle[shown])
            every = max(1, int(shown.sum()) // 8)
            (seen[label],) = ax.plot(
                costs[shown], middle[shown], color=COLOURS[number % 8], marker=MARKERS[number % 8], markersize=4,
                markevery=(number * every // 5, every), linewidth=1.4,
            )  # fmt: skip
            ax.fill_between(
                costs[shown],
                low[shown],
                np.minimum(high, 1e300)[shown],
                color=COLOURS[number % 8],
                alpha=0.15,
                linewidth=0,
            )
        scale(ax, medians, NAMES[y])
        if ax is not grid[0] and ax.get_ylabel() == NAMES[y]:
            ax.set_ylabel("")
        ax.set_title(panel.title, fontsize=10)
        ax.set_xlabel(NAMES[x], fontsize=9)
        ax.grid(True, alpha=0.25, linewidth=0.6)
        if x.startswith("bytes"):
            from matplotlib.ticker import EngFormatter

            ax.xaxis.set_major_formatter(EngFormatter(unit="B"))
    for ax in grid[len(figure.panels) :]:
        ax.set_visible(False)
    page.suptitle(figure.title, fontsize=11)
    page.legend(
        seen.values(),
        seen.keys(),
        loc="outside lower center",
        ncols=min(4, max(1, len(seen))),
        frameon=False,
    )
    return page


def _curve(runs: Sequence[History], number: int, label: str, y: str) -> dict[str, Any]:
    axes = {}
    for x in AXES:
        costs, (low, middle, high) = band(runs, x, y, (0.25, 0.75))
        keep = np.unique(
            np.linspace(0, len(costs) - 1, min(_POINTS, len(costs))).round().astype(int)
        )
        keep = keep[np.isfinite(middle[keep])]
        axes[x] = {
            "x": [_short(v) for v in costs[keep]], "low": [_short(v) for v in low[keep]],
            "middle": [_short(v) for v in middle[keep]], "high": [_short(min(v, 1e300)) for v in high[keep]],
        }  # fmt: skip
    return {"label": label, "colour": COLOURS[number % 8], "seeds": len(runs), "axes": axes}


def _short(value: float) -> float:
    return float(f"{value:.5g}") if math.isfinite(value) else 0.0


def _data(figure: FigureRuns, y: str) -> dict[str, Any]:
    labels = list(dict.fromkeys(label for panel in figure.panels for label in panel.curves))
    return {
        "name": figure.name,
        "panels": [
            {
                "title": panel.title,
                "curves": [
                    _curve(r, labels.index(name), name, y) for name, r in panel.curves.items() if r
                ],
            }
            for panel in figure.panels
        ],
    }


def _picture(figure: FigureRuns, x: str, y: str) -> str:
    stream = io.BytesIO()
    draw(figure, x, y).savefig(stream, format="png", dpi=90)
    return base64.b64encode(stream.getvalue()).decode("ascii")


def write(
    path: Path,
    *,
    title: str,
    figures: Sequence[FigureRuns],
    settings: Mapping[str, Any],
    claims: Sequence[Any] = (),
    note: str = "",
    tables: str = "",
    interactive: bool | None = None,
    y: str = "grad_norm",
) -> Path:
    """Write the page. claims: `paper.claims.Verdict`s. tables: HTML to put before the figures. interactive: None asks
    whether plotly is installed."""
    library = _plotly() if interactive in (None, True) else None
    if interactive and library is None:
        from fedpage.core.errors import InputError

        raise InputError("interactive curves need plotly: pip install 'fedpage[plotly]'")
    body: list[str] = []
    for figure in figures:
        number = len(body)
        if library is None:
            shown = "".join(
                f'<img class="axis" data-axis="{x}" alt="{html.escape(figure.title)} against {NAMES[x]}" '
                f'src="data:image/png;base64,{_picture(figure, x, y)}"{"" if x == "round" else " hidden"}>'
                for x in AXES
            )
        else:
            cells = "".join(
                f'<div class="panel" data-figure="{number}" data-panel="{i}"></div>'
                for i in range(len(figure.panels))
            )
            shown = f'<div class="panels" style="--columns:{figure.columns}">{cells}</div>'
        body.append(
            f'<section id="{html.escape(figure.name)}"><h2>{html.escape(figure.title)}</h2>'
            f'<p class="note">{html.escape(figure.paper)} <button type="button" class="csv" data-figure="{number}">'
            f"data as CSV</button></p>{shown}</section>"
        )
    data = json.dumps([_data(figure, y) for figure in figures], separators=(",", ":")).replace(
        "</", "<\\/"
    )
    options = "".join(f'<option value="{x}">{html.escape(NAMES[x])}</option>' for x in AXES)
    page = _PAGE
    for key, value in {
        "@TITLE@": html.escape(title),
        "@NOTE@": f'<p class="note">{html.escape(note)}</p>' if note else "",
        "@OPTIONS@": options,
        "@TABLES@": tables,
        "@CLAIMS@": _claims(claims),
        "@BODY@": "".join(body),
        "@SETTINGS@": html.escape(json.dumps(settings, indent=2, ensure_ascii=False, default=str)),
        "@DATA@": data,
        "@LIBRARY@": f"<script>{library}</script>" if library else "",
        "@NAMES@": json.dumps(NAMES),
        "@YNAME@": json.dumps(NAMES.get(y, y)),
    }.items():
        page = page.replace(key, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def of_runs(
    runs: Sequence[History], path: Path, *, title: str, target: float, extra: str = ""
) -> Path:
    """A user's own experiment as a page: the summary, one panel of the gradient norm, settings and provenance."""
    from fedpage.report import summary

    groups = by_method(runs)
    about = runs[0].meta
    figure = FigureRuns(
        "runs", title, "", 1, (PanelRuns("gradient norm, median and quartiles over seeds", groups),)
    )
    settings = {
        "problem": about.get("problem", {}),
        "rounds": about.get("rounds"),
        "seeds": sorted({int(run.meta.get("seed", 0)) for run in runs}),
        "versions": about.get("versions", {}),
        "methods": [group[0].meta.get("method") for group in groups.values()],
    }
    note = about.get("problem", {}).get("data_note", "")
    return write(
        path,
        title=title,
        figures=[figure],
        settings=settings,
        note=f"Data: {note}." if note else "",
        tables=summary.table(runs, target) + extra,
    )


def _plotly() -> str | None:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return str(get_plotlyjs())


def _claims(verdicts: Sequence[Any]) -> str:
    if not verdicts:
        return ""
    rows = []
    for verdict in verdicts:
        detail = "".join(
            f"<tr><td>{html.escape(f.panel)}</td><td>{html.escape(f.what)}</td><td>{html.escape(f.verdict)}</td>"
            f"<td>{html.escape(f.numbers)}</td></tr>"
            for f in verdict.findings
        )
        kind = verdict.verdict.split()[0]
        rows.append(
            f'<details class="claim {kind}"><summary><b>{html.escape(verdict.verdict)}</b>: '
            f"{html.escape(verdict.claim.text)}</summary><p class=note>{html.escape(verdict.claim.where)}. "
            f"{html.escape(verdict.tally)}. {html.escape(verdict.note)}</p>"
            f'<div class="wide"><table>{detail}</table></div></details>'
        )
    return "<section><h2>The paper's claims</h2>" + "".join(rows) + "</section>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>@TITLE@</title>
<style>
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --line: #d0d0d7; --soft: #5c5c66; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8ee; --paper: #17171b; --line: #3c3c46; --soft: #a9a9b5; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 84rem;
  margin: 1.5rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
header { position: sticky; top: 0; background: var(--paper); padding: .4rem 0; border-bottom: 1px solid var(--line);
  z-index: 2; }
select, button { font: inherit; max-width: 100%; }
img { width: 100%; height: auto; background: #fff; border-radius: 6px; }
.panels { display: grid; grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); gap: .6rem; }
.panel { height: 300px; min-width: 0; }
.panels[style*="--columns:1"] .panel { height: 460px; }
@media (max-width: 900px) { .panels { grid-template-columns: minmax(0, 1fr); } }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.note { color: var(--soft); }
.claim { margin: .4rem 0; padding-left: .6rem; border-left: 5px solid #999; }
.holds { border-color: #009E73; } .does { border-color: #D55E00; } .undecided { border-color: #E69F00; }
pre { overflow-x: auto; font-size: 13px; }
</style></head><body>
<h1>@TITLE@</h1>@NOTE@
@TABLES@
<header><label>Horizontal axis: <select id="axis">@OPTIONS@</select></label></header>
@CLAIMS@@BODY@
<details><summary>Settings and provenance</summary><pre>@SETTINGS@</pre></details>
@LIBRARY@
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const figures = JSON.parse(document.getElementById("data").textContent), names = @NAMES@, yname = @YNAME@;
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const ink = dark ? "#e8e8ee" : "#1b1b1f", line = dark ? "#3c3c46" : "#e2e2e8";
function paint(cell, axis) {
  const panel = figures[cell.dataset.figure].panels[cell.dataset.panel], traces = [];
  const values = panel.curves.flatMap(curve => curve.axes[axis].low.concat(curve.axes[axis].middle));
  const positive = values.filter(v => v > 0), log = positive.length > 0 && values.every(v => v >= 0);
  const edge = positive.reduce((a, b) => Math.min(a, b), Infinity) / 2, zeros = log && values.includes(0);
  const place = v => log && v === 0 ? edge : v;
  for (const curve of panel.curves) {
    const at = curve.axes[axis];
    traces.push({x: at.x.concat([...at.x].reverse()), y: at.high.concat([...at.low].reverse()).map(place),
      fill: "toself", fillcolor: curve.colour + "2e", line: {width: 0}, hoverinfo: "skip", showlegend: false,
      mode: "lines"});
    traces.push({x: at.x, y: at.middle.map(place), customdata: at.middle, name: curve.label, mode: "lines",
      line: {color: curve.colour, width: 2},
      hovertemplate: "%{x:.4s}: %{customdata:.3g}<extra>" + curve.label + "</extra>"});
  }
  Plotly.react(cell, traces, {title: {text: panel.title, font: {size: 14}, x: 0.02, xanchor: "left"},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: ink, size: 12},
    margin: {l: 58, r: 8, t: 34, b: 44},
    xaxis: {title: {text: names[axis]}, gridcolor: line, zeroline: false},
    yaxis: {type: log ? "log" : "linear", title: {text: yname + (zeros ? " (0: at the lower edge)" : "")},
      gridcolor: line, exponentformat: "power", nticks: 8},
    legend: {orientation: "h", y: -0.28, font: {size: 11}}, hovermode: "closest",
    modebar: {bgcolor: "rgba(0,0,0,0)", color: "#8a8a94"}},
    {displaylogo: false, responsive: true});
}
function show(axis) {
  document.documentElement.dataset.axis = axis;
  for (const image of document.querySelectorAll("img.axis")) image.hidden = image.dataset.axis !== axis;
  if (typeof Plotly !== "undefined") for (const cell of document.querySelectorAll(".panel")) paint(cell, axis);
}
document.getElementById("axis").addEventListener("change", event => show(event.target.value));
for (const button of document.querySelectorAll("button.csv")) button.addEventListener("click", () => {
  const figure = figures[button.dataset.figure], rows = ["panel,curve,axis,x,low,median,high"];
  const quoted = text => '"' + text.replaceAll('"', '""') + '"';
  for (const panel of figure.panels) for (const curve of panel.curves)
    for (const [axis, at] of Object.entries(curve.axes)) at.x.forEach((x, i) => rows.push(
      [quoted(panel.title), quoted(curve.label), axis, x, at.low[i], at.middle[i], at.high[i]].join(",")));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.join("\\n") + "\\n"], {type: "text/csv"}));
  link.download = figure.name.replaceAll("/", "-") + ".csv";
  link.click();
});
show("round");
</script></body></html>
"""
