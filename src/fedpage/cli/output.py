"""Results of commands on the screen: tables, sentences, the report and the picture."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedpage.core.columns import COLUMNS, Cost, Target, describe_column, explain_epsilon
from fedpage.core.metrics import row_metrics
from fedpage.problems import LinearModel
from fedpage.report import page, plots, summary
from fedpage.report.tables import Table
from fedpage.report.titles import by_method
from fedpage.runs.config import ProblemConfig
from fedpage.runs.history import History
from fedpage.studies.comparison import Comparison

_WIDEST_TEXT = 100
"""The widest paragraph, so that a line is read easily."""
_LEAST_NEEDED = ("seconds", "clients", "loss", "step", "clients_per_round", "bytes_down",
                 "bytes_up")  # fmt: skip
"""The columns of the result table that a narrow terminal does not show, the first one first."""


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or 140 columns wide where there is none."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False)


def log(text: str) -> None:
    """Print a message that is not a result on stderr."""
    console(stderr=True).print(f"fedpage: {text}", markup=False, soft_wrap=True)


def print_line(text: str) -> None:
    """Print a line without markup; a terminal breaks it between words."""
    console().print(text, markup=False, soft_wrap=not sys.stdout.isatty())


def print_text(text: str) -> None:
    """Print paragraphs at a width that is read easily."""
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    screen = console()
    screen.print("\n\n".join(paragraphs), markup=False, width=min(screen.width, _WIDEST_TEXT))


def print_grid(rows: Sequence[Sequence[str]], headings: Sequence[str] = ()) -> None:
    """Print cells without lines. Only the last cell of a row is wrapped."""
    grid, screen = RichTable.grid(padding=(0, 2, 0, 0)), console()
    for _ in rows[0][:-1]:
        grid.add_column(no_wrap=True)
    if headings:
        grid.add_row(*headings, style="bold")
    for row in rows:
        grid.add_row(*row)
    screen.print(grid, width=min(screen.width, _WIDEST_TEXT))


def print_summary(
    runs: Sequence[History], target: Target, cost: str = "bytes", bold: Collection[str] = ()
) -> None:
    """Print the result table; the methods named by `bold` have a bold cost."""
    table = summary.table(summary.summarise(runs, target, cost), target.column, cost, bold=bold)
    seeds = len({run.meta.get("seed") for run in runs})
    medians = f", medians over {seeds} seeds" if seeds > 1 else ""
    headings = summary.headings(target.column, cost)
    print_table(
        replace(table, caption=f"target: {target.title}{medians}"),
        optional=[headings[key] for key in _LEAST_NEEDED if key != target.column],
    )
    open_runs = [run for run in runs if run.ends_at(target) and not run.reached(target)]
    for run in open_runs[:3]:
        seed = f", seed {run.meta.get('seed')}" if seeds > 1 else ""
        log(f"{run.label}{seed}: {run.describe_target(target)}")


def print_problem(config: ProblemConfig, problem: LinearModel) -> None:
    """Print what the data and the defaults have decided: objective, clients and rows."""
    rows = f"{int(problem.sizes.sum()):,} rows"
    if problem.held_out is not None:
        rows += f" and {problem.held_out.rows:,} held out"
    parameters = f"{problem.d:,} parameters{' with the intercept' * problem.intercept}"
    print_line(
        f"Problem: {problem.name} (--objective {config.objective}) on {problem.data.name}, "
        f"{problem.N:,} clients ({problem.partition.name}), {rows}, {parameters}"
    )


def print_metrics(runs: Sequence[History]) -> None:
    """Print the last values of the metrics and of the held-out columns, medians over seeds."""
    for label, group in by_method(runs).items():
        words = [
            f"{describe_column(name).label} {np.median([run.last(name) for run in group]):.4g}"
            for name in group[0].columns
            if name not in COLUMNS
        ]
        if words:
            print_line(f"{label}: {', '.join(words)}")
    weak = next(filter(None, (explain_epsilon(run.rows[-1]) for run in runs if run.rows)), "")
    if weak:
        print_line(f"Note: {weak}.")


def print_client_scores(problem: object, history: History) -> None:
    """Print the last model's metrics by client, where the data says whose row each is.

    They are of the held-out rows if there are any, else of the rows that clients train on.
    """
    if not isinstance(problem, LinearModel) or problem.partition.ids is None or history.x is None:
        return
    held_out = problem.held_out
    rows = held_out if held_out is not None and held_out.clients is not None else None
    for name in row_metrics(problem.metrics):
        label = describe_column(name if rows is None else f"held_out_{name}").label
        x = history.x.astype(np.float64, copy=False)
        scores = problem.client_scores(x, rows, metric=name)
        print_line(f"{label.capitalize()} by client:\n{scores}")


def print_scale_hint(runs: Sequence[History], config: ProblemConfig, target: Target) -> None:
    """Say that the columns of a table are not standardised, where a run missed the target."""
    if not config.label or config.standardise:
        return
    if any(math.isinf(run.cost_to(target)) for run in runs):
        print("The columns of the table are not standardised: try --standardise.")


def print_table(table: Table, *, optional: Sequence[str] = (), wrapped: Sequence[str] = ()) -> None:
    """Print a table. If the output is not a terminal, asterisks stand for bold.

    Args:
        table: The table.
        optional: The headings of columns to leave out until the table fits, the first one first.
        wrapped: The headings of columns whose cells may be broken into lines.
    """
    screen = console()
    table = table if screen.is_terminal else table.starred()
    headings = table.flat_headings
    for count in range(len(optional) + 1):
        kept = [i for i, heading in enumerate(headings) if heading not in optional[:count]]
        shown = RichTable(title=table.caption or None, title_justify="left")
        for i in kept:
            words = [*headings[i].split(), *(row[i].text for row in table.rows)]
            width = None if headings[i] in wrapped else max(map(len, words))
            side: Literal["left", "right"] = "left" if table.align[i] == "l" else "right"
            shown.add_column(headings[i], justify=side, width=width, overflow="fold")
        for row in table.rows:
            shown.add_row(*(Text(row[i].text, "bold" * row[i].is_bold) for i in kept))
        if shown.__rich_measure__(screen, screen.options).minimum <= screen.width:
            break
    screen.print(shown)
    for note in table.notes:
        print_line(note)
    left_out = [heading for i, heading in enumerate(headings) if i not in kept]
    if left_out:
        print_line(f"In a wider terminal or with --json: {', '.join(left_out)}.")


def write_reports(
    runs: Sequence[History],
    out: Path | None,
    title: str,
    target: Target,
    report: Path | None = None,
    cost: str = "bytes",
    comparison: Comparison | None = None,
    *,
    command: str = "",
    folders: Sequence[Path] = (),
) -> None:
    """Write the plot and the report into `out`, and the report to a file too, and print where.

    The report in `out` has a page for each of the `folders` of the runs. A report in a file of its
    own holds the details of the runs instead, because it may be moved. `command` repeats the runs.
    """
    pages = [] if out is None else [(out / "report.html", folders)]
    for path, places in [*pages, *([] if report is None else [(report, ())])]:
        page.write_runs(
            runs,
            path,
            title=title,
            target=target,
            cost=cost,
            bold=() if comparison is None else comparison.tied,
            sentences=() if comparison is None else comparison.sentences(),
            command=command,
            folders=places,
        )
        print(f"Report: {path}")
    if out is not None:
        picture, second = out / "curves.png", Cost.parse(cost).name
        axes = ("round", "bytes" if second == "round" else second)
        plots.plot(runs, picture, x=axes, y=target.column, title=title)
        print(f"Plot: {picture}")
