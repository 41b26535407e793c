"""Draw curves of runs with matplotlib: any recorded column against any cost."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from fedpage.core.columns import Cost, describe_column
from fedpage.core.display import new_figure
from fedpage.core.errors import InputError, did_you_mean
from fedpage.core.types import Vector
from fedpage.core.validate import choice
from fedpage.report.bands import (
    Band,
    Summary,
    diverged_note,
    find_direction,
    use_log_axis,
)
from fedpage.report.figure_file import check_figure_path, write_figure
from fedpage.report.style import Style, assign_styles, factor_styles
from fedpage.report.titles import by_method, describe_runs, list_runs, shorten_partition
from fedpage.runs.history import History

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Width: TypeAlias = Literal["single", "double", "screen"]
WIDTHS: dict[str, float] = {"single": 3.5, "double": 7.16}
"""Widths of a column and of a page of two columns, in inches, as IEEE and many others have them."""
_LARGEST = 1e100
"""Where the upper edge of diverged runs is drawn; it is outside of every axis."""
_LARGER = {"*": 1.6, "P": 1.2, "X": 1.2, "d": 1.2}
"""Markers with little area are drawn larger."""
_THOUSANDS = {"": ("", "thousands", "millions", "billions"), "B": ("B", "kB", "MB", "GB", "TB"),
              "bit": ("bit", "kbit", "Mbit", "Gbit", "Tbit")}  # fmt: skip

Runs: TypeAlias = "History | Iterable[History]"


@dataclass(frozen=True)
class PanelRuns:
    """One plot.

    Attributes:
        title: Its title.
        curves: Its runs by label.
        values: The settings that differ between panels, such as {"clients": 3250, "step": 0.1}.
    """

    title: str
    curves: Mapping[str, Sequence[History]]
    values: Mapping[str, Any] = field(default_factory=dict)


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


def plot(
    histories: Runs | Mapping[str, Runs],
    path: str | os.PathLike[str] | None = None,
    *,
    x: str | Sequence[str] = "round",
    y: str | Sequence[str] = "grad_norm",
    width: Width = "screen",
    band: Band = "quantiles",
    quantiles: tuple[float, float] = (0.25, 0.75),
    panels: str | Sequence[str] | None = None,
    columns: int | None = None,
    title: str | None = None,
    dpi: int | None = None,
) -> Figure:
    """Draw a curve for each method, over all seeds, as a figure for a paper or the screen.

    Methods differ by colour, step sizes by dash, and variants by marker. The legend stands below
    the panels.

    Args:
        histories: A run, or runs of any methods and seeds; or a dictionary of them, whose keys are
            the titles of panels.
        path: A file to write: PDF, SVG, PNG, or PGF if a TeX is installed.
        x: The cost on the horizontal axis, such as "round", "bytes", "bits", "contacts",
            "gradients" or "seconds", or a sum such as "up+0.1*down"; several make a panel each.
        y: Any recorded column; several make a panel each.
        width: "single" or "double" for a column (3.5 in) or a page (7.16 in) of a paper, with text
            of 8 points; "screen" is larger.
        band: "quantiles" draws the median and two quantiles over seeds. "mean-ci" draws the mean
            and its 95 % confidence interval by Student's t, of logarithms if the axis is
            logarithmic. The legend says which.
        quantiles: The lower and the upper quantile of the band.
        panels: A setting of the problem or the method, such as "data", "partition" or "K", to draw
            a panel for each of its values; or several settings.
        columns: Panels in a row; by default as many as fit the width.
        title: The title. By default it names the objective, the regulariser, the data, the
            partition and N if all runs share them.
        dpi: Dots per inch of a PNG; by default 300, or 160 at width "screen".

    Returns:
        The matplotlib Figure.

    Raises:
        InputError: No run has a record, a name is unknown, a column was not recorded, or the file
            cannot be written.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20, reg="l2")
    >>> runs = fp.sweep(problem, [fp.FedPAGE(S=4), fp.FedAvg(S=4)], rounds=20, seeds=3)
    >>> figure = fp.plot(runs, x="bytes", width="single")
    >>> " ".join(figure.get_suptitle().split())
    'Logistic regression, l2 regulariser (0.1), on census, blocks, N = 20'
    """
    if path is not None:
        check_figure_path(path)
    summary = Summary(band, quantiles)
    given = histories if isinstance(histories, Mapping) else {"": histories}
    xs, ys, settings = (
        [names] if isinstance(names, str) else list(names) for names in (x, y, panels or ())
    )
    tables = {
        ", ".join(filter(None, (name, value))): some
        for name, runs in given.items()
        for value, some in _divide(_require_runs(runs), settings).items()
    }
    groups = {name: by_method(runs) for name, runs in tables.items()}
    cells = list(product(groups.items(), ys, xs))
    if not cells:
        raise InputError("nothing to plot: no histories, or no column for an axis, given")
    if columns is not None and columns < 1:
        raise InputError(f"columns must be at least 1, not {columns}")
    if columns is None:
        most = 1 if width == "single" else 3
        columns = len(xs) if 1 < len(xs) <= most else min(most, len(cells))
        if columns == 3 and len(cells) == 4:
            columns = 2
    if title is None:
        title = describe_runs([run for runs in tables.values() for run in runs])
    shown = tuple(PanelRuns(name, curves) for (name, curves), _, _ in cells)
    figure = draw_figure(
        FigureRuns("plot", title, "", columns, shown),
        [cost for _, _, cost in cells],
        [column for _, column, _ in cells],
        width=width,
        summary=summary,
    )
    if path is not None:
        write_figure(figure, path, dpi or (160 if width == "screen" else 300))
    return figure


def _divide(runs: Sequence[History], settings: Sequence[str]) -> dict[str, list[History]]:
    """Divide runs by the values of settings of the problem or the method, if there are any."""
    divided: dict[tuple[str, ...], list[History]] = {}
    for run in runs:
        about = {**run.meta.get("method", {}), **run.meta.get("problem", {})}
        texts = []
        for setting in settings:
            if setting not in about:
                hint = did_you_mean(setting, about) or f" there are {', '.join(about)}"
                raise InputError(f"panels: runs have no setting {setting!r};{hint}")
            value = about[setting]
            texts.append(value if isinstance(value, str) else f"{setting} = {value}")
        divided.setdefault(tuple(texts), []).append(run)
    short = {", ".join(map(shorten_partition, key)): some for key, some in divided.items()}
    if len(short) == len(divided):
        return short
    return {", ".join(key): some for key, some in divided.items()}


def curves(
    histories: Runs,
    *,
    x: str = "round",
    y: str = "grad_norm",
    ax: Axes | None = None,
    quantiles: tuple[float, float] = (0.25, 0.75),
    band: Band = "quantiles",
    title: str | None = None,
) -> Axes:
    """Draw a curve for each method into axes; `plot` makes a whole figure.

    The legend stands below the axes; a figure with layout="constrained" makes room for it.

    Args:
        histories: Runs of any methods and seeds; a single run is allowed.
        x: The cost on the horizontal axis; see `plot`.
        y: Any recorded column.
        ax: Where to draw. By default a new figure is made, which is `ax.figure`.
        quantiles: The band's lower and upper quantile.
        band: "quantiles" or "mean-ci"; see `plot`.
        title: The title above the axes.

    Returns:
        The matplotlib Axes.

    Raises:
        InputError: No run has a record, or the quantiles are not two numbers from 0 to 1.
    """
    groups, summary = by_method(_require_runs(histories)), Summary(band, quantiles)
    if ax is None:
        ax = new_figure(figsize=(6.4, 5.0), layout="constrained").subplots()
    inches = ax.get_window_extent().width / ax.figure.dpi
    size = _Size(ticks=max(3, int(inches / 0.65)))
    is_log = _draw_panel(ax, groups, assign_styles(groups), x, y, summary, size)
    if title:
        ax.set_title(title)
    longest = max(text_width(label, size.font) for label in groups)
    ax.legend(
        frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), handlelength=3.0,
        borderaxespad=3.6, fontsize=size.font, ncols=max(1, min(4, int(inches / (longest + 0.9)))),
        title=summary.describe(groups, is_log=is_log) or None,
    )  # fmt: skip
    return ax


def _require_runs(histories: Runs) -> list[History]:
    """Return the runs that have records as a list; refuse if there is none."""
    runs = [run for run in list_runs(histories) if len(run)]
    if not runs:
        raise InputError("nothing to plot: no history has a record")
    return runs


def draw_figure(
    figure: FigureRuns,
    x: str | Sequence[str] = "round",
    y: str | Sequence[str] = "grad_norm",
    *,
    width: Width = "screen",
    summary: Summary | None = None,
) -> Figure:
    """Draw all panels of a figure, with one legend below them.

    Args:
        figure: The panels.
        x: The cost, or one cost for each panel.
        y: The recorded column, or one for each panel.
        width: "single", "double" or "screen"; see `plot`.
        summary: What the lines and the bands are; by default medians and quartiles.

    Returns:
        The matplotlib Figure.

    Raises:
        InputError: The width is unknown, or a run has not recorded x or y.
    """
    from matplotlib.lines import Line2D

    choice("a figure", "width", width, ("single", "double", "screen"))
    summary = summary or Summary()
    rows = -(-len(figure.panels) // figure.columns)
    inches = WIDTHS.get(width, max(4.4 * figure.columns, 6.4))
    panel = inches / figure.columns
    if width in WIDTHS:
        height = min(max(0.72 * panel, 1.7), 2.5)
        size = _Size(8.0, 1.1, 3.5, max(3, int(panel / 0.5)))
    else:
        height, size = 3.2, _Size(ticks=max(3, int(panel / 0.65)))
    page = new_figure(figsize=(inches, rows * height), layout="constrained")
    grid = list(page.subplots(rows, figure.columns, squeeze=False).flat)
    for ax in grid[len(figure.panels) :]:
        ax.remove()
    del grid[len(figure.panels) :]
    styles = assign_styles(figure.labels)
    entries: dict[str, Artist] = {}
    notes: dict[str, None] = {}
    lines = 0
    costs, columns = ([n] * len(grid) if isinstance(n, str) else n for n in (x, y))
    for ax, runs, cost, column in zip(grid, figure.panels, costs, columns, strict=True):
        is_log = _draw_panel(ax, runs.curves, styles, cost, column, summary, size)
        name = wrap_text(runs.title, panel - 0.9, size.font)
        ax.set_title(name, fontsize=size.font)
        lines = max(lines, len(name.splitlines()))
        for line, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, line)
        notes[summary.describe(runs.curves, is_log=is_log)] = None
    _drop_repeated_labels(grid, figure.columns)
    heading = wrap_text(figure.title, inches - 0.2, size.font + 1)
    page.suptitle(heading, fontsize=size.font + 1)
    factors = factor_styles(figure.labels) if set(entries) == set(figure.labels) else None
    first = 1
    if factors is not None:
        entries = {name: Line2D([], [], **size.line_of(style)) for name, style in factors.items()}
        first = sum(bool(style.marker) for style in factors.values())
    note = "; ".join(filter(None, notes))
    legend = _add_legend(page, entries, note, size.font, first) if entries else 0.0
    lines = rows * lines + len(heading.splitlines())
    page.set_size_inches(inches, rows * height + legend + 1.3 * (size.font + 1) / 72 * lines)
    return page


@dataclass(frozen=True)
class _Size:
    """Sizes of text, lines and markers in points, and the most ticks of the horizontal axis."""

    font: float = 10.0
    line: float = 1.6
    marker: float = 5.0
    ticks: int = 7

    def line_of(self, style: Style) -> dict[str, Any]:
        """Return matplotlib's settings of a line in this style."""
        return {
            "color": style.colour,
            "marker": style.marker or "none",
            "markersize": self.marker * _LARGER.get(style.marker, 1.0),
            "markeredgewidth": 0.0,
            "linewidth": self.line,
            "linestyle": (0, style.dash) if style.dash else "-",
        }


