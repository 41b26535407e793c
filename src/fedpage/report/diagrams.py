"""Draw the mean ranks of methods over problems, and the costs of a search."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedpage.core.display import new_figure
from fedpage.core.types import HyperParameter
from fedpage.report.figure_file import write_figure
from fedpage.report.style import ACCENT, HIGHLIGHT, assign_styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedpage.studies.comparison import MeanRanks

_STEP = 0.24
"""The height of a line of text in inches."""
Points: TypeAlias = Sequence[tuple[Mapping[str, float | str], float]]
"""The searched values of each candidate, and its cost."""
_FAR = 5.0
"""Candidates that cost this many times what the winner costs are crosses."""
_HYPER_PARAMETERS = {"step": "effective step", "rho": "K eta_l / eta_g"}


def plot_critical_difference(
    ranks: MeanRanks, path: str | os.PathLike[str] | None = None, *, width: float = 6.4
) -> Figure:
    """Draw mean ranks on an axis, with a bar over methods that do not differ significantly.

    It is Demšar's diagram of critical differences.

    Args:
        ranks: The ranks, as `rank_over_problems` returns them.
        path: A file to write; its suffix chooses PNG, PDF or SVG.
        width: The width in inches.

    Returns:
        The matplotlib Figure.

    Raises:
        InputError: The file's suffix is unknown.
    """
    names, means = list(ranks.mean_ranks), list(ranks.mean_ranks.values())
    count, bars = len(names), len(ranks.groups)
    left = math.ceil(count / 2)
    # In lines below the axis: first the bars, then the labels, one line for each.
    labels_from = 0.5 * bars + 1.0
    above, below = 2.6, labels_from + left
    figure = new_figure(figsize=(width, _STEP * (above + below)))
    margin = 0.28  # on each side, as a share of the width, for the names
    axes = figure.add_axes((margin, 0.0, 1 - 2 * margin, 1.0))
    axes.set(xlim=(1, count), ylim=(below, -above))
    axes.axis("off")
    axes.plot([1, count], [0, 0], color="black", lw=0.8, clip_on=False)
    for rank in range(1, count + 1):
        axes.plot([rank, rank], [0, -0.3], color="black", lw=0.8, clip_on=False)
        axes.text(rank, -0.4, str(rank), ha="center", va="bottom", fontsize=8)
    # A critical difference wider than the axis is written, not drawn: no two methods differ.
    shown = min(ranks.critical_difference, count - 1.0)
    clip = "" if shown == ranks.critical_difference else ", wider than the axis"
    axes.plot([1, 1 + shown], [-1.6, -1.6], color="black", lw=1.6, marker="|", clip_on=False)
    text = f"critical difference {ranks.critical_difference:.2f}{clip}"
    axes.text(1, -1.8, text, ha="left", va="bottom", fontsize=8)
    styles = assign_styles(names)
    for i, (name, mean) in enumerate(zip(names, means, strict=True)):
        is_left = i < left
        line = labels_from + (i if is_left else count - 1 - i) + 0.4
        edge = 1 - 0.04 * (count - 1) if is_left else count + 0.04 * (count - 1)
        colour = styles[name].colour
        axes.plot([mean, mean, edge], [0, line, line], color=colour, lw=0.9, clip_on=False)
        words = f"{name}  {mean:.2f}" if is_left else f"{mean:.2f}  {name}"
        side = "right" if is_left else "left"
        shift = -0.01 * (count - 1) if is_left else 0.01 * (count - 1)
        axes.text(edge + shift, line, words, ha=side, va="center", fontsize=8)
    pad = 0.015 * (count - 1)
    for i, group in enumerate(ranks.groups):
        ends = [ranks.mean_ranks[group[0]] - pad, ranks.mean_ranks[group[-1]] + pad]
        height = 0.5 * (i + 1)
        axes.plot(ends, [height, height], color="black", lw=2.6, solid_capstyle="butt", zorder=3)
    if path is not None:
        write_figure(figure, path)
    return figure


def search_panels(points: Points, path: str | os.PathLike[str], title: str = "") -> Path:
    """Draw the costs of a search, a panel for each searched hyper-parameter.

    A star marks the winner. The line joins the candidates that differ from it in this
    hyper-parameter alone; dots are all others. A cross at the top is a candidate that did not reach
    the target, or was ended because it cost too much. Values stand in order, evenly spaced.

    Args:
        points: Each candidate's searched values and its cost, the winner first, as in
            `Tuning.points`. Costs are in units of the winner's on the same seeds; inf means that
            the target was not reached or that the cost was more than the search allowed.
        path: The file; its suffix chooses the format.
        title: The title, such as the method and what was minimised.

    Returns:
        The path.
    """
    from matplotlib.ticker import FuncFormatter

    winner = points[0][0]
    costs = [cost for _, cost in points if 0 < cost < _FAR]
    top = 1.3 * max(costs, default=1.0)
    wide = min(3, len(winner))
    rows = -(-len(winner) // wide)
    figure = new_figure(figsize=(max(5.2, 3.8 * wide), 0.7 + 2.5 * rows), layout="constrained")
    panels = list(figure.subplots(rows, wide, squeeze=False, sharey=True).flat)
    for ax, name in zip(panels, winner, strict=False):
        _draw_costs(ax, points, name, top)
        ax.set_yscale("log")
        ax.set_ylim(0.9 * min(costs, default=1.0), 1.15 * top)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        ax.yaxis.set_minor_formatter(
            FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "235" else "")
        )
    for ax in panels[len(winner) :]:
        ax.set_visible(False)
    figure.supylabel("cost over the winner's, same seeds", fontsize=10)
    marks = "star: winner; line: one value changed; cross: not reached, or far more"
    figure.suptitle(f"{title}\n{marks}", fontsize=10)
    return write_figure(figure, path, dpi=160)


def _draw_costs(ax: Axes, points: Points, name: str, top: float) -> None:
    """Draw the costs over one hyper-parameter: its numbers in order, then its words."""
    winner, least = points[0]
    found = {point[name] for point, _ in points}
    values = sorted(found, key=lambda value: (isinstance(value, str), value))
    others = [other for other in winner if other != name]
    line: dict[int, float] = {}
    for point, cost in points:
        place = values.index(point[name])
        is_shown = cost < _FAR
        height = cost if is_shown else top
        is_near = all(point[other] == winner[other] for other in others)
        color = ACCENT if is_near else "#BBBBBB"
        mark = "o" if is_shown else "x"
        ax.plot(place, height, mark, color=color, markersize=5, zorder=3 if is_near else 1)
        if is_near:
            line[place] = min(height, line.get(place, np.inf))
    places = sorted(line)
    ax.plot(places, [line[place] for place in places], color=ACCENT, linewidth=1.2, zorder=2)
    best = least if np.isfinite(least) else top
    ax.plot(values.index(winner[name]), best, "*", color=HIGHLIGHT, markersize=13, zorder=4)
    shown = range(0, len(values), -(-len(values) // 12))
    ax.set_xticks(list(shown), [format_setting(name, values[i]) for i in shown], rotation=45)
    ax.tick_params(axis="x", labelsize=8)
    ax.set_xlabel(_HYPER_PARAMETERS.get(name, name))
    ax.grid(axis="y", color="#EEEEEE")


def format_setting(name: str, value: HyperParameter) -> str:
    """Write a hyper-parameter's value in short; None is all clients or rows, or follows a rule."""
    if value is None or value == math.inf:
        return "all" if name in ("S", "b", "b0", "b1", "b2", "b3") else "by rule"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:.4g}" if is_number else str(value)
