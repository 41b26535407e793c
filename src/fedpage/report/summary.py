"""Summarise a comparison: a table of medians over seeds, for the terminal and for pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedpage.core.columns import Cost, describe_column
from fedpage.core.target import Target, TargetLike
from fedpage.report.tables import Cell, Table
from fedpage.report.titles import by_method
from fedpage.runs.history import History


@dataclass(frozen=True)
class SummaryRow:
    """A method's results: medians over its runs.

    Attributes:
        method: The method's label.
        step: Its effective step; NaN where it is measured in the run.
        value: The last value of the target's column.
        loss: The last loss.
        rounds: Rounds to the target; inf if it was not reached, as in the next five.
        cost: The cost to the target by which methods are compared.
        total_bytes: Bytes up and down to the target.
        bytes_up: Bytes to the server, to the target.
        bytes_down: Bytes to the clients, to the target.
        clients: Clients called to the target.
        at_end: How many runs end at the target.
        runs: The number of runs.
        clients_per_round: Clients called in an average round.
        seconds: Seconds that a run spent in rounds.
        end: How many runs diverged, or "".
        unit: The unit of `cost`.
    """

    method: str
    step: float
    value: float
    loss: float
    rounds: float
    cost: float
    total_bytes: float
    bytes_up: float
    bytes_down: float
    clients: float
    at_end: int
    runs: int
    clients_per_round: float
    seconds: float
    end: str
    unit: str = "B"

    def cells(self) -> list[str]:
        """Format the row for people, in the order of `headings`."""
        return [
            self.method,
            "measured" if math.isnan(self.step) else f"{self.step:g}",
            f"{self.value:.3g}",
            f"{self.loss:.5g}",
            _format_count(self.rounds),
            format_cost(self.cost, self.unit),
            format_bytes(self.total_bytes),
            format_cost(self.bytes_up, "B"),
            format_cost(self.bytes_down, "B"),
            _format_count(self.clients),
            f"{self.at_end}/{self.runs}",
            f"{self.clients_per_round:.1f}",
            f"{self.seconds:.2f}",
            self.end,
        ]


_FIELD_OF_COST = {
    "bytes": "total_bytes", "bytes_up": "bytes_up", "bytes_down": "bytes_down", "round": "rounds",
    "clients": "clients",
}  # fmt: skip
IN_TABLE = tuple(_FIELD_OF_COST)
"""The costs that every table has; another one gets a column of its own."""
BOLD_NOTE = "Bold: the least cost, and costs that the seeds do not tell from it."


def headings(column: str = "grad_norm", cost: str | Cost = "bytes") -> dict[str, str]:
    """Return the table's headings by field of `SummaryRow`.

    Args:
        column: The target's column.
        cost: The cost by which methods are compared.

    Returns:
        Field name to heading, in the order of the cells.
    """
    return {
        "method": "method",
        "step": "effective step",
        "value": describe_column(column).label,
        "loss": "loss",
        "rounds": "rounds to target",
        "cost": f"{Cost.parse(cost).short_name} to target",
        "total_bytes": "bytes to target",
        "bytes_up": "bytes up to target",
        "bytes_down": "bytes down to target",
        "clients": "clients to target",
        "at_end": "end at target",
        "clients_per_round": "clients a round",
        "seconds": "seconds a run",
        "end": "ended",
    }


def summarise(
    histories: Iterable[History],
    target: TargetLike,
    cost: str | Cost = "bytes",
) -> list[SummaryRow]:
    """Compute a row of medians for each method.

    Args:
        histories: Runs of any methods and seeds.
        target: What is to be reached and held, such as "accuracy:0.9"; see `History.cost_to`.
        cost: The cost by which methods are compared: a column, or a sum such as "up+0.1*down".

    Returns:
        The rows, in the order of the methods.
    """
    rows, cost, goal = [], Cost.parse(cost), Target.parse(target)
    for label, runs in by_method(histories).items():

        def median(measure: Callable[[History], float], runs: list[History] = runs) -> float:
            return float(np.median([measure(run) for run in runs]))

        diverged = sum(run.diverged for run in runs)
        rows.append(
            SummaryRow(
                method=label,
                step=_step_of(runs[0]),
                value=median(lambda run: end_value(run, goal.column)),
                loss=median(
                    lambda run: end_value(run, "loss") if "loss" in run.columns else math.nan
                ),
                rounds=median(lambda run: run.cost_to(goal, "round")),
                cost=median(lambda run: run.cost_to(goal, cost)),
                total_bytes=median(lambda run: run.cost_to(goal, "bytes")),
                bytes_up=median(lambda run: run.cost_to(goal, "bytes_up")),
                bytes_down=median(lambda run: run.cost_to(goal, "bytes_down")),
                clients=median(lambda run: run.cost_to(goal, "clients")),
                at_end=sum(run.ends_at(goal) for run in runs),
                runs=len(runs),
                clients_per_round=median(
                    lambda run: run.last("clients") / max(run.last("round"), 1.0)
                ),
                seconds=median(lambda run: run.last("seconds")),
                end=f"{diverged} of {len(runs)} diverged" if diverged else "",
                unit=cost.column.unit,
            )
        )
    return rows


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


def _step_of(run: History) -> float:
    step = run.meta.get("method", {}).get("effective_step")
    return math.nan if step is None else float(step)


def needed(
    rows: Sequence[SummaryRow], column: str = "grad_norm", cost: str | Cost = "bytes"
) -> list[int]:
    """Choose the columns that say something: their places among the cells.

    "ended" is left out where all runs finished, the cost where another column has it, and the value
    where the target is about the loss, which has its own column.
    """
    left_out = set() if any(row.end for row in rows) else {"end"}
    left_out |= {"cost"} if Cost.parse(cost).name in IN_TABLE else set()
    left_out |= {"value"} if column == "loss" else set()
    return [i for i, name in enumerate(headings(column, cost)) if name not in left_out]


def table(
    rows: Sequence[SummaryRow],
    column: str = "grad_norm",
    cost: str | Cost = "bytes",
    *,
    bold: Collection[str] = (),
    columns: Sequence[int] | None = None,
) -> Table:
    """Arrange rows as a table, without the columns that say nothing.

    Args:
        rows: From `summarise`.
        column: The target's column.
        cost: The cost by which methods are compared, as in `summarise`.
        bold: The methods whose cost is bold.
        columns: The places of the columns among the cells; by default those of `needed`.

    Returns:
        The table. The notes say what bold means.
    """
    keep = needed(rows, column, cost) if columns is None else columns
    fields, words = zip(*headings(column, cost).items(), strict=True)
    judged = _FIELD_OF_COST.get(Cost.parse(cost).name, "cost")
    cells = [
        tuple(
            Cell(text, getattr(row, name), name == judged and row.method in bold)
            for name, text in zip(fields, row.cells(), strict=True)
        )
        for row in rows
    ]
    return Table(
        tuple(words[i] for i in keep),
        tuple(tuple(row[i] for i in keep) for row in cells),
        notes=(BOLD_NOTE,) if bold else (),
        align="".join("l" if fields[i] in ("method", "end") else "r" for i in keep),
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
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} E{unit}"


def format_duration(seconds: float) -> str:
    """Format seconds in the largest fitting unit.

    >>> format_duration(90), format_duration(1e6), format_duration(0.000487)
    ('1.5 min', '11.6 days', '0.487 ms')
    """
    if 0.0 < seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    for limit, divisor, unit in (
        (60, 1, "s"),
        (3600, 60, "min"),
        (86400, 3600, "h"),
        (3.15e7, 86400, "days"),
    ):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 3.15e7:.3g} years"
