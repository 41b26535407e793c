"""Write a report as one HTML page that opens offline: tables, claims, curves, settings.

The page holds its data; its script draws them as SVG at the size of the reader's window, for the
axes that the reader chooses. Readers without a script see one SVG that matplotlib has drawn.
chart.js and page.js are our own: a report needs bands, costs to a target and the project's styles
in 300 lines of which every one is tested, and no library's file has to be shipped and kept up.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.core.columns import AXES, COLUMNS, Cost, Target, TargetLike, describe_column, list_axes
from fedpage.core.display import format_number
from fedpage.core.types import Vector
from fedpage.report import summary
from fedpage.report.bands import Summary, diverged_note, find_direction, use_log_axis
from fedpage.report.plots import FigureRuns, PanelRuns, draw_figure
from fedpage.report.style import assign_styles
from fedpage.report.tables import Table
from fedpage.report.titles import by_method
from fedpage.runs.history import History

_POINTS = 120
"""Points of a curve in the page; more would not be seen."""
_SEED_CURVES = 100
"""The most runs whose own curves the page holds; 100 of them take about 1 MB."""
_METRICS = 4
"""The most metrics in the list of runs; a run's own page draws all of them."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a report.

    Attributes:
        title: The page's title.
        figures: Runs to draw. A figure without a title has the heading "Curves", and the page's
            title in files.
        settings: Settings and provenance, shown as JSON.
        columns: Recorded columns for the vertical axis; the first is shown at first.
        axes: Costs for the horizontal axis; the first is shown at first.
        claims: Claims with their verdicts, such as `fedpage.studies.claims.CheckedClaim`.
        tables: Tables to show before the figures.
        note: A line below the title.
        picture: A PNG or SVG file to show before the figures.
        command: A command line to show.
        command_note: The line above the command.
        target: A target to draw as a line.
        runs: Runs to list one by one, with their ends, events and settings.
        run_links: A page for each of `runs`, relative to this one. Without them this page has the
            details of each run.
        home: The address of a page that this one belongs to, relative to this one.
    """

    title: str
    figures: Sequence[FigureRuns]
    settings: Mapping[str, object]
    columns: Sequence[str] = ("grad_norm", "loss")
    axes: Sequence[str] = AXES
    claims: Sequence[object] = ()
    tables: Sequence[Table] = ()
    note: str = ""
    picture: Path | None = None
    command: str = ""
    command_note: str = "To repeat it:"
    target: Target | None = None
    runs: Sequence[History] = ()
    run_links: Sequence[str] = ()
    home: str = ""

    def write(self, path: Path) -> Path:
        """Write the page as an HTML file, and return its path."""
        from jinja2 import Environment, PackageLoader
        from markupsafe import Markup

        environment = Environment(
            loader=PackageLoader("fedpage", "report"), autoescape=True, trim_blocks=True
        )
        data = self._data()
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        curves = [c for f in data["figures"] for panel in f["panels"] for c in panel["curves"]]
        html: str = environment.get_template("page.html").render(
            page=self,
            data=data,
            json=Markup(text.replace("<", "\\u003c")),
            has_seeds=any(curve["runs"] for curve in curves),
            stills=[] if self.home else [Markup(self._draw_still(each)) for each in self.figures],
            picture="" if self.picture is None else _embed_picture(self.picture),
            metrics=[describe_column(name).label for name in self._metrics],
            runs=list(self._list_runs()),
            settings=_dump(self.settings),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
        return path

    def _data(self) -> dict[str, Any]:
        """Collect what the template shows of figures and what the page's script draws."""
        target = self.target
        return {
            "target": target and {"column": target.column, "value": target.value},
            "columns": {n: asdict(describe_column(n)) for n in (*self.axes, *self.columns)},
            "figures": [self._figure_data(figure) for figure in self.figures],
        }

    def _figure_data(self, figure: FigureRuns) -> dict[str, Any]:
        styles = {label: asdict(style) for label, style in assign_styles(figure.labels).items()}
        legend, caption = [], ""
        for label, style in styles.items():
            groups = [panel.curves.get(label, ()) for panel in figure.panels]
            note = diverged_note([run for group in groups for run in group])
            legend.append({"label": label, "note": note, **style})
            if any(len(group) > 1 for group in groups):
                caption = "Lines are medians over seeds and bands are quartiles."
        return {
            "name": figure.name,
            "title": figure.title or self.title,
            "heading": figure.title or "Curves",
            "note": figure.note,
            "caption": caption,
            "columns": figure.columns,
            "legend": legend,
            "panels": [self._panel_data(panel, styles) for panel in figure.panels],
        }

    def _panel_data(
        self, panel: PanelRuns, styles: Mapping[str, Mapping[str, object]]
    ) -> dict[str, Any]:
        groups = [runs for f in self.figures for p in f.panels for runs in p.curves.values()]
        has_seeds = sum(map(len, groups)) <= _SEED_CURVES
        curves: list[dict[str, Any]] = []
        medians: dict[str, list[Vector]] = {y: [] for y in self.columns}
        for label, runs in panel.curves.items():
            if not runs:
                continue
            costs: dict[str, Any] = {}
            values: dict[str, dict[str, Any]] = {y: {} for y in self.columns}
            for x in self.axes:
                for y in self.columns:
                    grid, band = Summary().compute(runs, x, y)
                    keep = _choose_points(len(grid))
                    low, middle, high = band[:, keep]
                    costs[x] = _numbers(grid[keep])
                    edges = {"low": _numbers(low), "high": _numbers(high)} if len(runs) > 1 else {}
                    values[y][x] = {"middle": _numbers(middle)} | edges
                    medians[y].append(middle[np.isfinite(middle)])
            curves.append(
                {
                    "label": label,
                    **styles[label],
                    "costs": costs,
                    "values": values,
                    "reached": {x: self._cost_to_target(runs, x) for x in self.axes},
                    "runs": [self._run_data(r) for r in runs if has_seeds and len(runs) > 1],
                }
            )
        every = [run for runs in panel.curves.values() for run in runs]
        log = {y: use_log_axis(find_direction(every, y), medians[y]) for y in self.columns}
        return {"title": panel.title, "log": log, "curves": curves}

    def _run_data(self, run: History) -> dict[str, Any]:
        """Return a run's own curves, at no more records than can be seen."""
        keep = _choose_points(len(run.rows))
        return {
            "costs": {x: _numbers(run.cost(x)[keep]) for x in self.axes},
            "values": {y: _numbers(run.measured_by_all(y)[keep]) for y in self.columns},
        }

    def _cost_to_target(self, runs: Sequence[History], x: str) -> float | None:
        """Return the median cost to the target, or None if half of the runs did not reach it."""
        target = self.target
        if target is None or find_direction(runs, target.column) is None:
            return None
        return _numbers(np.median([run.cost_to(target, x) for run in runs], keepdims=True))[0]

    @property
    def _metrics(self) -> list[str]:
        """The first recorded columns that are not costs, for the list of runs."""
        names = dict.fromkeys(name for run in self.runs for name in run.columns)
        return [n for n in names if n not in COLUMNS or not COLUMNS[n].is_cost][:_METRICS]

    def _list_runs(self) -> Iterator[dict[str, Any]]:
        """Describe each run: its label in the legend, seed, last values, end, events, settings."""
        labels = {id(run): label for label, group in by_method(self.runs).items() for run in group}
        links = self.run_links or [""] * len(self.runs)
        for run, link in zip(self.runs, links, strict=True):
            values = [run.last(name) if name in run.columns else None for name in self._metrics]
            has_bytes = "bytes_up" in run.columns
            yield {
                "label": labels[id(run)],
                "seed": run.meta.get("seed", ""),
                "cells": [
                    *map(format_number, (run.last("round"), *values)),
                    summary.format_bytes(run.last("bytes")) if has_bytes else "",
                ],
                "end": run.stop_text or "not ended",
                "events": run.events,
                "settings": _dump(run.meta),
                "link": link,
            }

    def _draw_still(self, figure: FigureRuns) -> str:
        """Draw the figure against rounds as an SVG element whose text is text."""
        from matplotlib import rc_context

        stream = io.StringIO()
        drawn = draw_figure(
            replace(figure, title=figure.title or self.title), "round", self.columns[0]
        )
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
            drawn.savefig(stream, format="svg", metadata={"Date": None})
        text = stream.getvalue()
        return text[text.index("<svg") :]


