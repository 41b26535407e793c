"""Draw mean ranks over problems: Demšar's diagram of critical differences."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from fedpage.report.figure_file import write_figure
from fedpage.report.style import assign_styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpage.studies.comparison import MeanRanks

_STEP = 0.24
"""The height of a line of text in inches."""


def plot_critical_difference(
    ranks: MeanRanks, path: str | os.PathLike[str] | None = None, *, width: float = 6.4
) -> Figure:
    """Draw mean ranks on an axis, with a bar over methods that do not differ significantly.

    Args:
        ranks: The ranks, as `rank_over_problems` returns them.
        path: A file to write; its suffix chooses PNG, PDF or SVG.
        width: The width in inches.

    Returns:
        The matplotlib Figure.

    Raises:
        InputError: The file's suffix is unknown.
    """
    from matplotlib.figure import Figure

    names, means = list(ranks.mean_ranks), list(ranks.mean_ranks.values())
    count, bars = len(names), len(ranks.groups)
    left = math.ceil(count / 2)
    # In lines below the axis: first the bars, then the labels, one line for each.
    labels_from = 0.5 * bars + 1.0
    above, below = 2.6, labels_from + left
    figure = Figure(figsize=(width, _STEP * (above + below)))
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
