"""Draw curves of runs with matplotlib: any recorded column against any cost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedpage.core.columns import Cost, describe_column
from fedpage.core.errors import InputError
from fedpage.core.types import Vector
from fedpage.report.style import Style, assign_styles
from fedpage.runs.history import History, by_method

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (6.4, 4.2)
"""Width and height of a figure in inches."""
_LARGEST = 1e300
"""Where the upper quantile of diverged runs is drawn; it is outside of every axis."""


@dataclass(frozen=True)
class PanelRuns:
    """One plot: its title, and its runs by label."""

    title: str
    curves: Mapping[str, Sequence[History]]


@dataclass(frozen=True)
class FigureRuns:
    """Panels that belong together.

    Attributes:
        name: A short name for files and links.
        title: The heading.
        note: A line below the heading, such as the number of the paper's figure.
        columns: Panels in a row.
        panels: The plots.
    """

    name: str
    title: str
    note: str
    columns: int
    panels: tuple[PanelRuns, ...]

    @property
    def labels(self) -> list[str]:
        """Labels of all curves, in order of first appearance."""
        return list(dict.fromkeys(label for panel in self.panels for label in panel.curves))


class Searched(Protocol):
    """What `heat_map` reads of a finished search; `fedpage.studies.tune.Tuning` has it."""

    @property
    def name(self) -> str:
        """The tuned method's name."""
        ...

    @property
    def goal(self) -> str:
        """What was minimised, such as "rounds to gradient norm 0.01"."""
        ...

    @property
    def points(self) -> Sequence[tuple[Mapping[str, float | str], float]]:
        """Each candidate's searched values and its cost (inf: not reached), best first."""
        ...


def find_direction(runs: Iterable[History], column: str) -> bool | None:
    """Look up whether higher values of a recorded column are better.

    Args:
        runs: Runs that recorded it; a problem's own metrics have their direction in the run.
        column: The column.

    Returns:
        True or False, or None if it has not been declared.
    """
    for run in runs:
        try:
            return run.higher_is_better(column)
        except InputError:
            continue
    return None


def quantile_band(
    runs: Sequence[History], x: str, y: str, quantiles: tuple[float, float]
) -> tuple[Vector, Vector]:
    """Compute the median and two quantiles of a column over runs, at equal costs.

    A run's value at a cost is its newest record by then. The band ends where fewer than half of
    the runs have come so far. A run that ended early keeps its last value; a diverged run counts
    as worse than any number from its last finite record on.

    Args:
        runs: Runs of one method that differ by their seed.
        x: The cost.
        y: The recorded column.
        quantiles: The lower and the upper quantile, from 0 to 1.

    Returns:
        The grid of costs (m,), and low, median and high (3, m) at them.
    """
    worst = -np.inf if find_direction(runs, y) else np.inf
    costs = [run.cost(x) for run in runs]
    values = [run[y] for run in runs]
    if x == "round":
        grid = np.unique(np.concatenate(costs))
    else:
        low, high = max(c[0] for c in costs), float(np.median([c[-1] for c in costs]))
        grid = np.unique(np.concatenate([[low], np.linspace(low, high, 300)]))
    table = np.empty((len(runs), len(grid)))
    for row, run, cost, value in zip(table, runs, costs, values, strict=True):
        row[:] = value[np.searchsorted(cost, grid, side="right").clip(min=1) - 1]
        row[~np.isfinite(row)] = worst
        if run.diverged:  # nothing is known of it after its last finite record
            row[grid > cost[np.isfinite(value)].max(initial=-1.0)] = worst
    low, high = np.quantile(table, quantiles, axis=0, method="nearest")
    return grid, np.array([low, np.median(table, axis=0), high])


def use_log_axis(direction: bool | None, drawn: Iterable[Vector]) -> bool:
    """Decide whether a column's axis is logarithmic.

    It is where lower values are known to be better, none is negative, and the drawn values fall
    by a factor of ten or more, or to exactly 0.

    Args:
        direction: From `find_direction`.
        drawn: Arrays of the values to draw.

    Returns:
        True for a logarithmic axis.
    """
    values = np.concatenate([*drawn, []])
    if direction is not False or not (values > 0).any() or (values < 0).any():
        return False
    return bool(values.max() >= 10 * values.min())


