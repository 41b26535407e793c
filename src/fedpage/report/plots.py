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
    """What `search_panels` reads of a finished search; `fedpage.studies.tune.Tuning` has it."""

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
        """Each candidate's searched values and its cost, the winner first.

        Costs are in units of the winner's cost on the same seeds; inf: not reached, or more than
        the search allowed.
        """
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


_FAR = 5.0
"""Candidates that cost this many times what the winner costs are crosses."""
_HYPER_PARAMETERS = {"step": "effective step", "rho": "K eta_l / eta_g"}


def _format_tick(value: float, _: float | None = None) -> str:
    return f"{value:,.4g}"


def _sorted_values(found: Searched, name: str) -> list[float | str]:
    """Return the searched values of a hyper-parameter: numbers in order, then words."""
    values = {point[name] for point, _ in found.points}
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def search_panels(found: Searched, path: str | os.PathLike[str]) -> Path:
    """Draw the costs of a search, a panel for each searched hyper-parameter.

    A star marks the winner. The line joins the candidates that differ from it in this
    hyper-parameter alone; dots are all others. A cross at the top is a candidate that did not reach
    the target, or was ended because it cost too much. Values stand in order, evenly spaced.

    Args:
        found: The finished search.
        path: The file; its suffix chooses the format.

    Returns:
        The path.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    winner = found.points[0][0]
    costs = [cost for _, cost in found.points if 0 < cost < _FAR]
    top = 1.3 * max(costs, default=1.0)
    wide = min(3, len(winner))
    rows = -(-len(winner) // wide)
    figure = Figure(figsize=(max(5.2, 3.8 * wide), 0.7 + 2.5 * rows), layout="constrained")
    panels = list(figure.subplots(rows, wide, squeeze=False, sharey=True).flat)
    for ax, name in zip(panels, winner, strict=False):
        _draw_costs(ax, found, name, top)
        ax.set_yscale("log")
        ax.set_ylim(0.9 * min(costs, default=1.0), 1.15 * top)
        ax.yaxis.set_major_formatter(FuncFormatter(_format_tick))
        ax.yaxis.set_minor_formatter(FuncFormatter(_format_half))
    for ax in panels[len(winner) :]:
        ax.set_visible(False)
    figure.supylabel("cost over the winner's, same seeds", fontsize=10)
    marks = "star: winner; line: one value changed; cross: not reached, or far more"
    figure.suptitle(f"{found.name}, {found.goal}\n{marks}", fontsize=10)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _format_half(value: float, _: float | None = None) -> str:
    """Label the minor ticks 2, 3 and 5 of a decade."""
    return f"{value:g}" if f"{value:e}"[0] in "235" else ""


def _draw_costs(ax: Axes, found: Searched, name: str, top: float) -> None:
    """Draw the costs over one hyper-parameter."""
    winner, least = found.points[0]
    values = _sorted_values(found, name)
    others = [other for other in winner if other != name]
    line: dict[int, float] = {}
    for point, cost in found.points:
        place = values.index(point[name])
        is_shown = cost < _FAR
        height = cost if is_shown else top
        is_near = all(point[other] == winner[other] for other in others)
        mark = "o" if is_shown else "x"
        color = "#0072B2" if is_near else "#BBBBBB"
        ax.plot(place, height, mark, color=color, markersize=5, zorder=3 if is_near else 1)
        if is_near:
            line[place] = min(height, line.get(place, np.inf))
    places = sorted(line)
    ax.plot(places, [line[place] for place in places], color="#0072B2", linewidth=1.2, zorder=2)
    best = values.index(winner[name])
    ax.plot(
        best, least if np.isfinite(least) else top, "*", color="#D55E00", markersize=13, zorder=4
    )
    every = -(-len(values) // 12)
    shown = range(0, len(values), every)
    ax.set_xticks(list(shown), [_format_setting(name, values[i]) for i in shown], rotation=45)
    ax.tick_params(axis="x", labelsize=8)
    ax.set_xlabel(_HYPER_PARAMETERS.get(name, name))
    ax.grid(axis="y", color="#EEEEEE")


def _format_setting(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if np.isinf(value):
        return "all" if name in ("S", "b", "b0", "b1", "b2", "b3") else "by rule"
    return f"{value:.3g}"
