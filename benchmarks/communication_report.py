"""The tables and the pictures of communication.py."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedpage.report.style import METHOD_STYLES
from fedpage.runs.fingerprint import versions as provenance_versions
from fedpage.studies.statistics import CostSample, ranking

DOCS = Path(__file__).parents[1] / "docs"
SCALES = {"round": 1.0, "clients": 1.0, "bytes_up": 1e6, "bytes": 1e6}
STYLES = tuple(METHOD_STYLES.values())
HEADS = {"clients": "contacts", "bytes_up": "MB up", "bytes": "MB in all"}
"""The costs of the tables; the CSV file has rounds too."""


@dataclass(frozen=True)
class Found:
    """What a method with its chosen settings needed to reach one target on fresh seeds.

    Attributes:
        settings: The hyper-parameters that were chosen, in words.
        costs: A judgement for each of `SCALES`.
        best: The median over seeds of the best value of the target's column.
    """

    settings: str
    costs: Mapping[str, CostSample]
    best: float


@dataclass(frozen=True)
class Line:
    """A method's line in the table of a case.

    Attributes:
        title: The method.
        ours: Whether it ran with its defaults.
        found: Its results by target.
    """

    title: str
    ours: bool
    found: Mapping[float, Found]


def number(value: float) -> str:
    """Write a cost with three digits, or all of a large one."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def cell(judgement: CostSample, cost: str, first: bool) -> str:
    """Write the median and the worst seed; the number of seeds where some did not reach."""
    median, worst = (number(v / SCALES[cost]) for v in (judgement.median, judgement.worst))
    if not judgement.reached:
        return "-"
    if judgement.reached < judgement.seeds:
        worst = f"{judgement.reached} of {judgement.seeds}"
    return f"**{median}** ({worst})" if first else f"{median} ({worst})"


def winners(lines: Sequence[Line], target: float, cost: str) -> set[str]:
    """Return the titles of the first in a cost and of those that cannot be told from it."""
    judgements = {
        line.title: line.found[target].costs[cost] for line in lines if target in line.found
    }
    reached = {title: each for title, each in judgements.items() if math.isfinite(each.median)}
    if not reached:
        return set()
    return {name for name, (_, is_tied) in ranking(reached).items() if is_tied}


def distinct(lines: Sequence[Line]) -> list[Line]:
    """Leave out lines that repeat another one, such as PAGE's beside FedPAGE's with K = 10.

    All their medians are those of the other line to half a percent.
    """
    kept: list[Line] = []
    for line in sorted(lines, key=lambda line: -len(line.found)):
        if not any(_repeats(line, other) for other in kept):
            kept.append(line)
    return [line for line in lines if line in kept]


def _repeats(line: Line, other: Line) -> bool:
    if line.ours or other.ours or not line.found.keys() <= other.found.keys():
        return False
    medians = [
        (found.costs[cost].median, other.found[target].costs[cost].median)
        for target, found in line.found.items()
        for cost in SCALES
    ]
    return all(a == b or abs(a - b) <= 0.005 * b for a, b in medians)


def table(lines: Sequence[Line], targets: Sequence[float], by: str) -> str:
    """Return a Markdown table with a column for each cost and target.

    Args:
        lines: The methods.
        targets: The targets.
        by: The cost to sort by: to the first target, then the second, ...
    """
    costs = tuple(HEADS)
    heads = [f"{HEADS[cost]} to {text(target)}" for cost in costs for target in targets]
    rows = [f"| method | {' | '.join(heads)} |", "|---" + "|---:" * len(heads) + "|"]
    best = {(cost, target): winners(lines, target, cost) for cost in costs for target in targets}
    for line in sorted(lines, key=lambda line: _order(line, targets, by)):
        cells = [f"**{line.title}**" if line.ours else line.title]
        for cost in costs:
            for target in targets:
                found = line.found.get(target)
                first = line.title in best[cost, target]
                cells.append("" if found is None else cell(found.costs[cost], cost, first))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _order(line: Line, targets: Sequence[float], cost: str) -> tuple[object, ...]:
    none = CostSample((math.inf,))
    return tuple(
        (line.found[target].costs[cost] if target in line.found else none).order
        for target in targets
    )


def text(target: float) -> str:
    """Write a target: 1e-3, 0.3."""
    return f"{target:.0e}".replace("e-0", "e-") if target <= 1e-2 else f"{target:g}"


def settings_table(lines: Sequence[Line], targets: Sequence[float]) -> str:
    """Return a Markdown table of the chosen settings."""
    rows = [
        f"| method | {' | '.join(f'for {text(target)}' for target in targets)} |",
        "|---" * (1 + len(targets)) + "|",
    ]
    for line in lines:
        cells = [line.found[t].settings if t in line.found else "" for t in targets]
        rows.append(f"| {line.title} | {' | '.join(cells)} |")
    return "\n".join(rows)


