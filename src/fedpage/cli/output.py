"""Output of the commands: consoles, the result table and the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

    from fedpage.problems import LinearModel
    from fedpage.runs.config import ProblemConfig, Target
    from fedpage.runs.history import History


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or 140 columns wide where there is none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False)


def log(text: str) -> None:
    """Print a message that is not a result on stderr."""
    console(stderr=True).print(f"fedpage: {text}", markup=False, soft_wrap=True)


_LEAST_NEEDED = (
    "seconds", "clients", "loss", "step", "clients_per_round", "bytes_down", "bytes_up",
)  # fmt: skip
"""The columns that a narrow terminal does not show, the first one first."""


def print_summary(runs: Sequence[History], target: Target, cost: str = "bytes") -> None:
    """Print the result table, without its least needed columns where the terminal is narrow.

    Args:
        runs: The runs.
        target: The column and the value to reach.
        cost: The cost by which methods are compared; it has a column of its own.
    """
    from rich.table import Table

    from fedpage.core.columns import describe_column
    from fedpage.report import summary

    rows = summary.summarise(runs, target.value, target.column, cost)
    cells = [row.cells() for row in rows]
    fields, headings = zip(*summary.headings(target.column, cost).items(), strict=True)
    columns = summary.needed(rows, target.column, cost)
    screen = console()
    for key in _LEAST_NEEDED:
        if key == target.column:
            continue
        if sum(3 + _width(headings[i], [row[i] for row in cells]) for i in columns) < screen.width:
            break
        columns = [i for i in columns if fields[i] != key]
    seeds = len({run.meta.get("seed") for run in runs})
    label = describe_column(target.column).label
    medians = f", medians over {seeds} seeds" if seeds > 1 else ""
    table = Table(title=f"target: {label} {target.value:g}{medians}", title_justify="left")
    for i in columns:
        width = _width(headings[i], [row[i] for row in cells])
        heading = fill(headings[i], width)  # so that rich wraps headings, and no numbers
        justify: Literal["left", "right"] = "left" if fields[i] in ("method", "end") else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    for row in cells:
        table.add_row(*(row[i] for i in columns))
    screen.print(table)


def print_problem(config: ProblemConfig, problem: LinearModel) -> None:
    """Print what the data has decided, where it is a table: objective, clients and rows."""
    from fedpage.runs.build_problem import is_table_file

    if not is_table_file(config.data):
        return
    rows = f"{int(problem.sizes.sum()):,} rows"
    if problem.held_out is not None:
        rows += f" and {problem.held_out.rows:,} held out"
    parameters = f"{problem.d:,} parameters{' with the intercept' * problem.intercept}"
    print(
        f"Problem: {problem.name} (--objective {config.objective}) on {problem.data.name}, "
        f"{problem.N:,} clients ({problem.partition.name}), {rows}, {parameters}"
    )


def print_metrics(runs: Sequence[History]) -> None:
    """Print the last values of the metrics and of the held-out columns, medians over seeds."""
    import numpy as np

    from fedpage.core.columns import COLUMNS, describe_column
    from fedpage.runs.history import by_method

    for label, group in by_method(runs).items():
        words = [
            f"{describe_column(name).label} {np.median([run.last(name) for run in group]):.4g}"
            for name in group[0].columns
            if name not in COLUMNS
        ]
        if words:
            console().print(f"{label}: {', '.join(words)}", markup=False, soft_wrap=True)


def print_client_scores(problem: object, history: History) -> None:
    """Print the last model's metrics by client, where the data says whose row each is.

    They are of the held-out rows if there are any, else of the rows that clients train on.
    """
    from fedpage.core.columns import describe_column
    from fedpage.core.metrics import row_metrics
    from fedpage.problems import LinearModel

    if not isinstance(problem, LinearModel) or problem.partition.ids is None or history.x is None:
        return
    held_out = problem.held_out
    rows = held_out if held_out is not None and held_out.clients is not None else None
    for name in row_metrics(problem.metrics):
        label = describe_column(name if rows is None else f"held_out_{name}").label
        scores = problem.client_scores(history.x, rows, metric=name)
        console().print(f"{label.capitalize()} by client:\n{scores}", markup=False)


def print_divergence_hint(runs: Sequence[History], config: ProblemConfig) -> None:
    """Say that the columns of a table are not standardised, where a run has diverged."""
    if config.label and not config.standardise and any(run.diverged for run in runs):
        print("The columns of the table have different scales: try --standardise.")


def print_judgements(runs: Sequence[History], target: Target, cost: str) -> None:
    """Print each method's cost to the target: median, its interval, and the seeds that reached it.

    Args:
        runs: The runs of one or more methods.
        target: The column and the value to reach.
        cost: The cost.
    """
    from fedpage.core.columns import Cost
    from fedpage.runs.history import by_method
    from fedpage.studies.judge import Judgement

    column = Cost.parse(cost).column
    print(f"{column.label.capitalize()} to {target}, interpolated between records:")
    for label, group in by_method(runs).items():
        costs = tuple(
            run.cost_to(target.column, target.value, cost, interpolate=True) for run in group
        )
        print(f"  {label}: {Judgement(costs).text(column.unit)}")


def _width(heading: str, cells: Sequence[str]) -> int:
    """Return the width of a column whose heading is broken into words."""
    return max(len(word) for word in [*heading.split(), *cells])


def write_reports(
    runs: Sequence[History],
    out: Path | None,
    title: str,
    target: Target,
    report: Path | None = None,
    cost: str = "bytes",
    *,
    command: str = "",
    folders: Sequence[Path] = (),
) -> None:
    """Write the plot and the report into `out`, and the report to a file too, and print where.

    Args:
        runs: The runs.
        out: The directory, or None.
        title: The title of plot and report.
        target: The column and the value to reach.
        report: A file for the report, or None.
        cost: The cost by which methods are compared.
        command: The command that repeats it.
        folders: The directories of the runs, for a page about each. A report in a file of its own
            holds the details of the runs instead, because it may be moved.
    """
    from fedpage.report import page, plots

    pages = [] if out is None else [(out / "report.html", folders)]
    for path, places in [*pages, *([] if report is None else [(report, ())])]:
        page.write_runs(
            runs, path, title=title, target=target.value, column=target.column, cost=cost,
            command=command, folders=places,
        )  # fmt: skip
        print(f"Report: {path}")
    if out is not None:
        picture = plots.save_pair(runs, out / "curves.png", title, y=target.column, cost=cost)
        print(f"Plot: {picture}")
