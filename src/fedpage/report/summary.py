"""Summarise a comparison: a table of medians over seeds, for the terminal and for pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedpage.core.columns import Cost, Target, TargetLike, describe_column
from fedpage.report.numbers import scale_unit
from fedpage.report.tables import Cell, Table
from fedpage.report.titles import by_method
from fedpage.runs.history import History

Row: TypeAlias = dict[str, Any]
"""The results of a method; `summarise` says which."""

_COLUMNS: dict[str, tuple[str, Callable[[Row, str], str]]] = {
    "method": ("method", lambda row, name: row[name]),
    "step": (
        "effective step",
        lambda row, name: "measured" if math.isnan(row[name]) else f"{row[name]:g}",
    ),
    "value": ("{column}", lambda row, name: f"{row[name]:.3g}"),
    "loss": ("loss", lambda row, name: f"{row[name]:.5g}"),
    "rounds": ("rounds to target", lambda row, name: _format_count(row[name])),
    "cost": ("{cost} to target", lambda row, name: format_cost(row[name], row["unit"])),
    "total_bytes": ("bytes to target", lambda row, name: format_bytes(row[name])),
    "bytes_up": ("bytes up to target", lambda row, name: format_cost(row[name], "B")),
    "bytes_down": ("bytes down to target", lambda row, name: format_cost(row[name], "B")),
    "clients": ("clients to target", lambda row, name: _format_count(row[name])),
    "at_end": ("end at target", lambda row, name: f"{row[name]}/{row['runs']}"),
    "clients_per_round": ("clients a round", lambda row, name: f"{row[name]:.1f}"),
    "seconds": ("seconds a run", lambda row, name: f"{row[name]:.2f}"),
    "end": ("ended", lambda row, name: row[name]),
}
"""The heading of each column of the table, and how its values are written."""
_FIELD_OF_COST = {
    "round": "rounds", "bytes": "total_bytes", "bytes_up": "bytes_up", "bytes_down": "bytes_down",
    "clients": "clients",
}  # fmt: skip
"""The costs that every table has; another one gets an additional column."""
BOLD_NOTE = "Bold: the least cost, and costs that the seeds cannot distinguish from it."


def summarise(
    histories: Iterable[History],
    target: TargetLike,
    cost: str | Cost = "bytes",
) -> list[Row]:
    """Compute a row of medians for each method.

    Args:
        histories: Runs of any methods and seeds.
        target: What is to be reached and held, such as "accuracy:0.9"; see `History.cost_to`.
        cost: The cost by which methods are compared: a column, or a sum such as "up+0.1*down".

    Returns:
        A row for each method, of medians over its runs: "step", its effective step, NaN where a run
        measures it; "value" and "loss", the last of the target's column and of the loss; what was
        needed to reach the target, inf if it was not reached, in "rounds", "cost", "total_bytes",
        "bytes_up", "bytes_down" and "clients"; "at_end", how many of its "runs" end at the target;
        "clients_per_round"; "seconds" in rounds; "end", how many diverged, or ""; and "unit", the
        unit of "cost".
    """
    rows, cost, goal = [], Cost.parse(cost), Target.parse(target)
    costs = {field: Cost.parse(name) for name, field in _FIELD_OF_COST.items()} | {"cost": cost}
    for label, runs in by_method(histories).items():
        step = runs[0].meta.get("method", {}).get("effective_step")
        diverged = sum(run.diverged for run in runs)
        has_loss = all("loss" in run.columns for run in runs)
        rows.append(
            {
                "method": label,
                "step": math.nan if step is None else float(step),
                "value": _median(end_value(run, goal.column) for run in runs),
                "loss": _median(end_value(run, "loss") for run in runs) if has_loss else math.nan,
                **{
                    f: _median(run.cost_to(goal, each) for run in runs) for f, each in costs.items()
                },
                "at_end": sum(run.ends_at(goal) for run in runs),
                "runs": len(runs),
                "clients_per_round": _median(
                    run.last("clients") / max(run.last("round"), 1.0) for run in runs
                ),
                "seconds": _median(run.last("seconds") for run in runs),
                "end": f"{diverged} of {len(runs)} diverged" if diverged else "",
                "unit": cost.column.unit,
            }
        )
    return rows


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def document(
    histories: Sequence[History], target: Target, cost: str | Cost = "bytes"
) -> dict[str, Any]:
    """Return the rows of `summarise` and a row for each run, which `--json` prints."""
    return {
        "target": str(target),
        "cost": cost,
        "methods": summarise(histories, target, cost),
        "runs": [
            {
                "method": run.label,
                "seed": run.meta.get("seed"),
                "end": run.stop_reason,
                "detail": run.stop_detail,
                "cost_to_target": run.cost_to(target, cost),
                "last": run.rows[-1] if run.rows else {},
            }
            for run in histories
        ],
    }


def headings(column: str = "grad_norm", cost: str | Cost = "bytes") -> dict[str, str]:
    """Return the heading of each column of a table about a target's column and a cost."""
    words = {"column": describe_column(column).label, "cost": Cost.parse(cost).short_name}
    return {name: heading.format(**words) for name, (heading, _) in _COLUMNS.items()}