def screening_table(costs: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return a Markdown table of the screening: thousands of contacts to each target.

    Args:
        costs: By case and method, the contacts to each target.
    """
    rows = [f"| method | {' | '.join(costs)} |", "|---" + "|---:" * len(costs) + "|"]
    for title in dict.fromkeys(title for found in costs.values() for title in found):
        cells = []
        for found in costs.values():
            words = [number(float(f"{value / 1e3:.2g}")) for value in found.get(title, ())]
            cells.append("-" if set(words) == {"-"} else " / ".join(words))
        rows.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(rows)


def as_csv(tables: Mapping[str, Mapping[str, Sequence[Line]]]) -> str:
    """Return every result as CSV: one line for each case, method and target."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heads = [f"{cost}_{what}" for cost in SCALES for what in ("median", "worst")]
    writer.writerow(
        ["case", "codecs", "method", "target", "settings", "reached", "seeds", *heads, "best"]
    )
    for case, modes in tables.items():
        for mode, lines in modes.items():
            for line in lines:
                for target, found in line.found.items():
                    each = found.costs["clients"]
                    values = [
                        f"{value:.6g}"
                        for cost in SCALES
                        for value in (found.costs[cost].median, found.costs[cost].worst)
                    ]
                    about = [case, mode, line.title, f"{target:g}", found.settings]
                    seeds = [each.reached, each.seeds]
                    writer.writerow([*about, *seeds, *values, f"{found.best:.3g}"])
    return stream.getvalue()


def draw(
    panels: Mapping[str, tuple[Sequence[Line], Sequence[float]]],
    cost: str,
    label: str,
    path: Path,
) -> None:
    """Plot a cost to each target: a panel for each case, a row for each method.

    A marker is the median, and a thin line goes to the worst seed.

    Args:
        panels: By title of the case, its lines and its targets.
        cost: The cost.
        label: What the horizontal axis says.
        path: The file.
    """
    rows = math.ceil(len(panels) / 2)
    most = max(len(lines) for lines, _ in panels.values())
    size = (11, (1.1 + 0.27 * most) * rows + 0.5)
    figure, axes = plt.subplots(rows, 2, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax, (title, (lines, targets)) in zip(axes.flat, panels.items(), strict=False):
        lines = sorted(lines, key=lambda line: (not line.ours, _order(line, targets, cost)))
        for row, line in enumerate(lines):
            for place, target in enumerate(targets):
                if target in line.found:
                    _mark(ax, line.found[target].costs[cost], SCALES[cost], row, place)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(FuncFormatter(_tick))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.tick_params(axis="x", labelsize=9)
        ax.set_yticks(range(len(lines)), [line.title for line in lines], fontsize=9)
        for tick, line in zip(ax.get_yticklabels(), lines, strict=True):
            tick.set_fontweight("bold" if line.ours else "normal")
        ax.set_ylim(len(lines) - 0.5, -0.5)
        ax.grid(axis="x", which="both", color="0.92", lw=0.6)
        ax.set_axisbelow(True)
        for row in range(1, len(lines)):
            ax.axhline(row - 0.5, color="0.92", lw=0.6)
        ax.set_title(title, fontsize=11)
        ax.set_xlabel(label, fontsize=9)
    targets = next(iter(panels.values()))[1]
    handles: list[Any] = [
        plt.Line2D(
            [], [], color=STYLES[i][0], marker=STYLES[i][1], ls="",
            label=f"target {i + 1}: {text(target)}",
        )
        for i, target in enumerate(targets)
    ]  # fmt: skip
    handles.append(plt.Line2D([], [], color="0.5", lw=1, label="to the worst seed"))
    handles.append(
        plt.Line2D([], [], color="0.5", marker="o", mfc="white", ls="", label="some seeds failed")
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _tick(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _mark(ax: Any, found: CostSample, scale: float, row: int, place: int) -> None:
    """Draw the median and a line to the worst seed; an arrow where a seed did not reach."""
    if not math.isfinite(found.median):
        return
    colour, marker = STYLES[place]
    y = row + 0.24 * (place - 1)
    if found.reached == found.seeds:
        ax.plot([found.median / scale, found.worst / scale], [y, y], "-", color=colour, lw=1)
        ax.plot(found.median / scale, y, marker, color=colour, ms=6)
    else:
        ax.plot(found.median / scale, y, marker, color=colour, ms=6, mfc="white")


def versions() -> str:
    """Return the versions of fedpage, Python and numpy."""
    return ", ".join(f"{name} {version}" for name, version in provenance_versions().items())
