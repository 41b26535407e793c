"""Summarise a comparison: a table of medians over seeds, for the terminal and for pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from fedpage.core.columns import describe_column
from fedpage.runs.history import History, by_method


@dataclass(frozen=True)
class SummaryRow:
    """A method's results: medians over its runs.

    Attributes:
        method: The method's label.
        step: Its effective step.
        value: The last value of the target's column.
        loss: The last loss.
        rounds: Rounds to the target; inf if it was not reached, as in the next two.
        total_bytes: Bytes up and down to the target.
        clients: Clients called to the target.
        clients_per_round: Clients called in an average round.
        seconds: Seconds that a run spent in rounds.
        end: How many runs diverged, or "".
    """

    method: str
    step: float
    value: float
    loss: float
    rounds: float
    total_bytes: float
    clients: float
    clients_per_round: float
    seconds: float
    end: str

    def cells(self) -> list[str]:
        """Format the row for people, in the order of `headings`."""
        return [
            self.method,
            f"{self.step:g}",
            f"{self.value:.3g}",
            f"{self.loss:.5g}",
            _format_count(self.rounds),
            format_bytes(self.total_bytes),
            _format_count(self.clients),
            f"{self.clients_per_round:.1f}",
            f"{self.seconds:.2f}",
            self.end,
        ]


def headings(column: str = "grad_norm") -> dict[str, str]:
    """Return the table's headings by field of `SummaryRow`.

    Args:
        column: The target's column.

    Returns:
        Field name to heading, in the order of the cells.
    """
    return {
        "method": "method",
        "step": "effective step",
        "value": describe_column(column).label,
        "loss": "loss",
        "rounds": "rounds to target",
        "total_bytes": "bytes to target",
        "clients": "clients to target",
        "clients_per_round": "clients a round",
        "seconds": "seconds a run",
        "end": "ended",
    }


def summarise(
    histories: Iterable[History], target: float, column: str = "grad_norm"
) -> list[SummaryRow]:
    """Compute a row of medians for each method.

    Args:
        histories: Runs of any methods and seeds.
        target: The value that counts as reached, while the loss is at most that of the start.
        column: The recorded column that the target is about.

    Returns:
        The rows, in the order of the methods.
    """
    rows = []
    for label, runs in by_method(histories).items():

        def median(measure: Callable[[History], float], runs: list[History] = runs) -> float:
            return float(np.median([measure(run) for run in runs]))

        diverged = sum(run.diverged for run in runs)
        rows.append(
            SummaryRow(
                method=label,
                step=runs[0].meta.get("method", {}).get("effective_step", math.nan),
                value=median(lambda run: run.last(column)),
                loss=median(lambda run: run.last("loss")),
                rounds=median(lambda run: run.cost_to(column, target, "round")),
                total_bytes=median(lambda run: run.cost_to(column, target, "bytes")),
                clients=median(lambda run: run.cost_to(column, target, "clients")),
                clients_per_round=median(
                    lambda run: run.last("clients") / max(run.last("round"), 1.0)
                ),
                seconds=median(lambda run: run.last("seconds")),
                end=f"{diverged} of {len(runs)} diverged" if diverged else "",
            )
        )
    return rows


def table(rows: list[SummaryRow], column: str = "grad_norm") -> tuple[list[str], list[list[str]]]:
    """Arrange rows as headings and cells, without the column "ended" where all runs finished.

    Args:
        rows: From `summarise`.
        column: The target's column.

    Returns:
        The headings, and the cells of each row.
    """
    names = headings(column)
    count = len(names) if any(row.end for row in rows) else len(names) - 1
    # the loss has its own column already where the target is about the loss
    keep = [i for i, name in enumerate(names) if i < count and (column, name) != ("loss", "value")]
    words = list(names.values())
    return [words[i] for i in keep], [[row.cells()[i] for i in keep] for row in rows]


def _format_count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "not reached"


def format_bytes(value: float) -> str:
    """Format a number of bytes with a unit; infinity is "not reached".

    >>> format_bytes(1_234_567)
    '1.23 MB'
    """
    if not math.isfinite(value):
        return "not reached"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def format_duration(seconds: float) -> str:
    """Format seconds in the largest fitting unit.

    >>> format_duration(90), format_duration(1e6)
    ('1.5 min', '11.6 days')
    """
    for limit, divisor, unit in (
        (60, 1, "s"),
        (3600, 60, "min"),
        (86400, 3600, "h"),
        (3.15e7, 86400, "days"),
    ):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 3.15e7:.3g} years"
