"""What the commands print: consoles, the result table and the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

    from fedpage.runs.history import History


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or 140 columns wide where there is none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False)


def log(text: str) -> None:
    """Print a remark, which is no result, on stderr."""
    console(stderr=True).print(f"fedpage: {text}", markup=False, soft_wrap=True)


def print_summary(runs: Sequence[History], target: float) -> None:
    """Print the result table, without its least needed columns where the terminal is narrow."""
    from rich.table import Table

    from fedpage.report import summary

    rows = summary.summarise(runs, target)
    cells = [row.cells() for row in rows]
    fields, headings = zip(*summary.headings().items(), strict=True)
    columns = [i for i, key in enumerate(fields) if key != "end" or any(row.end for row in rows)]
    screen = console()
    for key in ("seconds", "clients", "loss", "step", "clients_per_round"):
        if sum(3 + _width(headings[i], [row[i] for row in cells]) for i in columns) < screen.width:
            break
        columns.remove(fields.index(key))
    seeds = len({run.meta.get("seed") for run in runs})
    medians = f", medians over {seeds} seeds" if seeds > 1 else ""
    table = Table(title=f"target: gradient norm {target:g}{medians}", title_justify="left")
    for i in columns:
        width = _width(headings[i], [row[i] for row in cells])
        heading = fill(headings[i], width)  # so that rich wraps headings, and no numbers
        justify: Literal["left", "right"] = "left" if i in (0, 9) else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for row in cells:
        table.add_row(*(row[i] for i in columns))
    screen.print(table)


def _width(heading: str, cells: Sequence[str]) -> int:
    """Return the width of a column whose heading is broken into words."""
    return max(len(word) for word in [*heading.split(), *cells])


def write_reports(
    runs: Sequence[History], out: Path | None, title: str, target: float, report: Path | None = None
) -> None:
    """Write the plot and the report into `out`, and the report to a file too, and print where."""
    from fedpage.report import page, plots

    if out is not None:
        print(f"Report: {page.write_runs(runs, out / 'report.html', title=title, target=target)}")
        print(f"Plot: {plots.save_pair(runs, out / 'curves.png', title)}")
    if report is not None:
        print(f"Report: {page.write_runs(runs, report, title=title, target=target)}")
