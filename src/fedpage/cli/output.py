"""Output of the commands: consoles, the result table and the report."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fedpage.core.target import Target
    from fedpage.problems import LinearModel
    from fedpage.report.tables import Table
    from fedpage.runs.config import ProblemConfig
    from fedpage.runs.history import History
    from fedpage.studies.comparison import Comparison


Document: TypeAlias = dict[str, Any]
"""The results of a command, which `--json` prints."""
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the results as JSON, and all else on stderr.")
]


_WIDEST_WORD = 14
"""Longer words, such as paths, are broken in columns that may be wrapped."""


class Failed(typer.Exit):
    """End a command with exit code 1 after its results."""

    def __init__(self, document: Document) -> None:
        super().__init__(1)
        self.document = document


def with_json(command: Callable[..., Document]) -> Callable[..., None]:
    """Give a command the option `--json`, which prints the document that the command returns.

    Then standard output has this document and nothing else: what the command prints otherwise goes
    to stderr.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in signature(command).parameters.values()
    ]
    as_json = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)

    @wraps(command)
    def call(*, as_json: bool, **given: Any) -> None:
        if not as_json:
            command(**given)
            return
        failure: Failed | None = None
        with redirect_stdout(sys.stderr):
            try:
                document = command(**given)
            except Failed as error:
                failure, document = error, error.document
        print(json.dumps(to_json(document), indent=2, ensure_ascii=False, allow_nan=False))
        if failure is not None:
            raise failure

    del call.__wrapped__  # typer would read the signature of the command itself
    call.__signature__ = Signature([*parameters, as_json])  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in (*parameters, as_json)}
    return call


def to_json(value: object) -> object:
    """Convert a value to what JSON has; NaN and infinities become null, other objects text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def describe_runs(runs: Sequence[History], target: Target, cost: str = "bytes") -> Document:
    """Return the result table and a line for each run, for `--json`."""
    from fedpage.report.summary import summarise

    return {
        "target": str(target),
        "cost": cost,
        "methods": summarise(runs, target, cost),
        "runs": [
            {
                "method": run.label,
                "seed": run.meta.get("seed"),
                "end": run.stop_reason,
                "detail": run.stop_detail,
                "cost_to_target": run.cost_to(target, cost),
                "last": run.rows[-1] if run.rows else {},
            }
            for run in runs
        ],
    }


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or 140 columns wide where there is none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False)


def log(text: str) -> None:
    """Print a message that is not a result on stderr."""
    console(stderr=True).print(f"fedpage: {text}", markup=False, soft_wrap=True)


def print_summary(
    runs: Sequence[History], target: Target, cost: str = "bytes", bold: Collection[str] = ()
) -> None:
    """Print the result table.

    Args:
        runs: The runs.
        target: The column and the value to reach.
        cost: The cost by which methods are compared, which gets its own column.
        bold: The methods whose cost is bold.
    """
    from dataclasses import replace

    from fedpage.report import summary

    rows = summary.summarise(runs, target, cost)
    table = summary.table(rows, target.column, cost, bold=bold)
    seeds = len({run.meta.get("seed") for run in runs})
    medians = f", medians over {seeds} seeds" if seeds > 1 else ""
    headings = summary.headings(target.column, cost)
    least_needed = ("seconds", "clients", "loss", "step", "clients_per_round", "bytes_down",
                    "bytes_up")  # fmt: skip
    print_table(
        replace(table, caption=f"target: {target.title}{medians}"),
        optional=[headings[key] for key in least_needed if key != target.column],
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
    console().print(
        f"Problem: {problem.name} (--objective {config.objective}) on {problem.data.name}, "
        f"{problem.N:,} clients ({problem.partition.name}), {rows}, {parameters}",
        markup=False,
        soft_wrap=not sys.stdout.isatty(),
    )


def print_metrics(runs: Sequence[History]) -> None:
    """Print the last values of the metrics and of the held-out columns, medians over seeds."""
    import numpy as np

    from fedpage.core.columns import COLUMNS, describe_column, explain_epsilon
    from fedpage.report.titles import by_method

    for label, group in by_method(runs).items():
        words = [
            f"{describe_column(name).label} {np.median([run.last(name) for run in group]):.4g}"
            for name in group[0].columns
            if name not in COLUMNS
        ]
        if words:
            console().print(f"{label}: {', '.join(words)}", markup=False, soft_wrap=True)
    weak = next(filter(None, (explain_epsilon(run.rows[-1]) for run in runs if run.rows)), "")
    if weak:
        console().print(f"Note: {weak}.", markup=False, soft_wrap=True)


def print_client_scores(problem: object, history: History) -> None:
    """Print the last model's metrics by client, where the data says whose row each is.

    They are of the held-out rows if there are any, else of the rows that clients train on.
    """
    import numpy as np

    from fedpage.core.columns import describe_column
    from fedpage.core.metrics import row_metrics
    from fedpage.problems import LinearModel

    if not isinstance(problem, LinearModel) or problem.partition.ids is None or history.x is None:
        return
    held_out = problem.held_out
    rows = held_out if held_out is not None and held_out.clients is not None else None
    for name in row_metrics(problem.metrics):
        label = describe_column(name if rows is None else f"held_out_{name}").label
        x = history.x.astype(np.float64, copy=False)
        scores = problem.client_scores(x, rows, metric=name)
        console().print(f"{label.capitalize()} by client:\n{scores}", markup=False)


def print_scale_hint(runs: Sequence[History], config: ProblemConfig, target: Target) -> None:
    """Say that the columns of a table are not standardised, where a run missed the target."""
    if not config.label or config.standardise:
        return
    if any(math.isinf(run.cost_to(target)) for run in runs):
        print("The columns of the table are not standardised: try --standardise.")


def print_table(
    table: Table,
    *,
    optional: Sequence[str] = (),
    wrapped: Sequence[str] = (),
    width: int | None = None,
) -> None:
    """Print a table. If the output is not a terminal, asterisks stand for bold.

    Args:
        table: The table.
        optional: The headings of columns to leave out until the table fits, the first one first.
        wrapped: The headings of columns whose cells may be broken between words. The first one
            gets the space that is left.
        width: The width to fit. If None, the terminal's.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    screen = console()
    table = table if screen.is_terminal else table.starred()
    columns = dict(zip(table.flat_headings, zip(*table.rows, strict=True), strict=True))
    widths = {
        heading: max(
            min(len(part), _WIDEST_WORD if heading in wrapped else len(part))
            for text in (heading, *map(str, cells))
            for part in (text.split() or [""] if heading in (text, *wrapped) else [text])
        )
        for heading, cells in columns.items()
    }
    room = (width or screen.width) - 1
    for heading in optional:
        if sum(3 + each for each in widths.values()) <= room:
            break
        widths.pop(heading, None)
    spare = room - sum(3 + each for each in widths.values())
    for heading in filter(widths.get, wrapped):
        more = max(
            0, min(spare, max(len(cell.text) for cell in columns[heading]) - widths[heading])
        )
        widths[heading] += more
        spare -= more
    shown = RichTable(title=table.caption or None, title_justify="left")
    for heading, side in zip(columns, table.align, strict=True):
        if heading in widths:
            justify: Literal["left", "right"] = "left" if side == "l" else "right"
            shown.add_column(heading, justify=justify, width=widths[heading], overflow="fold")
    for row in zip(*(columns[heading] for heading in widths), strict=True):
        shown.add_row(*(Text(cell.text, "bold" if cell.is_bold else "") for cell in row))
    screen.print(shown)
    for note in table.notes:
        screen.print(note, markup=False, soft_wrap=True)
    left_out = [heading for heading in columns if heading not in widths]
    if left_out:
        screen.print(
            f"In a wider terminal or with --json: {', '.join(left_out)}.",
            markup=False,
            soft_wrap=True,
        )


