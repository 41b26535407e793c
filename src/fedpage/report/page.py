"""Write a report as one HTML page that opens offline: tables, claims, curves, settings.

The page holds its data; its script draws them as SVG at the size of the reader's window, for the
axes that the reader chooses. Readers without a script see one SVG that matplotlib has drawn.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import numpy as np

from fedpage.core.columns import AXES, COLUMNS, Cost, describe_column, list_axes
from fedpage.core.types import Vector
from fedpage.report import summary
from fedpage.report.bands import diverged_note, find_direction, quantile_band, use_log_axis
from fedpage.report.plots import FigureRuns, PanelRuns, draw_figure
from fedpage.report.style import Style, assign_styles
from fedpage.report.tables import Table
from fedpage.runs.history import History, by_method

_POINTS = 120
"""Points of a curve in the page; more would not be seen."""
_QUARTILES = (0.25, 0.75)

Json = Mapping[str, "Json"] | Sequence["Json"] | str | float | int | bool | None
"""What the page's data consist of."""


class Claim(Protocol):
    """A sentence to judge."""

    @property
    def text(self) -> str:
        """The sentence."""
        ...

    @property
    def where(self) -> str:
        """Where the paper says it."""
        ...


class Finding(Protocol):
    """One comparison that supports or contradicts a claim."""

    @property
    def panel(self) -> str:
        """The figure and the panel."""
        ...

    @property
    def comparison(self) -> str:
        """What was compared."""
        ...

    @property
    def verdict(self) -> str:
        """Whether the comparison supports the claim."""
        ...

    @property
    def measured(self) -> str:
        """The numbers."""
        ...

    @property
    def needed(self) -> str:
        """The numbers that the verdict needs, with the tolerance."""
        ...


class JudgedClaim(Protocol):
    """A claim with its verdict; `fedpage.studies.claims.Verdict` is one."""

    @property
    def claim(self) -> Claim:
        """The claim."""
        ...

    @property
    def verdict(self) -> str:
        """The verdict over all comparisons."""
        ...

    @property
    def counts(self) -> str:
        """How many comparisons hold, fail and stay open."""
        ...

    @property
    def note(self) -> str:
        """What else the reader must know."""
        ...

    @property
    def findings(self) -> Sequence[Finding]:
        """The comparisons."""
        ...


def write(
    path: Path,
    *,
    title: str,
    figures: Sequence[FigureRuns],
    settings: Mapping[str, object],
    columns: Sequence[str] = ("grad_norm", "loss"),
    axes: Sequence[str] = AXES,
    claims: Sequence[JudgedClaim] = (),
    tables: Sequence[Table] = (),
    note: str = "",
    picture: Path | None = None,
    command: str = "",
) -> Path:
    """Write a page of figures.

    Args:
        path: The HTML file.
        title: The page's title.
        figures: Runs to draw.
        settings: Settings and provenance, shown as JSON.
        columns: Recorded columns for the vertical axis; the first is shown at first.
        axes: Costs for the horizontal axis; the first is shown at first.
        claims: Judged claims.
        tables: Tables to show before the figures.
        note: A line below the title.
        picture: A PNG to show before the figures.
        command: A command line to show.

    Returns:
        The path.
    """
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("fedpage", "report"), autoescape=True, trim_blocks=True
    )
    folder = files("fedpage.report")
    data = json.dumps(_page_data(figures, columns, axes), separators=(",", ":"), allow_nan=False)
    page = environment.get_template("page.html").render(
        title=title,
        note=note,
        tables=tables,
        picture="" if picture is None else _embed_png(picture),
        command=command,
        claims=claims,
        axes=axes,
        values=columns,
        columns={name: describe_column(name) for name in (*axes, *columns)},
        figures=[_figure_view(figure, columns[0]) for figure in figures],
        settings=json.dumps(settings, indent=2, ensure_ascii=False, default=str),
        data=Markup(data.replace("<", "\\u003c")),
        style=Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),
        script=Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def write_runs(
    runs: Sequence[History],
    path: Path,
    *,
    title: str,
    target: float,
    column: str = "grad_norm",
    cost: str | Cost = "bytes",
    picture: Path | None = None,
    command: str = "",
    bold: Collection[str] = (),
    sentences: Sequence[str] = (),
) -> Path:
    """Write a page about runs of any methods: the summary, one plot, settings and provenance.

    Args:
        runs: The runs.
        path: The HTML file.
        title: The page's title.
        target: The value of the column that counts as reached.
        column: The recorded column that the target is about.
        cost: The cost of the comparison: a column, or a sum such as "up+0.1*down". Other than
            "bytes" it is the horizontal axis that is shown at first.
        picture: A PNG to show before the plot.
        command: A command line to show.
        bold: The methods whose cost is bold.
        sentences: Sentences below the table, such as comparisons of pairs.

    Returns:
        The path.
    """
    groups = by_method(runs)
    about = runs[0].meta
    cost, axes = Cost.parse(cost), list_axes(run.columns for run in runs)
    results = summary.summarise(runs, target, column, cost)
    table = summary.table(results, column, cost, bold=bold)
    words = describe_column(column).label
    note = (
        f"Medians over seeds. The target is {words} {target:g} while the loss is at most that of "
        "the start."
    )
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
        figures=[FigureRuns("runs", "Curves", "", 1, (PanelRuns("", groups),))],
        settings=settings,
        columns=_value_columns(runs, column),
        axes=axes if cost.name == "bytes" else list(dict.fromkeys((cost.name, *axes))),
        tables=[replace(table, notes=(note, *table.notes, *sentences))],
        note=f"Data: {data_note}." if data_note else "",
        picture=picture,
        command=command,
    )


def _value_columns(runs: Sequence[History], first: str) -> list[str]:
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


def _figure_view(figure: FigureRuns, y: str) -> _FigureView:
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
        Markup(_draw_svg(figure, y)),
    )  # fmt: skip


def _draw_svg(figure: FigureRuns, y: str) -> str:
    """Draw the figure against rounds as an SVG element whose text is text."""
    from matplotlib import rc_context

    stream = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        draw_figure(figure, "round", y).savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _embed_png(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _page_data(figures: Sequence[FigureRuns], columns: Sequence[str], axes: Sequence[str]) -> Json:
    """Collect what the page's script draws."""
    return {
        "columns": {name: asdict(describe_column(name)) for name in (*axes, *columns)},
        "figures": [
            {
                "name": figure.name,
                "panels": [
                    _panel_data(panel, assign_styles(figure.labels), columns, axes)
                    for panel in figure.panels
                ],
            }
            for figure in figures
        ],
    }


def _panel_data(
    panel: PanelRuns, styles: Mapping[str, Style], columns: Sequence[str], axes: Sequence[str]
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
            }
        )
    every = [run for runs in panel.curves.values() for run in runs]
    log = {y: use_log_axis(find_direction(every, y), medians[y]) for y in columns}
    return {"title": panel.title, "log": log, "curves": curves}


def _numbers(values: Vector) -> list[float | None]:
    """Round values to five digits; None stands for a number that is not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