def curves(
    histories: Iterable[History],
    *,
    x: str = "round",
    y: str = "grad_norm",
    ax: Axes | None = None,
    quantiles: tuple[float, float] = (0.25, 0.75),
    title: str | None = None,
) -> Axes:
    """Draw a curve for each method: the median over seeds, with a band of quantiles.

    Args:
        histories: Runs of any methods and seeds; a single run is allowed.
        x: The cost on the horizontal axis: a key of `fedpage.core.columns.COLUMNS`, or a sum of
            costs such as "up+0.1*down".
        y: Any recorded column.
        ax: Where to draw; None makes a new figure, which is `ax.figure`.
        quantiles: The band's lower and upper quantile.
        title: The title above the axes.

    Returns:
        The matplotlib Axes.

    Raises:
        InputError: No run has a record, or the quantiles are not two numbers from 0 to 1.
    """
    runs = _require_runs(histories)
    if len(tuple(quantiles)) != 2 or not 0 <= quantiles[0] <= quantiles[1] <= 1:
        raise InputError(
            f"quantiles must be two numbers from 0 to 1, the smaller first, not {quantiles!r}"
        )
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=_SIZE, layout="constrained").subplots()
    groups = by_method(runs)
    _draw_panel(ax, groups, assign_styles(groups), x, y, quantiles)
    if title:
        ax.set_title(title)
    ax.legend(frameon=False)
    return ax


def _require_runs(histories: Iterable[History]) -> list[History]:
    """Return the runs that have records as a list; refuse if there is none."""
    runs = [histories] if isinstance(histories, History) else list(histories)
    if not any(len(run) for run in runs):
        raise InputError("nothing to plot: no histories given")
    return [run for run in runs if len(run)]


