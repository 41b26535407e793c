"""Place legends outside of the panels, in as many columns as fit, and break long text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

_HANDLE = 3.0
"""Length of a line in the legend, in units of the font's size: two dashes must fit."""


@lru_cache(maxsize=4096)
def text_width(text: str, font: float) -> float:
    """Return the width of a line of text in inches, in matplotlib's font of that size (points)."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), text, prop=FontProperties(size=font)).get_extents().width) / 72


def wrap_text(text: str, width: float, font: float) -> str:
    """Break text into lines of at most a width.

    Args:
        text: The text.
        width: The width in inches.
        font: The size of the font in points.
    """
    lines = [text]
    count = len(text)
    while max((text_width(line, font) for line in lines), default=0.0) > width and count > 8:
        count -= 1
        lines = textwrap.wrap(text, count)
    return "\n".join(lines)


def add_legend(
    figure: Figure, entries: Mapping[str, Artist], note: str, font: float, first: int = 1
) -> float:
    """Add a legend below all panels of a figure.

    Args:
        figure: A figure with the constrained layout, which makes room for it.
        entries: The line of each label.
        note: A title of the legend, which says what lines and bands are; "" for none.
        font: The size of its text in points.
        first: The number of first entries that shall fill whole columns.

    Returns:
        The legend's height in inches, by which the figure must grow.
    """
    inches = figure.get_size_inches()[0] - 0.1
    em = font / 72
    labels = [wrap_text(label, inches - (_HANDLE + 2) * em, font) for label in entries]
    widths = [
        max(text_width(line, font) for line in label.splitlines()) + (_HANDLE + 0.8) * em
        for label in labels
    ]
    columns = len(labels)
    while columns > 1 and _legend_width(widths, columns) + 2 * (columns - 1) * em > inches:
        columns -= 1
    rows = -(-len(labels) // columns)
    if first > 1:
        rows = next((more for more in range(rows, first) if first % more == 0), first)
    columns = -(-len(labels) // rows)
    heading = wrap_text(note, inches - em, font)
    legend = figure.legend(
        list(entries.values()), labels, loc="outside lower center", ncols=columns, frameon=False,
        fontsize=font, title=heading or None, title_fontsize=font, handlelength=_HANDLE,
        columnspacing=2.0, borderpad=0.2, borderaxespad=0.3,
    )  # fmt: skip
    legend.get_title().set_multialignment("center")
    tallest = [
        max(len(label.splitlines()) for label in labels[row::rows] or [""]) for row in range(rows)
    ]
    lines = sum(tallest) + len(heading.splitlines())
    return (1.5 * lines + 0.8) * em


def _legend_width(widths: list[float], columns: int) -> float:
    """Return the width of the legend's columns; entries fill a column before the next."""
    rows = -(-len(widths) // columns)
    return sum(max(widths[start : start + rows]) for start in range(0, len(widths), rows))