def print_comparison(comparison: Comparison) -> None:
    """Print each method's cost to the target, and a sentence for each pair of methods.

    The cost is the median with its interval, and the number of seeds that reached the target.

    Args:
        comparison: The costs.
    """
    column = comparison.cost.column
    print(
        f"{column.label.capitalize()} to {comparison.goal}, interpolated between records; "
        f"medians and {100 * comparison.level:.0f} % intervals:"
    )
    for label in comparison.costs:
        print(f"  {label}: {comparison.samples[label].text(column.unit)}")
    for sentence in comparison.sentences():
        print(sentence)


@dataclass(frozen=True)
class FigureFile:
    """A figure to write when the runs have ended; it is refused before, if it cannot be written.

    Attributes:
        path: The file.
        x: The cost on the horizontal axis.
        width: "single", "double" or "screen".
    """

    path: Path
    x: str
    width: str

    def __post_init__(self) -> None:
        from fedpage.core.columns import Cost
        from fedpage.report.figure_file import check_figure_path
        from fedpage.report.plots import check_width

        Cost.parse(self.x)
        check_width(self.width)
        check_figure_path(self.path)

    def write(self, runs: Sequence[History], column: str) -> Path:
        """Draw a recorded column of the runs, and return the path."""
        from fedpage.report.plots import check_width, plot

        plot(runs, self.path, x=self.x, y=column, width=check_width(self.width))
        return self.path


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

    Args:
        runs: The runs.
        out: The directory, or None.
        title: The title of plot and report.
        target: The column and the value to reach.
        report: A file for the report, or None.
        cost: The cost by which methods are compared.
        comparison: The costs, for bold values and a sentence for each pair of methods.
        command: The command that repeats it.
        folders: The directories of the runs, for a page about each. A report in a file of its own
            holds the details of the runs instead, because it may be moved.
    """
    from fedpage.report import page, plots

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
        from fedpage.core.columns import Cost

        picture, second = out / "curves.png", Cost.parse(cost).name
        axes = ("round", "bytes" if second == "round" else second)
        plots.plot(runs, picture, x=axes, y=target.column, title=title)
        print(f"Plot: {picture}")
