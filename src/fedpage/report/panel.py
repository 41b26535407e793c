"""Draw one panel: curves with bands over seeds, at equal costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from fedpage.core.columns import Cost, describe_column
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.report.style import Style
from fedpage.runs.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


Band: TypeAlias = Literal["quantiles", "mean-ci"]
BANDS: tuple[Band, ...] = ("quantiles", "mean-ci")
LEVEL = 0.95
"""The confidence of the interval of a mean."""


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
    grid, table = _align(runs, x, y)
    low, high = np.quantile(table, quantiles, axis=0, method="nearest")
    return grid, np.array([low, np.median(table, axis=0), high])


def mean_band(
    runs: Sequence[History], x: str, y: str, *, is_log: bool, level: float = LEVEL
) -> tuple[Vector, Vector]:
    """Compute the mean of a column over runs and its confidence interval, at equal costs.

    The interval is Student's t, and runs are aligned as in `quantile_band`. On a logarithmic axis
    mean and interval are those of the logarithms, so that the middle is the geometric mean and no
    interval reaches below 0. Where a run has diverged there is no mean.

    Args:
        runs: Runs of one method that differ by their seed.
        x: The cost.
        y: The recorded column.
        is_log: Whether the column is drawn on a logarithmic axis.
        level: The confidence.

    Returns:
        The grid of costs (m,), and low, mean and high (3, m) at them; infinite where a run has
        diverged. A single run has no interval: low and high are its values.
    """
    from scipy.stats import t

    grid, table = _align(runs, x, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(table) if is_log else table
        middle = values.mean(axis=0)
        reach = np.zeros_like(middle)
        if len(runs) > 1:
            spread = values.std(axis=0, ddof=1) / np.sqrt(len(runs))
            reach = t.ppf((1 + level) / 2, len(runs) - 1) * spread
        reach[~np.isfinite(reach)] = 0.0  # a value is infinite, or 0 on a logarithmic axis
        band = np.array([middle - reach, middle, middle + reach])
        return grid, np.exp(band) if is_log else band


def _align(runs: Sequence[History], x: str, y: str) -> tuple[Vector, Vector]:
    """Return a grid of costs (m,) and each run's values at them (runs, m).

    A value is NaN, which makes a gap, where the newest record is of some of the clients only.
    """
    worst = -np.inf if find_direction(runs, y) else np.inf
    costs = [run.cost(x) for run in runs]
    values = [run[y] for run in runs]
    gaps = [run.measured_by_all(y) for run in runs]
    if x in ("round", "rounds"):
        grid = np.unique(np.concatenate(costs))
    else:
        low, high = max(c[0] for c in costs), float(np.median([c[-1] for c in costs]))
        grid = np.unique(np.concatenate([[low], np.linspace(low, high, 300)]))
    table = np.empty((len(runs), len(grid)))
    for row, run, cost, value, whole in zip(table, runs, costs, values, gaps, strict=True):
        newest = np.searchsorted(cost, grid, side="right").clip(min=1) - 1
        row[:] = value[newest]
        row[~np.isfinite(row)] = worst
        row[np.isnan(whole[newest]) & ~np.isnan(value[newest])] = np.nan
        if run.diverged:  # nothing is known of it after its last finite record
            row[grid > cost[np.isfinite(value)].max(initial=-1.0)] = worst
    return grid, table


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
    values = values[~np.isnan(values)]
    if direction is not False or not (values > 0).any() or (values < 0).any():
        return False
    return bool(values.max() >= 10 * values.min())


def describe_band(
    groups: Mapping[str, Sequence[History]],
    band: Band,
    quantiles: tuple[float, float],
    *,
    is_log: bool,
) -> str:
    """Say in words what the line and the band of each curve are.

    Args:
        groups: The runs of each curve.
        band: "quantiles" or "mean-ci".
        quantiles: The lower and the upper quantile.
        is_log: Whether the column is drawn on a logarithmic axis.

    Returns:
        A text for the legend, such as "median and quartiles, 5 seeds"; "" if no curve has more
        than one run.
    """
    counts = sorted({len(group) for group in groups.values() if group})
    if not counts or counts[-1] < 2:
        return ""
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    if band == "mean-ci":
        if is_log:
            return f"geometric mean, {100 * LEVEL:g} % t-interval of logarithms, {seeds}"
        return f"mean, {100 * LEVEL:g} % t-interval, {seeds}"
    low, high = quantiles
    if (low, high) == (0.25, 0.75):
        return f"median and quartiles, {seeds}"
    return f"median, {100 * low:g} % to {100 * high:g} % quantiles, {seeds}"


def diverged_note(group: Sequence[History]) -> str:
    """Return notes such as " (1 of 3 diverged)" on the runs of a group; "" if there are none.

    Another note says that records of some of the clients are left out, as gaps.
    """
    count = sum(run.diverged for run in group)
    notes = [f"{count} of {len(group)} diverged" if len(group) > 1 else "diverged"] if count else []
    partial = sum(int((~run.complete()).sum()) for run in group)
    if partial:
        notes.append(f"gaps: {partial} record{'s' * (partial > 1)} of some clients")
    return f" ({'; '.join(notes)})" if notes else ""


_LARGEST = 1e100
"""Where the upper edge of diverged runs is drawn; it is outside of every axis."""
_LARGER = {"*": 1.6, "P": 1.2, "X": 1.2, "d": 1.2}
"""Markers with little area are drawn larger."""


@dataclass(frozen=True)
class Summary:
    """How curves summarise runs that differ by their seed.

    Attributes:
        band: "quantiles": the median and two quantiles. "mean-ci": the mean and its confidence
            interval.
        quantiles: The lower and the upper quantile, from 0 to 1.
    """

    band: Band = "quantiles"
    quantiles: tuple[float, float] = (0.25, 0.75)

    def __post_init__(self) -> None:
        if self.band not in BANDS:
            raise InputError(
                f"band must be {' or '.join(map(repr, BANDS))}, not {short_repr(self.band)}"
            )
        pair = tuple(self.quantiles)
        if len(pair) != 2 or not 0 <= pair[0] <= pair[1] <= 1:
            raise InputError(
                "quantiles must be two numbers from 0 to 1, the smaller first, not "
                f"{short_repr(pair)}"
            )

    def compute(
        self, runs: Sequence[History], x: str, y: str, *, is_log: bool
    ) -> tuple[Vector, Vector]:
        """Return the costs (m,), and low, middle and high (3, m) at them."""
        if self.band == "mean-ci":
            return mean_band(runs, x, y, is_log=is_log)
        return quantile_band(runs, x, y, self.quantiles)


@dataclass(frozen=True)
class PanelSize:
    """Sizes of a panel's parts, in points, and how many ticks its horizontal axis has.

    Attributes:
        font: The size of all text.
        line: The width of lines.
        marker: The size of markers.
        ticks: The most ticks of the horizontal axis.
    """

    font: float = 10.0
    line: float = 1.6
    marker: float = 5.0
    ticks: int = 7


def draw_panel(
    ax: Axes,
    groups: Mapping[str, Sequence[History]],
    styles: Mapping[str, Style],
    x: str,
    y: str,
    summary: Summary,
    size: PanelSize,
) -> bool:
    """Draw labelled curves, the axes' labels and the grid.

    Args:
        ax: Where to draw.
        groups: The runs of each curve by its label.
        styles: A style for each label.
        x: The cost.
        y: The recorded column.
        summary: What the line and the band are.
        size: Sizes of text and lines.

    Returns:
        Whether the vertical axis is logarithmic.

    Raises:
        InputError: x is not a cost, or a run has not recorded x or y.
    """
    Cost.parse(x)
    groups = {label: group for label, group in groups.items() if group}
    runs = [run for group in groups.values() for run in group]
    stable = [group for group in groups.values() if not any(run.diverged for run in group)]
    medians = [quantile_band(group, x, y, (0.5, 0.5))[1][1] for group in stable or groups.values()]
    medians = [values[np.isfinite(values)] for values in medians]
    is_log = use_log_axis(find_direction(runs, y), medians)
    edges: list[Vector] = []
    shown: list[Vector] = []
    for number, (label, group) in enumerate(groups.items()):
        style = styles[label]
        grid, band = summary.compute(group, x, y, is_log=is_log)
        drawn = np.isfinite(band[1])
        low, middle, high = np.clip(band[:, drawn], -_LARGEST, _LARGEST)
        every = max(1, len(middle) // 9)
        ax.plot(
            grid[drawn], middle, color=style.colour, marker=style.marker,
            markersize=size.marker * _LARGER.get(style.marker, 1.0),
            markevery=(number * every // 4 % every, every), linewidth=size.line,
            markeredgewidth=0.0, linestyle=(0, style.dash) if style.dash else "-",
            label=label + diverged_note(group),
        )  # fmt: skip
        if len(group) > 1:
            ax.fill_between(grid[drawn], low, high, color=style.colour, alpha=0.16, linewidth=0)
        edges += [low, high, middle]
        # where others did not diverge, only the beginning of a diverged curve need be seen
        shown.append(middle if group in stable or not stable else middle[:1])
    if is_log:
        ax.set_yscale("log")
    room = 0.05 if len(stable) in (0, len(groups)) else 0.2
    _limit_values(ax, edges, shown, is_log=is_log, room=room)
    label = describe_column(y).label
    if is_log and any((values == 0).any() for values in medians):
        label += " (0: through the lower edge)"
    ax.set_ylabel(label, fontsize=size.font)
    ax.tick_params(labelsize=size.font, which="both")
    _label_costs(ax, x, max((run.cost(x)[-1] for run in runs), default=0.0), size)
    ax.grid(True, which="major", alpha=0.25, linewidth=0.6)
    return is_log


def draw_sample(style: Style, size: PanelSize) -> Line2D:
    """Return a line for the legend."""
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], color=style.colour, marker=style.marker or "none", linewidth=size.line,
        markersize=size.marker * _LARGER.get(style.marker, 1.0), markeredgewidth=0.0,
        linestyle=(0, style.dash) if style.dash else "-",
    )  # fmt: skip


def _limit_values(
    ax: Axes, edges: Sequence[Vector], middles: Sequence[Vector], *, is_log: bool, room: float
) -> None:
    """Set the vertical range: all of `middles`, and edges unless they would flatten the curves."""
    middle, edge = (np.concatenate([*values, []]) for values in (middles, edges))
    if is_log:
        middle, edge = middle[middle > 0], edge[edge > 0]
    if not len(middle):
        return
    if is_log:
        middle, edge = np.log10(middle), np.log10(edge)
    low, high = middle.min(), middle.max()
    slack = 1.0 if is_log else (high - low) / 2
    edge = edge[(edge >= low - slack) & (edge <= high + slack)]
    low, high = edge.min(), edge.max()
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - pad, high + max(pad, room * (high - low))
    ax.set_ylim((10.0**low, 10.0**high) if is_log else (low, high))


_THOUSANDS = {"": ("", "thousands", "millions", "billions"), "B": ("B", "kB", "MB", "GB", "TB"),
              "bit": ("bit", "kbit", "Mbit", "Gbit", "Tbit")}  # fmt: skip


def _label_costs(ax: Axes, x: str, largest: float, size: PanelSize) -> None:
    """Label the horizontal axis in a unit that keeps its numbers short."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    column = describe_column(x)
    label = column.label
    names = _THOUSANDS.get(column.unit)
    power = 0
    if names is not None and largest >= (1000 if column.unit else 20_000):
        power = min(len(names) - 1, int(np.log10(largest) // 3))
    if names is not None and names[power]:
        label += f" ({names[power]})"
    ax.set_xlabel(label, fontsize=size.font)
    scale = 1000.0**power
    ax.xaxis.set_major_locator(MaxNLocator(size.ticks, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:,.10g}"))