def _draw_panel(
    ax: Axes,
    groups: Mapping[str, Sequence[History]],
    styles: Mapping[str, Style],
    x: str,
    y: str,
    quantiles: tuple[float, float],
) -> None:
    """Draw labelled curves, the axes' labels and the grid."""
    medians = []
    for number, (label, group) in enumerate(groups.items()):
        if not group:
            continue
        style = styles[label]
        grid, (low, middle, high) = quantile_band(group, x, y, quantiles)
        drawn = np.isfinite(middle)
        every = max(1, int(drawn.sum()) // 9)
        ax.plot(
            grid[drawn], middle[drawn], color=style.colour, marker=style.marker, markersize=5,
            markevery=(number * every // 4, every), linewidth=1.6,
            linestyle=(0, style.dash) if style.dash else "-", label=label + diverged_note(group),
        )  # fmt: skip
        if len(group) > 1:
            low, high = (np.clip(edge[drawn], -_LARGEST, _LARGEST) for edge in (low, high))
            ax.fill_between(grid[drawn], low, high, color=style.colour, alpha=0.16, linewidth=0)
        medians.append(middle[drawn])
    label = describe_column(y).label
    runs = [run for group in groups.values() for run in group]
    if use_log_axis(find_direction(runs, y), medians):
        ax.set_yscale("log")
        if any((values == 0).any() for values in medians):
            label += " (0: through the lower edge)"
    ax.set_ylabel(label)
    ax.set_xlabel(describe_column(x).label)
    unit = describe_column(x).unit
    if unit in ("B", "bit"):
        from matplotlib.ticker import EngFormatter, MaxNLocator

        ax.xaxis.set_major_formatter(EngFormatter(unit=unit))
        ax.xaxis.set_major_locator(MaxNLocator(5 if unit == "B" else 4))  # the labels are long
    ax.grid(True, which="major", alpha=0.25, linewidth=0.6)


def diverged_note(group: Sequence[History]) -> str:
    """Return " (1 of 3 diverged)", or "" if no run of a group diverged."""
    count = sum(run.diverged for run in group)
    if count == 0:
        return ""
    return f" ({count} of {len(group)} diverged)" if len(group) > 1 else " (diverged)"


def save(
    histories: Iterable[History],
    path: str | os.PathLike[str],
    *,
    x: str = "round",
    y: str = "grad_norm",
    quantiles: tuple[float, float] = (0.25, 0.75),
    title: str | None = None,
    dpi: int = 160,
) -> Path:
    """Draw `curves` into a file.

    Args:
        histories: See `curves`, as for x, y, quantiles and title.
        path: The file; its suffix chooses PNG, PDF, SVG or PGF.
        x: The cost.
        y: The recorded column.
        quantiles: The band.
        title: The title.
        dpi: Dots per inch of a PNG.

    Returns:
        The path.

    Raises:
        InputError: As in `curves`, or matplotlib does not know the suffix.
    """
    from matplotlib.figure import Figure

    path, figure = Path(path), Figure(figsize=_SIZE, layout="constrained")
    curves(histories, x=x, y=y, ax=figure.subplots(), quantiles=quantiles, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(path, dpi=dpi)
    except ValueError as error:
        raise InputError(f"{path}: {str(error).splitlines()[0]}") from None
    return path


def save_pair(
    histories: Iterable[History],
    path: str | os.PathLike[str],
    title: str,
    *,
    y: str = "grad_norm",
    cost: str | Cost = "bytes",
    dpi: int = 160,
) -> Path:
    """Draw a column against rounds and against another cost, side by side, into a file.

    Args:
        histories: Runs of any methods and seeds.
        path: The file.
        title: The title above both panels.
        y: The recorded column.
        cost: The second panel's cost: a column, or a sum such as "up+0.1*down".
        dpi: Dots per inch of a PNG.

    Returns:
        The path.

    Raises:
        InputError: No run has a record, or there is no such cost.
    """
    runs, path = _require_runs(histories), Path(path)
    groups = by_method(runs)
    second = Cost.parse(cost).name
    axes = ("round", "bytes" if second == "round" else second)
    panels = tuple(PanelRuns("", groups) for _ in axes)
    figure = draw_figure(FigureRuns("pair", title, "", 2, panels), axes, y)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    return path


def draw_figure(
    figure: FigureRuns, x: str | Sequence[str] = "round", y: str = "grad_norm"
) -> Figure:
    """Draw all panels of a figure, with one legend.

    Args:
        figure: The panels.
        x: The cost, or one cost for each panel.
        y: The recorded column.

    Returns:
        The matplotlib Figure.
    """
    from matplotlib.figure import Figure

    rows = -(-len(figure.panels) // figure.columns)
    size = (max(4.4 * figure.columns, 6.4), 3.2 * rows + 0.9)
    page = Figure(figsize=size, layout="constrained")
    grid = page.subplots(rows, figure.columns, squeeze=False).ravel()
    styles = assign_styles(figure.labels)
    entries: dict[str, Artist] = {}
    for number, (ax, panel) in enumerate(zip(grid, figure.panels, strict=False)):
        cost = x if isinstance(x, str) else x[number]
        _draw_panel(ax, panel.curves, styles, cost, y, (0.25, 0.75))
        if number and ax.get_ylabel() == grid[0].get_ylabel():
            ax.set_ylabel("")
        ax.set_title(panel.title, fontsize=10)
        for line, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, line)
    for ax in grid[len(figure.panels) :]:
        ax.set_visible(False)
    page.suptitle(figure.title, fontsize=11, wrap=True)
    if entries:
        columns = min(4, len(entries), max(1, int(14 * size[0]) // max(map(len, entries))))
        page.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=columns,
            frameon=False,
        )  # fmt: skip
    return page


_HYPER_PARAMETERS = {"step": "effective step", "rho": "K eta_l / eta_g"}


def _format_tick(value: float, _: float | None = None) -> str:
    return f"{value:,.4g}"


def _sorted_values(found: Searched, name: str) -> list[float | str]:
    """Return the searched values of a hyper-parameter: numbers in order, then words."""
    values = {point[name] for point, _ in found.points}
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def heat_map(found: Searched, path: str | os.PathLike[str]) -> Path:
    """Draw the costs of a search over the first two searched hyper-parameters.

    A star marks the winner and a cross each combination that did not reach the target. Further
    searched hyper-parameters are at their best. Values stand in order, evenly spaced.

    Args:
        found: The finished search.
        path: The file; its suffix chooses the format.

    Returns:
        The path.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    best = found.points[0][0]
    names = list(best)[:2]
    columns = _sorted_values(found, names[0])
    rows: list[float | str] = _sorted_values(found, names[1]) if len(names) > 1 else [0.0]

    def cell(values: Mapping[str, float | str]) -> tuple[int, int]:
        row = rows.index(values[names[1]]) if len(names) > 1 else 0
        return row, columns.index(values[names[0]])

    table = np.full((len(rows), len(columns)), np.inf)
    for values, cost in found.points:
        table[cell(values)] = min(table[cell(values)], cost)
    size = (2.0 + 0.62 * len(columns), 1.7 + 0.5 * len(rows))
    figure = Figure(figsize=(max(size[0], 5.2), size[1]), layout="constrained")
    ax = figure.subplots()
    reached = np.isfinite(table)
    if reached.any():
        low, high = float(table[reached].min()), float(table[reached].max())
        norm = LogNorm(low, high) if 0 < low < high else None
        shown = np.where(reached, table, np.nan)
        image = ax.imshow(shown, cmap="viridis_r", norm=norm, aspect="auto")
        bar = figure.colorbar(image, ax=ax, label=found.goal, format=FuncFormatter(_format_tick))
        bar.ax.yaxis.set_minor_formatter(FuncFormatter(_format_tick))
    for row, column in zip(*np.nonzero(~reached), strict=True):
        ax.plot(column, row, marker="x", color="#888888", markersize=6)
    row, column = cell(best)
    ax.plot(column, row, marker="*", color="#D55E00", markersize=13)
    texts = [[v if isinstance(v, str) else f"{v:.3g}" for v in axis] for axis in (columns, rows)]
    ax.set_xticks(range(len(columns)), texts[0], rotation=45)
    ax.set_yticks(range(len(rows)), texts[1] if len(names) > 1 else [""])
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    labels = [_HYPER_PARAMETERS.get(name, name) for name in names]
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1] if len(names) > 1 else "")
    ax.set_title(f"{found.name}: star, the winner; cross, target not reached", fontsize=10)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path