def _draw_panel(
    ax: Axes,
    groups: Mapping[str, Sequence[History]],
    styles: Mapping[str, Style],
    x: str,
    y: str,
    summary: Summary,
    size: _Size,
) -> bool:
    """Draw labelled curves, axes and grid; return whether the vertical axis is logarithmic."""
    Cost.parse(x)
    groups = {label: group for label, group in groups.items() if group}
    runs = [run for group in groups.values() for run in group]
    stable = [group for group in groups.values() if not any(run.diverged for run in group)]
    medians = [Summary().compute(group, x, y)[1][1] for group in stable or groups.values()]
    medians = [values[np.isfinite(values)] for values in medians]
    is_log = use_log_axis(find_direction(runs, y), medians)
    edges: list[Vector] = []
    shown: list[Vector] = []
    for number, (label, group) in enumerate(groups.items()):
        grid, band = summary.compute(group, x, y, is_log=is_log)
        drawn = np.isfinite(band[1])
        low, middle, high = np.clip(band[:, drawn], -_LARGEST, _LARGEST)
        every = max(1, len(middle) // 9)
        ax.plot(
            grid[drawn], middle, label=label + diverged_note(group),
            markevery=(number * every // 4 % every, every), **size.line_of(styles[label]),
        )  # fmt: skip
        if len(group) > 1:
            colour = styles[label].colour
            ax.fill_between(grid[drawn], low, high, color=colour, alpha=0.16, linewidth=0)
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


def _limit_values(
    ax: Axes, edges: Sequence[Vector], middles: Sequence[Vector], *, is_log: bool, room: float
) -> None:
    """Set the vertical range: all of `middles`, and edges unless they would flatten the curves."""
    middle, edge = (np.concatenate([*values, []]) for values in (middles, edges))
    if is_log:
        middle, edge = np.log10(middle[middle > 0]), np.log10(edge[edge > 0])
    if not len(middle):
        return
    low, high = middle.min(), middle.max()
    slack = 1.0 if is_log else (high - low) / 2
    edge = edge[(edge >= low - slack) & (edge <= high + slack)]
    low, high = edge.min(), edge.max()
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - pad, high + max(pad, room * (high - low))
    ax.set_ylim((10.0**low, 10.0**high) if is_log else (low, high))


def _label_costs(ax: Axes, x: str, largest: float, size: _Size) -> None:
    """Label the horizontal axis in a unit that keeps its numbers short."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    column = describe_column(x)
    names = _THOUSANDS.get(column.unit, ("",))
    power = 0
    if largest >= (1000 if column.unit else 20_000):
        power = min(len(names) - 1, int(np.log10(largest) // 3))
    unit = f" ({names[power]})" if names[power] else ""
    ax.set_xlabel(f"{column.label}{unit}", fontsize=size.font)
    scale = 1000.0**power
    ax.xaxis.set_major_locator(MaxNLocator(size.ticks, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:,.10g}"))


def _drop_repeated_labels(grid: Sequence[Axes], columns: int) -> None:
    """Keep a label of an axis where the panel to the left, or the one below, has another."""
    across = [ax.get_ylabel() for ax in grid]
    below = [ax.get_xlabel() for ax in grid]
    for number, ax in enumerate(grid):
        if number % columns and across[number] == across[number - 1]:
            ax.set_ylabel("")
        if number + columns < len(grid) and below[number] == below[number + columns]:
            ax.set_xlabel("")


def _add_legend(
    figure: Figure, entries: Mapping[str, Artist], note: str, font: float, first: int
) -> float:
    """Add a legend below all panels, in as many columns as fit, and return its height in inches.

    `note` is its title; the `first` entries fill whole columns, if the width allows it. The
    constrained layout makes room for it, and the figure must grow by its height.
    """
    inches = figure.get_size_inches()[0] - 0.1
    labels = [wrap_text(label, inches - 5 * font / 72, font) for label in entries]
    for rows in range(1, len(labels) + 1):
        if rows < first and first % rows:
            continue
        legend = figure.legend(
            list(entries.values()), labels, loc="outside lower center",
            ncols=-(-len(labels) // rows), frameon=False, fontsize=font,
            title=wrap_text(note, inches - font / 72, font) or None, title_fontsize=font,
            handlelength=3.0, columnspacing=2.0, borderpad=0.2, borderaxespad=0.3,
        )  # fmt: skip
        box = legend.get_window_extent()
        if box.width <= inches * figure.dpi or rows == len(labels):
            break
        legend.remove()
    legend.get_title().set_multialignment("center")
    return float(box.height / figure.dpi) + 0.1


@lru_cache(maxsize=4096)
def text_width(text: str, font: float) -> float:
    """Return the width of a line of text in inches, in matplotlib's font of that size (points)."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), text, prop=FontProperties(size=font)).get_extents().width) / 72


def wrap_text(text: str, width: float, font: float) -> str:
    """Break text into lines of at most `width` inches, in matplotlib's font of that size."""
    lines = [text]
    count = len(text)
    while max((text_width(line, font) for line in lines), default=0.0) > width and count > 8:
        count -= 1
        lines = textwrap.wrap(text, count)
    return "\n".join(lines)
