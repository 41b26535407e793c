"""Draw the costs of a search over hyper-parameters."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedpage.core.types import HyperParameter
from fedpage.report.figure_file import write_figure
from fedpage.report.style import ACCENT, HIGHLIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points: TypeAlias = Sequence[tuple[Mapping[str, float | str], float]]
"""The searched values of each candidate, and its cost."""
_FAR = 5.0
"""Candidates that cost this many times what the winner costs are crosses."""
_HYPER_PARAMETERS = {"step": "effective step", "rho": "K eta_l / eta_g"}


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
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    winner = points[0][0]
    costs = [cost for _, cost in points if 0 < cost < _FAR]
    top = 1.3 * max(costs, default=1.0)
    wide = min(3, len(winner))
    rows = -(-len(winner) // wide)
    figure = Figure(figsize=(max(5.2, 3.8 * wide), 0.7 + 2.5 * rows), layout="constrained")
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
