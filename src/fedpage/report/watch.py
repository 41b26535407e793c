"""Show followed runs as a table for the terminal, with a sparkline of each run's column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedpage.core.columns import MEASURED, describe_column, read_column
from fedpage.core.display import format_number
from fedpage.report.summary import format_duration
from fedpage.runs.history import is_complete
from fedpage.runs.status import FollowedRun, RunFollower, RunState

if TYPE_CHECKING:
    from rich.table import Table

_BLOCKS = "▁▂▃▄▅▆▇█"
COLOURS = {
    RunState.RUNNING: "green", RunState.WAITING: "green", RunState.INTERRUPTED: "yellow",
    RunState.STALE: "yellow", RunState.FAILED: "red",
    RunState.DIVERGED: "red", RunState.UNREADABLE: "red",
}  # fmt: skip


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Draw values as a line of blocks.

    The scale is logarithmic where all finite values are above 0 and the largest is at least ten
    times the smallest. A value that is not finite is "x".

    Args:
        values: The values, oldest first.
        width: The number of blocks; each stands for the last of the values in its place.

    >>> sparkline([1, 2, 3, 4, 5, 6, 7, 8]), sparkline([1.0, 0.1, 0.001, math.nan])
    ('▁▂▃▄▅▆▇█', '█▆▁x')
    """
    count = min(width, len(values))
    shown = [values[(i + 1) * len(values) // count - 1] for i in range(count)]
    finite = [value for value in shown if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) >= 10 * min(finite):
        shown = [math.log(value) if value > 0 else value for value in shown]
        finite = [math.log(value) for value in finite]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)
    return "".join(
        "x" if not math.isfinite(value)
        else _BLOCKS[round(7 * (value - low) / span) if span else 0]
        for value in shown
    )  # fmt: skip


def watched_column(run: FollowedRun, column: str = "") -> str:
    """Choose the column to show: the given one, the target's, or the first that is recorded."""
    target = run.target
    names = [column, target[0] if target else "", "grad_norm", "loss"]
    recorded = run.history.columns
    return next((name for name in names if name in recorded), "")


def watch_table(follower: RunFollower, column: str = "", limit: int | None = None) -> Table:
    """Return a table of the runs: state, rounds, rate, remaining time and the column's course.

    Args:
        follower: The runs.
        column: The recorded column to show; by default that of each run's target.
        limit: The most runs to show, those that have not finished first; None for all.
    """
    from rich.table import Table
    from rich.text import Text

    states = [run.state for run in follower.runs.values()]
    counts = [f"{states.count(s)} {s.value}" for s in RunState if s in states]
    heading = f"{follower.root}: {', '.join(counts) or 'no runs yet'}"
    table = Table(title=Text(heading), title_justify="left")
    table.add_column("run", overflow="fold", min_width=12)
    for name in ("state", "round", "rounds/s", "left"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    table.add_column("course", no_wrap=True)
    table.add_column("value", overflow="fold")
    rows = list(zip(follower.runs.items(), states, strict=True))
    if limit is not None and len(rows) > limit:
        rows = sorted(rows, key=lambda row: row[1] is RunState.FINISHED)[: max(limit, 1)]
        table.caption = f"and {len(states) - len(rows)} more"
    for (name, run), state in rows:
        chosen = watched_column(run, column)
        values = [float(value) for value in run.history[chosen]] if chosen else []
        is_running = state is RunState.RUNNING
        left = (run.rounds - run.round) / run.rate if is_running and run.rate else 0.0
        table.add_row(
            Text(run.path.name if name == "." else name),
            Text(state.value, style=COLOURS.get(state, "")),
            f"{run.round:,}/{run.rounds:,}" if run.rounds else f"{run.round:,}",
            f"{run.rate:,.0f}" if run.rate >= 10 else f"{run.rate:.2g}" if run.rate else "",
            format_duration(left) if left > 0 else "",
            sparkline(values) if values else "",
            Text(run.error or (_describe_value(chosen, run.history.rows[-1]) if values else "")),
        )
    return table


def _describe_value(column: str, record: Mapping[str, float]) -> str:
    value = read_column(record, column)
    number = format_number(value) or str(value)
    part = "" if is_complete(record) else f" of {record[MEASURED]:.0f} clients only"
    return f"{describe_column(column).label} {number}{part}"