def explain_target(target: Target) -> str:
    """Say in a sentence what counts as reached."""
    if not target.hold:
        return f"The target is {target.title}, at the first record there."
    return (
        f"The target is {target.title}, held while the rounds grow by {100 * target.hold:g} % and "
        "for five more records. Costs are those at the beginning of that stretch."
    )


def held_value(run: History, column: str) -> float:
    """Return the best value of a column that a run reaches and holds to its end.

    Args:
        run: A run with at least one record.
        column: A recorded column.

    Returns:
        The worst value of the records by which a target would have to hold: the last fifth of the
        rounds, and at least six records.
    """
    rounds, values = run["round"], run[column]
    early = np.count_nonzero((1 + Target.hold) * rounds <= rounds[-1])
    last = values[max(0, min(early - 1, len(rounds) - 6)) :]
    return float(last.min() if run.higher_is_better(column) else last.max())


def end_value(run: History, column: str) -> float:
    """Return the value of the newest record of all clients; NaN if there is none."""
    values = run[column][run.complete()]
    return float(values[-1]) if len(values) else math.nan


def table(
    rows: Sequence[Row],
    column: str = "grad_norm",
    cost: str | Cost = "bytes",
    *,
    bold: Collection[str] = (),
) -> Table:
    """Arrange rows as a table, without columns that add nothing.

    "ended" is left out where all runs finished, the cost where another column has it, and the value
    where the target is about the loss, which has its own column.

    Args:
        rows: From `summarise`.
        column: The target's column.
        cost: The cost by which methods are compared, as in `summarise`.
        bold: The methods whose cost is bold.

    Returns:
        The table. The notes say what bold means.
    """
    bold_field = _FIELD_OF_COST.get(Cost.parse(cost).name, "cost")
    left_out = {
        "end": not any(row["end"] for row in rows),
        "cost": bold_field != "cost",
        "value": column == "loss",
    }
    kept = [name for name in _COLUMNS if not left_out.get(name)]
    words = headings(column, cost)
    cells = [
        tuple(
            Cell(write(row, name), row[name], name == bold_field and row["method"] in bold)
            for name, (_, write) in _COLUMNS.items()
            if name in kept
        )
        for row in rows
    ]
    return Table(
        tuple(words[name] for name in kept),
        tuple(cells),
        notes=(BOLD_NOTE,) if bold else (),
        align="".join("l" if name in ("method", "end") else "r" for name in kept),
    )


def _format_count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "not reached"


def format_cost(value: float, unit: str) -> str:
    """Format a cost that stands beside others, by its unit; infinity is "-".

    >>> format_cost(1_500_000, "bit"), format_cost(12.0, "")
    ('1.5 Mbit', '12')
    """
    if not math.isfinite(value):
        return "-"
    return format_bytes(value, unit) if unit in ("B", "bit") else f"{value:,.4g}"


def format_bytes(value: float, unit: str = "B") -> str:
    """Format a number of bytes, or of bits, with a unit; infinity is "not reached".

    >>> format_bytes(1_234_567), format_bytes(12_345, "bit")
    ('1.23 MB', '12.3 kbit')
    """
    if not math.isfinite(value):
        return "not reached"
    scale, shown = scale_unit(value, unit)
    return f"{value / scale:.3g}{shown}"


def format_duration(seconds: float) -> str:
    """Format seconds in the largest fitting unit.

    >>> format_duration(90), format_duration(1e6), format_duration(0.000487)
    ('1.5 min', '11.6 days', '0.487 ms')
    """
    if 0.0 < seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    units = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (3.15e7, 86400, "days"))
    for limit, divisor, unit in units:
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 3.15e7:.3g} years"
