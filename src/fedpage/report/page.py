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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from fedpage.core.columns import AXES, COLUMNS, Cost, describe_column, list_axes
from fedpage.core.display import format_number
from fedpage.core.target import Target, TargetLike
from fedpage.core.types import Vector
from fedpage.report import summary
from fedpage.report.panel import diverged_note, find_direction, quantile_band, use_log_axis
from fedpage.report.plots import FigureRuns, PanelRuns, draw_figure
from fedpage.report.style import Style, assign_styles
from fedpage.report.summary import format_bytes
from fedpage.report.tables import Table
from fedpage.report.titles import by_method
from fedpage.runs.history import History
from fedpage.runs.history_file import EventRow

_POINTS = 120
"""Points of a curve in the page; more would not be seen."""
_SEED_CURVES = 100
"""The most runs whose own curves the page holds; 100 of them take about 1 MB."""
_QUARTILES = (0.25, 0.75)

Json = Mapping[str, "Json"] | Sequence["Json"] | str | float | int | bool | None
"""The page's data."""
_METRICS = 4
"""The most metrics in the list of runs; a run's own page draws all of them."""


def write(
    path: Path,
    *,
    title: str,
    figures: Sequence[FigureRuns],
    settings: Mapping[str, object],
    columns: Sequence[str] = ("grad_norm", "loss"),
    axes: Sequence[str] = AXES,
    claims: Sequence[object] = (),
    tables: Sequence[Table] = (),
    note: str = "",
    picture: Path | None = None,
    command: str = "",
    command_note: str = "To repeat it:",
    target: Target | None = None,
    runs: Sequence[History] = (),
    run_links: Sequence[str] = (),
    home: str = "",
) -> Path:
    """Write a page of figures.

    Args:
        path: The HTML file.
        title: The page's title.
        figures: Runs to draw. A figure without a title has the heading "Curves", and the page's
            title in files.
        settings: Settings and provenance, shown as JSON.
        columns: Recorded columns for the vertical axis; the first is shown at first.
        axes: Costs for the horizontal axis; the first is shown at first.
        claims: Claims with their verdicts, such as `fedpage.studies.claims.Verdict`.
        tables: Tables to show before the figures.
        note: A line below the title.
        picture: A PNG or SVG file to show before the figures.
        command: A command line to show.
        command_note: The line above the command.
        target: A target to draw as a line.
        runs: Runs to list one by one, with their ends, events and settings.
        run_links: A page for each of `runs`, relative to this one. Without them this page has the
            details of each run.
        home: A page that this one belongs to.

    Returns:
        The path.
    """
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("fedpage", "report"), autoescape=True, trim_blocks=True
    )
    folder = files("fedpage.report")
    named = [replace(figure, title=figure.title or title) for figure in figures]
    content = _page_data(named, columns, axes, target)
    data = json.dumps(content, separators=(",", ":"), allow_nan=False)
    scripts = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("chart.js", "page.js")
    )
    html: str = environment.get_template("page.html").render(
        title=title,
        note=note,
        tables=tables,
        picture="" if picture is None else _embed_picture(picture),
        command=command,
        command_note=command_note,
        home=home,
        runs=_run_entries(runs, run_links),
        run_head=_run_headings(runs),
        has_seeds=_has_seeds(figures) and _count_runs(figures) <= _SEED_CURVES,
        claims=claims,
        axes=axes,
        values=columns,
        columns={name: describe_column(name) for name in (*axes, *columns)},
        figures=[
            replace(_figure_view(figure, columns[0], not home), title=given.title or "Curves")
            for figure, given in zip(named, figures, strict=True)
        ],
        settings=json.dumps(settings, indent=2, ensure_ascii=False, default=str),
        data=Markup(data.replace("<", "\\u003c")),
        style=Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),
        script=Markup("\n".join(scripts)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path


def write_runs(
    runs: Sequence[History],
    path: Path,
    *,
    title: str,
    target: TargetLike,
    cost: str | Cost = "bytes",
    picture: Path | None = None,
    command: str = "",
    command_note: str = "To repeat it:",
    folders: Sequence[Path] = (),
    home: Path | None = None,
    bold: Collection[str] = (),
    sentences: Sequence[str] = (),
) -> Path:
    """Write a page about runs of any methods: the summary, one plot, settings and provenance.

    Args:
        runs: The runs.
        path: The HTML file.
        title: The page's title.
        target: What is to be reached and held.
        cost: The cost of the comparison: a column, or a sum such as "up+0.1*down". Other than
            "bytes" it is the horizontal axis that is shown at first.
        picture: A PNG or SVG file to show before the plot.
        command: A command line to show.
        command_note: The line above the command.
        folders: The directories of the runs. A page about each run is written there, and linked.
        home: A page to link back to.
        bold: The methods whose cost is bold.
        sentences: Sentences below the table, such as comparisons of pairs.

    Returns:
        The path.
    """
    target = Target.parse(target)
    links = [os.path.relpath(folder / "report.html", path.parent) for folder in folders]
    for run, folder in zip(runs, folders, strict=bool(folders)):
        write_runs(
            [run], folder / "report.html", title=f"{run.label}, seed {run.meta.get('seed', '')}",
            target=target, cost=cost, home=path,
        )  # fmt: skip
    groups = by_method(runs)
    about = runs[0].meta
    cost, axes = Cost.parse(cost), list_axes(run.columns for run in runs)
    results = summary.summarise(runs, target, cost)
    table = summary.table(results, target.column, cost, bold=bold)
    medians = "Medians over seeds. " if len(runs) > len(groups) else ""
    note = f"{medians}{summary.explain_target(target)}"
    settings = {
        "problem": about.get("problem", {}),
        "rounds": about.get("rounds"),
        "seeds": sorted({int(run.meta.get("seed", 0)) for run in runs}),
        "versions": about.get("versions", {}),
        "methods": [group[0].meta.get("method") for group in groups.values()],
    }
    data_note = about.get("problem", {}).get("data_note", "")
    return write(
        path,
        title=title,
        figures=[FigureRuns("runs", "", "", 1, (PanelRuns("", groups),))],
        settings=settings,
        columns=value_columns(runs, target.column),
        axes=axes if cost.name == "bytes" else list(dict.fromkeys((cost.name, *axes))),
        tables=[replace(table, notes=(note, *table.notes), details=tuple(sentences))],
        note=f"Data: {data_note}." if data_note else "",
        picture=picture,
        command=command,
        command_note=command_note,
        target=target,
        runs=runs,
        run_links=[Path(link).as_posix() for link in links],
        home="" if home is None else Path(os.path.relpath(home, path.parent)).as_posix(),
    )


def value_columns(runs: Sequence[History], first: str) -> list[str]:
    """Return the columns for the vertical axis: recorded by every run, and no cost."""
    shared = set.intersection(*(set(run.columns) for run in runs))
    names = [first, "grad_norm", "loss", *runs[0].columns]
    costs = {name for name, column in COLUMNS.items() if column.is_cost}
    return [name for name in dict.fromkeys(names) if name in shared - costs]


@dataclass(frozen=True)
class _LegendEntry:
    label: str
    note: str
    style: Style

    @property
    def dash(self) -> str:
        return " ".join(f"{2 * length:g}" for length in self.style.dash)


@dataclass(frozen=True)
class _FigureView:
    """What the template reads of a figure."""

    name: str
    title: str
    note: str
    columns: int
    panels: tuple[PanelRuns, ...]
    legend: list[_LegendEntry]
    svg: str
    caption: str


def _figure_view(figure: FigureRuns, y: str, is_static: bool) -> _FigureView:
    from markupsafe import Markup

    styles = assign_styles(figure.labels)
    legend = [
        _LegendEntry(
            label,
            diverged_note([run for panel in figure.panels for run in panel.curves.get(label, ())]),
            styles[label],
        )
        for label in figure.labels
    ]
    return _FigureView(
        figure.name, figure.title, figure.note, figure.columns, figure.panels, legend,
        Markup(_draw_svg(figure, y)) if is_static else "",
        "Lines are medians over seeds and bands are quartiles." if _has_seeds([figure]) else "",
    )  # fmt: skip


def _draw_svg(figure: FigureRuns, y: str) -> str:
    """Draw the figure against rounds as an SVG element whose text is text."""
    from matplotlib import rc_context

    stream = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        draw_figure(figure, "round", y).savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _embed_picture(path: Path) -> str:
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    return f"data:image/{kind};base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _has_seeds(figures: Sequence[FigureRuns]) -> bool:
    """Return whether a curve stands for several runs."""
    return any(
        len(runs) > 1 for figure in figures for panel in figure.panels
        for runs in panel.curves.values()
    )  # fmt: skip


def _count_runs(figures: Sequence[FigureRuns]) -> int:
    return sum(len(runs) for f in figures for p in f.panels for runs in p.curves.values())


def _page_data(
    figures: Sequence[FigureRuns],
    columns: Sequence[str],
    axes: Sequence[str],
    target: Target | None,
) -> Json:
    """Collect what the page's script draws."""
    has_seeds = _count_runs(figures) <= _SEED_CURVES
    return {
        "target": None if target is None else {"column": target.column, "value": target.value},
        "columns": {name: asdict(describe_column(name)) for name in (*axes, *columns)},
        "figures": [
            {
                "name": figure.name,
                "title": figure.title,
                "columns": figure.columns,
                "legend": [
                    {"label": label, **asdict(style)}
                    for label, style in assign_styles(figure.labels).items()
                ],
                "panels": [
                    _panel_data(
                        panel,
                        assign_styles(figure.labels),
                        columns,
                        axes,
                        target,
                        has_seeds=has_seeds,
                    )
                    for panel in figure.panels
                ],
            }
            for figure in figures
        ],
    }


def _panel_data(
    panel: PanelRuns,
    styles: Mapping[str, Style],
    columns: Sequence[str],
    axes: Sequence[str],
    target: Target | None,
    *,
    has_seeds: bool,
) -> Json:
    curves: list[Json] = []
    medians: dict[str, list[Vector]] = {y: [] for y in columns}
    for label, runs in panel.curves.items():
        if not runs:
            continue
        costs: dict[str, Json] = {}
        values: dict[str, dict[str, Json]] = {y: {} for y in columns}
        for x in axes:
            for y in columns:
                grid, band = quantile_band(runs, x, y, _QUARTILES)
                count = min(_POINTS, len(grid))
                keep = np.unique(np.linspace(0, len(grid) - 1, count).round().astype(int))
                low, middle, high = band[:, keep]
                costs[x] = _numbers(grid[keep])
                edges = {"low": _numbers(low), "high": _numbers(high)} if len(runs) > 1 else {}
                values[y][x] = {"middle": _numbers(middle)} | edges
                medians[y].append(middle[np.isfinite(middle)])
        style = styles[label]
        curves.append(
            {
                "label": label,
                "colour": style.colour,
                "marker": style.marker,
                "dash": list(style.dash),
                "costs": costs,
                "values": values,
                "reached": {x: _cost_to(runs, target, x) for x in axes},
                "runs": [_run_data(run, columns, axes) for run in runs]
                if has_seeds and len(runs) > 1
                else [],
            }
        )
    every = [run for runs in panel.curves.values() for run in runs]
    log = {y: use_log_axis(find_direction(every, y), medians[y]) for y in columns}
    return {"title": panel.title, "log": log, "curves": curves}


def _run_data(run: History, columns: Sequence[str], axes: Sequence[str]) -> Json:
    """Return a run's own curves, at no more records than can be seen."""
    count = min(_POINTS, len(run.rows))
    keep = np.unique(np.linspace(0, len(run.rows) - 1, count).round().astype(int))
    return {
        "costs": {x: _numbers(run.cost(x)[keep]) for x in axes},
        "values": {y: _numbers(run.measured_by_all(y)[keep]) for y in columns},
    }


def _cost_to(runs: Sequence[History], target: Target | None, x: str) -> float | None:
    """Return the median cost to the target; None if there is none or half did not reach it."""
    if target is None or find_direction(runs, target.column) is None:
        return None
    return _numbers(np.median([run.cost_to(target, x) for run in runs], keepdims=True))[0]


def _numbers(values: Vector) -> list[float | None]:
    """Round values to five digits; None stands for a number that is not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


@dataclass(frozen=True)
class _RunEntry:
    """A run in the page's list.

    Attributes:
        label: The method's label among the page's methods.
        seed: The run's seed.
        cells: The last values, in the order of `_run_headings`.
        end: How the run ended.
        events: Events of clients, such as faults.
        settings: Provenance as JSON.
        link: The run's own page, relative to this page, or "" if the details are in this page.
    """

    label: str
    seed: str
    cells: tuple[str, ...]
    end: str
    events: Sequence[EventRow]
    settings: str
    link: str = ""


def _run_headings(runs: Sequence[History]) -> list[str]:
    """Return the headings of the last values: rounds, losses, metrics and total bytes."""
    return ["rounds", *(describe_column(name).label for name in _metrics(runs)), "total bytes"]


def _metrics(runs: Sequence[History]) -> list[str]:
    names = dict.fromkeys(name for run in runs for name in run.columns)
    return [name for name in names if name not in COLUMNS or not COLUMNS[name].is_cost][:_METRICS]


def _run_entries(runs: Sequence[History], links: Sequence[str] = ()) -> list[_RunEntry]:
    """Describe runs, in the order of the page's legend.

    Args:
        runs: The runs.
        links: A page for each of them. If empty, the details are in this page.
    """
    labels = {id(run): label for label, group in by_method(runs).items() for run in group}
    pages = list(links) or [""] * len(runs)
    names = _metrics(runs)
    return [
        _RunEntry(
            labels[id(run)],
            str(run.meta.get("seed", "")),
            (
                format_number(run.last("round")),
                *(format_number(run.last(name)) if name in run.columns else "" for name in names),
                format_bytes(run.last("bytes")) if "bytes_up" in run.columns else "",
            ),
            run.stop_text or "not ended",
            run.events,
            json.dumps(run.meta, indent=2, ensure_ascii=False, default=str),
            link,
        )
        for run, link in zip(runs, pages, strict=True)
    ]
