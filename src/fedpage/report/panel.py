"""Draw the curves of one panel: lines, bands, scales, ticks and labels of its axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpage.core.columns import Cost, describe_column
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import Vector
from fedpage.report.bands import (
    BANDS,
    Band,
    diverged_note,
    find_direction,
    mean_band,
    quantile_band,
    use_log_axis,
)
from fedpage.report.style import Style
from fedpage.runs.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

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