def write_runs(
    runs: Sequence[History],
    path: Path,
    *,
    title: str,
    target: TargetLike,
    cost: str | Cost = "bytes",
    command: str = "",
    folders: Sequence[Path] = (),
    home: Path | None = None,
    bold: Collection[str] = (),
    sentences: Sequence[str] = (),
    **more: Any,
) -> Path:
    """Write a page about runs of any methods: the summary, one plot, settings and provenance.

    Args:
        runs: The runs.
        path: The HTML file.
        title: The page's title.
        target: What is to be reached and held.
        cost: The cost of the comparison: a column, or a sum such as "up+0.1*down". Other than
            "bytes" it is the horizontal axis that is shown at first.
        command: A command line that repeats the runs.
        folders: The directories of the runs. A page about each run is written there, and linked.
        home: A page to link back to.
        bold: The methods whose cost is bold.
        sentences: Sentences below the table, such as comparisons of pairs.
        **more: Fields of `Page` to use instead of these; the settings are added to the others.

    Returns:
        The path.
    """
    target, cost = Target.parse(target), Cost.parse(cost)
    for run, folder in zip(runs, folders, strict=bool(folders)):
        own = f"{run.label}, seed {run.meta.get('seed', '')}"
        write_runs([run], folder / "report.html", title=own, target=target, cost=cost, home=path)

    def link(other: Path) -> str:
        return Path(os.path.relpath(other, path.parent)).as_posix()

    groups, about = by_method(runs), runs[0].meta
    data_note = about.get("problem", {}).get("data_note", "")
    first = () if cost.name == "bytes" else (cost.name,)
    if "tables" not in more:
        rows = summary.summarise(runs, target, cost)
        table = summary.table(rows, target.column, cost, bold=bold)
        medians = "Medians over seeds. " if len(runs) > len(groups) else ""
        notes = (f"{medians}{summary.explain_target(target)}", *table.notes)
        more["tables"] = [replace(table, notes=notes, details=tuple(sentences))]
    settings = {
        "problem": about.get("problem", {}),
        "rounds": about.get("rounds"),
        "seeds": sorted({int(run.meta.get("seed", 0)) for run in runs}),
        "versions": about.get("versions", {}),
        "methods": [group[0].meta.get("method") for group in groups.values()],
    }
    parts: dict[str, Any] = {
        "figures": [FigureRuns("runs", "", "", 1, (PanelRuns("", groups),))],
        "columns": value_columns(runs, target.column),
        "axes": list(dict.fromkeys((*first, *list_axes(run.columns for run in runs)))),
        "note": f"Data: {data_note}." if data_note else "",
        "run_links": [link(folder / "report.html") for folder in folders],
        "home": "" if home is None else link(home),
    }
    settings |= more.pop("settings", {})
    return Page(
        title=title, command=command, target=target, runs=runs, settings=settings, **parts | more
    ).write(path)


def value_columns(runs: Sequence[History], first: str) -> list[str]:
    """Return the columns for the vertical axis: recorded by every run, and no cost."""
    shared = set.intersection(*(set(run.columns) for run in runs))
    names = [first, "grad_norm", "loss", *runs[0].columns]
    costs = {name for name, column in COLUMNS.items() if column.is_cost}
    return [name for name in dict.fromkeys(names) if name in shared - costs]


def _choose_points(count: int) -> Vector:
    """Return the places of as many of `count` points as can be seen."""
    return np.unique(np.linspace(0, count - 1, min(_POINTS, count)).round().astype(int))


def _numbers(values: Vector) -> list[float | None]:
    """Round values to five digits; None stands for a number that is not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def _dump(settings: object) -> str:
    return json.dumps(settings, indent=2, ensure_ascii=False, default=str)


def _embed_picture(path: Path) -> str:
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    return f"data:image/{kind};base64," + base64.b64encode(path.read_bytes()).decode("ascii")
